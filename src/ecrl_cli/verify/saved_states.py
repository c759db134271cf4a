"""Holds what each save committed, by its line in the journal, against the ranks, the checkpoint and
the reference: so a checkpoint that retention has removed is judged all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from ecrl_cli.checkpoint.format.canonical_json import is_digest
from ecrl_cli.checkpoint.format.train_document import due_on_ranks, saved_state, tensor_digests
from ecrl_cli.config.legs import schedule_after
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import plural
from ecrl_cli.history.lineage import Lineage, components_of_lines
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.state_digests import RANK_COMPONENTS
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case, checkpoint_events

Logged = dict[tuple[int, int], dict[int, dict[str, str]]]
_SHARED = ("parameters", "buffers", "optimizer", "train")


def component_names(case: Case, world_size: int) -> set[str]:
    """The names under which a checkpoint that `world_size` ranks saved has its digests."""
    own = {f"rng.rank{rank}" for rank in range(world_size)}
    return {*_SHARED, *({"rng.shared"} if case.run.stored.config.elastic.replicas else own)}


def check_saved_states(case: Case, notes: FindingBuilder) -> int:
    """Check each `committed` line; returns how many were compared with what a rank logged.

    A line of an older version says nothing of the state, nor does one of another checkpointer.
    """
    stored = {
        c.report.commit_sha256: saved_state(tensor_digests(c.report.manifest), c.train)
        for c in case.disk
        if c.report.ok and c.report.manifest
    }
    lines = [line for line in _committed(case.run) if not _refused(case, line)]
    logged = _logged(case.run, {(line.attempt, line.global_step) for line in lines})
    return sum(_check_line(case, line, stored, logged, notes) for line in lines)


def _check_line(
    case: Case,
    line: CheckpointLine,
    stored: dict[str | None, dict[str, str]],
    logged: Logged,
    notes: FindingBuilder,
) -> bool:
    """Whether the state of the line could be compared with what a rank logged."""
    who, saved = f"attempt {line.attempt} committed step {line.global_step}", line.saved_state
    if text := _wrong_names(case, line):
        notes.broken(f"{who} {text}")
        return False
    there = stored.get(line.commit_sha256, saved)
    if names := _differing(saved, there):
        notes.broken(f"{who} with other {', '.join(names)} than {line.path} holds")
    for a in case.attempts:
        resumed = a.resumed_from.commit_sha256 if a.resumed_from else None
        if resumed == line.commit_sha256 and (names := _differing(saved, a.resumed_state)):
            notes.broken(
                f"{who} with other {', '.join(names)} than attempt {a.attempt} resumed from"
            )
    by_rank, due = logged.get((line.attempt, line.global_step), {}), due_on_ranks(saved)
    for rank, held in by_rank.items():
        if names := _differing_on(rank, due(rank), held):
            notes.broken(f"{who} with other {', '.join(names)} than rank {rank} logged after it")
    return bool(saved and by_rank)


def _wrong_names(case: Case, line: CheckpointLine) -> str:
    """Faults in the names and digests of a line; empty if nothing is."""
    a, order = case.attempt(line.attempt), case.run.logs(line.attempt).order
    recorded = order is not None and order.launched_at > 0  # since the same version
    if not line.saved_state:
        own = strategy_of(case.run.stored.config).checkpointer is None
        return "and does not say with which state" if recorded and own else ""
    due = component_names(case, a.world_size) if a else line.saved_state.keys()
    apart = sorted(due ^ line.saved_state.keys())
    if apart:
        which, ranks = "without" if apart[0] in due else "with", a.world_size if a else 0
        return f"{which} a digest of {apart[0][:40]!r}, {plural(ranks, 'rank')} saved it"
    wrong = [name for name, sha256 in line.saved_state.items() if not is_digest(sha256)]
    return f"with a digest of {wrong[0]} that is none" if wrong else ""


def _refused(case: Case, line: CheckpointLine) -> bool:
    """Whether a later attempt refused the checkpoint of the line: nothing went on from it."""
    return any(
        a.attempt > line.attempt and refused.path == line.path
        for a in case.attempts
        for refused in a.rejected
    )


def differing_saves(case: Case, reference: RunRecords, theirs: Lineage, claimed: int) -> str:
    """The first committed state of the first `claimed` steps that differs from what the reference
    committed, or its ranks logged, after the same step, as text; empty if none does.
    """
    others, ours = _saved(reference, theirs), _saved(case.run, case.path)
    doers = {step: done for step in ours if step <= claimed and (done := theirs.of(step))}
    logged = _logged(reference, {(done.attempt, step) for step, done in doers.items()})
    for step, done in sorted(doers.items()):
        saved = ours[step]
        names = _differing(saved, others.get(step, {}))
        due = due_on_ranks(saved)
        for rank, held in logged.get((done.attempt, step), {}).items():
            names += [name for name in _differing_on(rank, due(rank), held) if name not in names]
        configs = (case.run.stored.config, reference.stored.config)
        if len({schedule_after(config, step) for config in configs}) > 1:
            names = [name for name in names if name != "train"]
        if names:
            return f"what was committed of step {step} differs in {', '.join(names)}"
    return ""


def _saved(run: RunRecords, path: Lineage) -> dict[int, dict[str, str]]:
    """By step, the state committed by the attempt that did the step in the committed sequence."""
    return {
        line.global_step: line.saved_state
        for line in _committed(run)
        if line.saved_state
        and (done := path.of(line.global_step)) is not None
        and done.attempt == line.attempt
    }


def _committed(run: RunRecords) -> Iterator[CheckpointLine]:
    return (line for line in checkpoint_events(run) if line.event == "committed")


def _logged(run: RunRecords, saves: set[tuple[int, int]]) -> Logged:
    """By attempt and step (of `saves`), and by rank, the digests that were logged."""
    found: Logged = {}
    for logs in run.attempt_logs:
        steps = {step for attempt, step in saves if attempt == logs.attempt}
        for rank, lines in sorted(logs.ranks.items()):
            for step, components in components_of_lines(lines, steps):
                found.setdefault((logs.attempt, step), {})[rank] = components
    return found


def _differing(ours: dict[str, str], others: dict[str, str]) -> list[str]:
    return [name for name in ours if name in others and ours[name] != others[name]]


def _differing_on(rank: int, due: dict[str, str], held: dict[str, str]) -> list[str]:
    """The components of a rank that were saved otherwise. Buffers are saved from rank 0 only."""
    return [
        name
        for name in RANK_COMPONENTS
        if name in due and (name != "buffers" or rank == 0) and held.get(name) != due[name]
    ]
