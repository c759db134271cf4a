"""Checks that `state_digest` and the digests by component, which stand beside it, are of one state."""

from __future__ import annotations

from collections.abc import Iterator

from ecrl_cli.checkpoint.format.canonical_json import digest, is_digest
from ecrl_cli.checkpoint.format.train_document import saved_state, tensor_digests
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import RankLine
from ecrl_cli.records.state_digests import RANK_COMPONENTS, recorded_by_rank
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case, every_line

_COVERED = ("parameters", "buffers", "optimizer")  # what `state_digest` is taken over
Parts = tuple[str, ...]


def check_state_digests(case: Case, notes: FindingBuilder) -> None:
    """Equal components have one state digest, and the other way round: in this run's lines and restored states, its checkpoints, and the reference.

    A digest cannot be computed from those of the components: both are taken over the tensors.
    """
    if recorded_by_rank(case.run.stored.config):
        for attempt, rank, line in every_line(case.run):
            who = f"step {line.global_step} of attempt {attempt} rank {rank} has"
            if line.components is None and line.state_digest is not None:
                notes.missing(f"{who} a digest of the state, and none by component")
                return
            if text := _wrong(line):
                notes.broken(f"{who} {text}")
                return
    found: dict[Parts, tuple[str, str]] = {}
    states: dict[str, tuple[Parts, str]] = {}
    for parts, state, where in (*_of_checkpoints(case), *(_of_run(case.reference) if case.reference else ()), *_of_run(case.run)):
        before, first = found.setdefault(parts, (state, where))
        held, other = states.setdefault(state, (parts, where))
        if before != state:
            notes.broken(f"{where} has the digests by component of {first}, and another digest of the state")
            return
        if held != parts:
            notes.broken(f"{where} has the digest of the state of {other}, and other digests by component")
            return


def _wrong(line: RankLine) -> str:
    """What is wrong with the digests of a line; empty if nothing is. That they are missing is found where they are due."""
    if line.components is None or line.state_digest is None:
        return ""
    if line.components.keys() != set(RANK_COMPONENTS):
        return f"digests of {len(line.components)} components, a state has {len(RANK_COMPONENTS)}"
    wrong = [name for name, each in (*line.components.items(), ("the state", line.state_digest)) if not is_digest(each)]
    return f"a digest of {wrong[0]} that is none" if wrong else ""


def _of_run(run: RunRecords) -> Iterator[tuple[Parts, str, str]]:
    for attempt, rank, line in every_line(run):
        if line.components is not None and line.state_digest is not None and all(name in line.components for name in _COVERED):
            yield tuple(line.components[name] for name in _COVERED), line.state_digest, f"step {line.global_step} of attempt {attempt} rank {rank}"
    for logs in run.attempt_logs:
        for rank, restored in sorted(logs.restored.items()):
            parts = tuple(getattr(restored.state, name) for name in _COVERED)
            yield parts, restored.state_digest, f"restored_rank{rank}.json of attempt {logs.attempt}"


def _of_checkpoints(case: Case) -> Iterator[tuple[Parts, str, str]]:
    for c in case.disk:
        if c.report.ok and c.report.manifest:
            tensors = tensor_digests(c.report.manifest)
            saved = saved_state(tensors, {})
            held = digest([[name, sha] for name, sha in sorted(tensors.items()) if not name.startswith("rng.")])
            yield tuple(saved[name] for name in _COVERED), held, c.path
