"""Promise state-consistent: ranks, checkpoints, the configured schedule and the final record agree
on the training state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise

from ecrl_cli.checkpoint.format.canonical_json import digest, is_digest
from ecrl_cli.checkpoint.format.train_document import due_on_ranks, saved_state, tensor_digests
from ecrl_cli.errors import plural, shown
from ecrl_cli.history.lineage import components_of_lines, lines_of, lines_of_step
from ecrl_cli.history.load import AttemptRecords, RunRecords
from ecrl_cli.records.columns import rank_columns
from ecrl_cli.records.events import Attempt, FinalState, RankLine
from ecrl_cli.records.state_digests import (
    MEASURED_STEPS,
    RANK_COMPONENTS,
    DigestInterval,
    RankState,
    digests_configured,
    digests_due,
    recorded_by_rank,
    steps_per_digest,
    worked_out,
)
from ecrl_cli.verify.checkpoint_contents import check_contents
from ecrl_cli.verify.checkpoint_folder import tails_may_be_lost
from ecrl_cli.verify.rank_spans import ROUNDING_S
from ecrl_cli.verify.saved_states import check_saved_states
from ecrl_cli.verify.state_columns import (
    always_updated,
    digests_as_due,
    generators_apart,
    has_step_of,
    paired_digests,
    steps_agreed,
)
from ecrl_cli.verify.state_values import (
    Values,
    differing,
    ends_as_restored,
    equal_on_ranks,
    has_digests,
    values_of,
)
from ecrl_cli.verify.train_state import check_documents, check_settings, learning_rate
from ecrl_cli.verify.verdict import Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case, every_line

PROMISE = "state-consistent"
LEAST_DECAY = 1e-6  # of a weight in one step: float32 keeps relative changes from 6e-8 on
_TENSORS = ("parameters", "buffers", "optimizer")  # what `state_digest` is taken over


def state_consistent(case: Case) -> Finding:
    """Needs no reference: a difference between ranks, or from the configuration, is wrong whatever
    happened to the run.
    """
    notes = FindingBuilder(PROMISE)
    steps = _check_steps(case, notes)
    _check_own_generators(case, notes)
    lines = check_settings(case, notes)
    documents = check_documents(case, notes)
    check_contents(case, notes)
    stored = _check_checkpoints(case, notes)
    committed = check_saved_states(case, notes)
    ended = _check_end(case, notes)
    _check_survivors(case, notes)
    _check_due(case, notes)
    check_state_digests(case, notes)
    _check_updates(case, notes)
    texts = [
        f"ranks agree after {plural(steps, 'step')}" + (" and at the end" if ended else ""),
        f"the learning rate on {plural(lines, 'line')} is the schedule's",
        f"{plural(documents, 'checkpoint holds', 'checkpoints hold')} what the configuration says"
        + (f", {stored} of them what the ranks logged" if stored else ""),
        *([f"{plural(committed, 'save')} committed what the ranks logged"] if committed else []),
    ]
    return notes.finding("; ".join(texts), checked=bool(steps or lines or documents or ended))


def _check_steps(case: Case, notes: FindingBuilder) -> int:
    """Compare ranks in the committed steps; returns after how many steps the digests of two or more
    ranks were compared.
    """
    claimed, by_step = equal_on_ranks(case.run), dict[int, dict[int, Values]]()
    agreed = steps_agreed(case.run, case.path, claimed)
    if agreed is not None:
        return agreed
    for segment in case.path.segments:
        for (step, rank), lines in lines_of(case.run, segment).items():
            by_step.setdefault(step, {})[rank] = {
                name: value for name, value in values_of(lines[0]).items() if name in claimed
            }
    apart = {step: names for step, ranks in sorted(by_step.items()) if (names := _apart(ranks))}
    for step, names in list(apart.items())[:1]:
        found = (
            f"step {step}: ranks {sorted(by_step[step])} do not hold the same state ({len(apart)}"
            " such steps)"
        )
        notes.broken(
            f"{found}: "
            + "; ".join(f"rank {rank} differs in {', '.join(each)}" for rank, each in names.items())
        )
    return sum(
        len([rank for rank, values in ranks.items() if has_digests(values)]) > 1
        for ranks in by_step.values()
    )


def _check_own_generators(case: Case, notes: FindingBuilder) -> None:
    """Each rank draws random numbers of its own: no two have the same generators, neither after a
    step nor right after a restore. Fixed replicas leave them alike on all ranks.
    """
    if case.run.stored.config.elastic.replicas:
        return
    for logs in case.run.attempt_logs:
        held: dict[tuple[int, str], int] = {}
        for rank, step, rng in sorted(_generators(logs)):
            other = held.setdefault((step, rng), rank)
            if other != rank:
                notes.broken(
                    f"ranks {other} and {rank} of attempt {logs.attempt} have the same generators"
                    f" after step {step}: each is to draw numbers of its own"
                )
                return


def _generators(logs: AttemptRecords) -> Iterator[tuple[int, int, str]]:
    """Rank, step and digest of the generators, wherever an attempt recorded them; where all its
    lines differ, only after the steps of which it restored some.
    """
    resumed = {state.global_step for state in logs.restored.values()}
    steps = resumed if generators_apart(logs.ranks) else None
    for rank, lines in logs.ranks.items():
        for step, components in components_of_lines(lines, steps):
            if "rng" in components:
                yield rank, step, components["rng"]
    for rank, restored in logs.restored.items():
        yield rank, restored.global_step, restored.state.rng


def _apart(ranks: dict[int, Values]) -> dict[int, list[str]]:
    """By rank, the names that differ from the lowest rank."""
    first = ranks[min(ranks)]
    return {
        rank: names for rank, values in sorted(ranks.items()) if (names := differing(first, values))
    }


def _check_updates(case: Case, notes: FindingBuilder) -> None:
    """A step changes the parameters: weight decay alone does, whatever the gradients are, where the
    learning rate is not too small for float32. The first step changes the restored ones.

    Not in fp16, where the scaler skips steps, nor without weight decay, where a gradient may be
    zero.
    """
    config = case.run.stored.config
    for a in case.attempts if config.precision != "fp16" else ():
        for rank, lines in sorted(case.run.logs(a.attempt).ranks.items()):
            columns, began = rank_columns(lines), case.run.logs(a.attempt).restored.get(rank)
            restored = began.state.parameters if began else ""
            if columns is not None and always_updated(columns, restored):
                continue
            # the largest learning rate since `before`
            rate = learning_rate(config, a.resumed_from_step)
            before = (a.resumed_from_step, restored) if restored else None
            for line in lines.events:
                held = line.components.get("parameters") if line.components else None
                if (
                    before
                    and held == before[1]
                    and rate * config.optimizer.weight_decay > LEAST_DECAY
                ):
                    who = (
                        f"rank {rank} of attempt {a.attempt} holds the same parameters after step"
                        f" {line.global_step} as after step {before[0]}"
                    )
                    notes.broken(f"{who}: at a learning rate of {rate:g} no update was applied")
                    return
                rate, before = (
                    (line.lr or 0.0, (line.global_step, held))
                    if held
                    else (max(rate, line.lr or 0.0), before)
                )


def _check_due(case: Case, notes: FindingBuilder) -> None:
    """Every digest due by the configuration is on record, and the interval follows from the
    measured times.
    """
    config, interval = case.run.stored.config, case.run.digest_interval
    if not recorded_by_rank(config) or not digests_configured(config):
        return
    if interval and config.state_digests == "auto":
        due = replace(
            worked_out(interval.digest_s, interval.step_s), at_checkpoints=interval.at_checkpoints
        )
        left_out = steps_per_digest(interval.digest_s, interval.step_s) > config.checkpoint.every
        if interval != due or not (interval.at_checkpoints or left_out):
            notes.broken(
                f"state_digests.json has digests logged every {shown(interval.every)} steps, its"
                f" times make that {due.every}"
            )
        interval = due
        ranks = [a.ranks[0] for a in case.run.attempt_logs if 0 in a.ranks]
        if not any(has_step_of(lines, interval.step_s) for lines in ranks):
            lost = tails_may_be_lost(case, len(case.attempts))
            (notes.missing if lost else notes.broken)(
                "state_digests.json rests on a step of rank 0 that no line tells of"
            )
        _check_digest_time(case, interval, notes)
    every = interval if config.state_digests == "auto" else None
    for a in case.attempts:
        due_after = cache(digests_due(config, every, a.resumed_from_step))
        for rank, lines in case.run.logs(a.attempt).ranks.items():
            columns = rank_columns(lines)
            if columns is not None and digests_as_due(columns, due_after):
                continue
            absent = [
                line.global_step
                for line in lines.events
                if line.lr is None
                or (
                    (line.components is None or line.state_digest is None)
                    and due_after(line.global_step)
                )
            ]
            if absent:
                notes.missing(
                    f"attempt {a.attempt} rank {rank}: no digest of the state after step"
                    f" {absent[0]}, where it is due ({len(absent)} such)"
                )


def _check_digest_time(case: Case, interval: DigestInterval, notes: FindingBuilder) -> None:
    """The digests of rank 0's second and third step, of which the shorter was measured, lie between
    the end of their step and the beginning of the next one.
    """
    for a in case.attempts:
        lines = case.run.logs(a.attempt).ranks.get(0)
        first = lines.events[1:4] if lines else ()
        measured = first[: MEASURED_STEPS - 1]
        if not any(line.seconds == interval.step_s for line in measured):
            continue
        gaps = [
            after.at - after.seconds - before.at
            for before, after in pairwise(first)
            if after.global_step == before.global_step + 1
        ]
        if gaps and interval.digest_s > min(gaps) + ROUNDING_S:
            notes.broken(
                f"state_digests.json has a digest that took {interval.digest_s:.6f} s, rank 0 of"
                f" attempt {a.attempt} began its next step {min(gaps):.6f} s after the last"
            )
        return


def _check_checkpoints(case: Case, notes: FindingBuilder) -> int:
    """Each checkpoint holds what the ranks logged after its step; returns how many were
    compared.
    """
    compared = 0
    for c in case.disk:
        committed = case.committed(c)
        if not c.report.ok or c.report.manifest is None or committed is None:
            continue
        logged = {
            rank: line.components
            for rank, lines in case.run.logs(committed.attempt).ranks.items()
            for line in lines_of_step(lines, c.step)
            if line.components is not None
        }
        compared += bool(logged)
        due = due_on_ranks(saved_state(tensor_digests(c.report.manifest), c.train))
        for rank, found in sorted(logged.items()):
            if names := _not_stored(due(rank), rank, found):
                notes.broken(
                    f"{c.path} differs in {', '.join(names)} from what rank {rank} logged after"
                    f" step {c.step}"
                )
    return compared


def _not_stored(stored: dict[str, str], rank: int, found: dict[str, str]) -> list[str]:
    """The components of a rank that differ from what a checkpoint has stored of it. Buffers are
    saved from rank 0 only.
    """
    return differing_components(
        {name: value for name, value in stored.items() if name != "buffers" or rank == 0}, found
    )


def differing_components(due: Mapping[str, str], held: Mapping[str, str]) -> list[str]:
    """The components, in order, that are not as `due`."""
    return [name for name in RANK_COMPONENTS if name in due and held.get(name) != due[name]]


def _check_end(case: Case, notes: FindingBuilder) -> bool:
    """The final state is equal on all ranks, rank 0's matches final.json, and each matches the
    rank's last line.

    Returns whether it is on record.
    """
    last = case.attempts[-1] if case.attempts else None
    final = case.run.logs(last.attempt).final if last else None
    if last is None or final is None:
        return False
    if not final.ranks:
        if recorded_by_rank(case.run.stored.config):
            notes.missing("final.json does not say what each rank ends in")
        return False
    if [state.rank for state in final.ranks] != list(range(last.world_size)):
        notes.broken(
            f"final.json has the end of ranks {[state.rank for state in final.ranks]}, attempt"
            f" {last.attempt} had {plural(last.world_size, 'rank')}"
        )
        return False
    first, claimed = (
        final.ranks[0],
        equal_on_ranks(case.run) | ({"buffers"} if ends_as_restored(case.run) else frozenset()),
    )
    for state in final.ranks:
        if names := [
            name
            for name in RANK_COMPONENTS
            if name in claimed and getattr(state, name) != getattr(first, name)
        ]:
            notes.broken(
                f"the end of rank {state.rank} differs from that of rank 0 in {', '.join(names)}"
            )
    if names := [
        name for name in _TENSORS if getattr(first, name) != getattr(final, f"{name}_digest")
    ]:
        notes.broken(f"final.json names two ends of rank 0, which differ in {', '.join(names)}")
    _check_last_lines(case, last, final, notes)
    _check_last_checkpoint(case, final, notes)
    return True


def _check_last_lines(case: Case, last: Attempt, final: FinalState, notes: FindingBuilder) -> None:
    for state in final.ranks:
        lines = case.run.logs(last.attempt).ranks.get(state.rank)
        line = lines.events[-1] if lines and lines.events else None
        if line is None or line.components is None or line.global_step != final.global_step:
            continue
        if names := [
            name for name in RANK_COMPONENTS if line.components.get(name) != getattr(state, name)
        ]:
            notes.broken(
                f"the end of rank {state.rank} differs in {', '.join(names)} from what it logged"
                f" after step {line.global_step}"
            )


def _check_last_checkpoint(case: Case, final: FinalState, notes: FindingBuilder) -> None:
    for c in case.disk:
        if not c.report.ok or c.report.manifest is None or c.step != final.global_step:
            continue
        due = due_on_ranks(saved_state(tensor_digests(c.report.manifest), c.train))
        for state in final.ranks:
            if names := _not_stored(due(state.rank), state.rank, as_components(state)):
                notes.broken(
                    f"{c.path} differs in {', '.join(names)} from the end of rank {state.rank}"
                )


def as_components(state: RankState) -> dict[str, str]:
    return {name: getattr(state, name) for name in RANK_COMPONENTS}


def _check_survivors(case: Case, notes: FindingBuilder) -> None:
    """A survivor reports the state that it logged after the same step, and that it had before one
    that it dropped: a record of before that was told tells it nowhere.
    """
    reports_of = [lines for a in case.run.attempt_logs for lines in a.survivor_reports.values()]
    reports = [report for lines in reports_of for report in lines.events]
    told = any(report.state_before for report in reports)
    for report in reports if told else ():
        who = f"rank {report.rank} of attempt {report.attempt}"
        if report.dropped and not report.state_before:
            notes.missing(f"{who} does not say which state it had before the step that it dropped")
        elif report.state_before != (report.state_digest if report.dropped else ""):
            notes.broken(
                f"{who} left after step {report.global_step} with another state than it had before"
                f" {'it' if report.dropped else 'a step that it did not drop'}"
            )
    for a in case.run.attempt_logs:
        for rank, own in a.survivor_reports.items():
            lines = a.ranks.get(rank)
            for report in own.events:
                logged = [
                    line.state_digest
                    for line in (lines_of_step(lines, report.finished_step) if lines else ())
                    if line.state_digest
                ]
                if report.state_digest and logged and logged[-1] != report.state_digest:
                    notes.broken(
                        f"rank {rank} of attempt {a.attempt} left with another state than it logged"
                        f" after step {report.finished_step}"
                    )


Parts = tuple[str, ...]


def check_state_digests(case: Case, notes: FindingBuilder) -> None:
    """Equal components have one state digest, and the other way round: in this run's lines and
    restored states, its checkpoints, and the reference.

    A digest cannot be computed from those of the components: both are taken over the tensors.
    """
    if _paired(case):
        return
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
    for parts, state, where in (
        *_of_checkpoints(case),
        *(_of_run(case.reference) if case.reference else ()),
        *_of_run(case.run),
    ):
        before, first = found.setdefault(parts, (state, where))
        held, other = states.setdefault(state, (parts, where))
        if before != state:
            notes.broken(
                f"{where} has the digests by component of {first}, and another digest of the state"
            )
            return
        if held != parts:
            notes.broken(
                f"{where} has the digest of the state of {other}, and other digests by component"
            )
            return


def _paired(case: Case) -> bool:
    """Whether columns show at once that all is as `check_state_digests` has it."""
    runs = [case.run, *([case.reference] if case.reference else [])]
    if any(run.columns is None for run in runs):
        return False
    pairs = {(parts, state) for parts, state, _ in _of_checkpoints(case)}
    for run in runs:
        pairs |= paired_digests((run.columns or {}).values(), _TENSORS)
        pairs |= {(parts, state) for parts, state, _ in _of_restored(run)}
    return len(pairs) == len({parts for parts, _ in pairs}) == len({state for _, state in pairs})


def _wrong(line: RankLine) -> str:
    """Error in the digests of a line; empty if there is none. Missing ones are found where they are
    due.
    """
    if line.components is None or line.state_digest is None:
        return ""
    if line.components.keys() != set(RANK_COMPONENTS):
        return f"digests of {len(line.components)} components, a state has {len(RANK_COMPONENTS)}"
    wrong = [
        name
        for name, each in (*line.components.items(), ("the state", line.state_digest))
        if not is_digest(each)
    ]
    return f"a digest of {wrong[0]} that is none" if wrong else ""


def _of_run(run: RunRecords) -> Iterator[tuple[Parts, str, str]]:
    for attempt, rank, line in every_line(run):
        if (
            line.components is not None
            and line.state_digest is not None
            and all(name in line.components for name in _TENSORS)
        ):
            yield (
                tuple(line.components[name] for name in _TENSORS),
                line.state_digest,
                f"step {line.global_step} of attempt {attempt} rank {rank}",
            )
    yield from _of_restored(run)


def _of_restored(run: RunRecords) -> Iterator[tuple[Parts, str, str]]:
    for logs in run.attempt_logs:
        for rank, restored in sorted(logs.restored.items()):
            parts = tuple(getattr(restored.state, name) for name in _TENSORS)
            yield (
                parts,
                restored.state_digest,
                f"restored_rank{rank}.json of attempt {logs.attempt}",
            )


def _of_checkpoints(case: Case) -> Iterator[tuple[Parts, str, str]]:
    for c in case.disk:
        if c.report.ok and c.report.manifest:
            tensors = tensor_digests(c.report.manifest)
            saved = saved_state(tensors, {})
            held = digest(
                [
                    [name, sha]
                    for name, sha in sorted(tensors.items())
                    if not name.startswith("rng.")
                ]
            )
            yield tuple(saved[name] for name in _TENSORS), held, c.path
