"""Promise failures-once: planned faults fired where planned, each once, with the effect of their
kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ecrl_cli.config.elastic import may_shrink
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.errors import plural
from ecrl_cli.failures.fault_kind import how_it_ended, recorded_kind
from ecrl_cli.failures.plan import plan
from ecrl_cli.records.events import Attempt, InjectedFault, PlannedFailure
from ecrl_cli.records.survivor_records import SURVIVED, SURVIVORS
from ecrl_cli.verify.fault_effects import check_effect, check_writer_deaths, ends_attempt
from ecrl_cli.verify.fault_instants import INSIDE, check_armed, check_files, check_instant
from ecrl_cli.verify.survivor_reports import dead
from ecrl_cli.verify.verdict import Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case

PROMISE = "failures-once"
# how far a planned wall time may be passed without firing: while an attempt starts there is no
# target yet
_SLACK_S = 1.0


def failures_once(case: Case) -> Finding:
    """The stored plan is the configuration's; every fired entry belongs to it and ended exactly the
    attempt that it names.
    """
    notes = FindingBuilder(PROMISE)
    planned = plan(case.run.stored.config)
    if case.run.plan is None:
        notes.missing("failures.json is missing")
    elif case.run.plan != planned:
        notes.broken("failures.json is not the plan of this configuration")
    by_index = {entry.index: entry for entry in planned}
    for index, count in Counter(fired.index for fired in case.run.fired).items():
        if count > 1:
            notes.broken(f"entry {index} fired {count} times")
    for fired in case.run.fired:
        entry = by_index.get(fired.index)
        if entry is None or (entry.kind, entry.rank, entry.global_step) != (
            fired.kind,
            fired.rank,
            fired.global_step,
        ):
            notes.broken(
                f"entry {fired.index} fired ({fired.kind}, rank {fired.rank}, step"
                f" {fired.global_step}), which was not planned"
            )
        hit = entry or PlannedFailure(fired.index, fired.kind, fired.rank, fired.global_step)
        check_effect(case, fired, hit, notes)
        check_instant(case, fired, hit, notes)
    check_writer_deaths(case, notes)
    _check_repeats(case, by_index, notes)
    unfired = {
        entry.index: entry
        for entry in planned
        if entry.index not in {fired.index for fired in case.run.fired}
    }
    rules = (_without_victim, _not_reached, _had_no_target, _never_chosen, _dropped_with_its_step)
    excused = {
        index: words for rule in rules for index, words in rule(case, unfired.values()).items()
    }
    if (owed := sorted(unfired.keys() - excused.keys())) and case.completed:
        notes.broken(f"the run completed and entries {owed} never fired")
    check_armed(case, planned, notes)
    check_files(case, notes)
    kept = (
        f"{len(case.run.fired)} of {len(planned)} planned failures fired, each once"
        if planned
        else "no failure was planned, and none fired"
    )
    return notes.finding(
        kept, [*excused.values(), *_unplanned(case, by_index)], checked=bool(planned)
    )


def _not_reached(case: Case, unfired: Iterable[PlannedFailure]) -> dict[int, str]:
    """Entries that never fired because the run ended before their wall time: by index, with a
    description.
    """
    waiting = [entry for entry in unfired if entry.moment == "wall"]
    if not waiting or case.run.supervisor is None:
        return {}
    lived = case.timeline.wall_s
    reason = f"did not fire: the run was over after {lived:.3f} s of supervised time"
    return {
        entry.index: f"entry {entry.index} (due after {entry.seconds:.3f} s) {reason}"
        for entry in waiting
        if entry.seconds > lived - _SLACK_S
    }


def _had_no_target(case: Case, unfired: Iterable[PlannedFailure]) -> dict[int, str]:
    """Entries that never fired because their rank had died by their wall time and no later attempt
    replaced it: by index, with a description.
    """
    if not recovery_of(case.run.stored.config).shrinks:
        return {}
    windows, reasons = case.timeline.windows, {}
    for entry in (each for each in unfired if each.moment == "wall"):
        late = [a for a in case.attempts if _lived_until(a, windows) > entry.seconds + _SLACK_S]
        if late and all(a.world_size <= entry.rank for a in late):
            words = (
                f"rank {entry.rank} had died and nobody took its place, {late[0].world_size} ranks"
                f" were left after {entry.seconds:.3f} s"
            )
            reasons[entry.index] = f"entry {entry.index} did not fire: {words}"
    return reasons


def _lived_until(a: Attempt, windows: tuple[tuple[float, float], ...]) -> float:
    """Seconds of supervised time at the attempt's end."""
    began, ended = windows[a.session]
    return (
        sum(end - start for start, end in windows[: a.session])
        + (ended if a.ended_at is None else a.ended_at)
        - began
    )


def _never_chosen(case: Case, unfired: Iterable[PlannedFailure]) -> dict[int, str]:
    """Entries that damage checkpoints and never fired for lack of an opportunity: by index, with a
    description.

    Either no attempt after their step chose a checkpoint (survivors continued from memory), or
    there was no other one to fall back to.
    """
    reasons = {}
    for entry in (each for each in unfired if recorded_kind(each.kind).needs_checkpoints):
        behind = [
            a
            for n, a in enumerate(case.attempts)
            if any((b.last_step or 0) >= entry.global_step for b in case.attempts[:n])
        ]
        chose = [a for a in behind if a.memory != SURVIVORS]
        if behind and not chose:
            reasons[entry.index] = (
                f"entry {entry.index} did not fire: no attempt after step {entry.global_step} chose"
                " a checkpoint"
            )
        elif chose and all(
            len(case.checkpoints.left[a.attempt]) < recorded_kind(entry.kind).needs_checkpoints
            for a in chose
        ):
            reasons[entry.index] = (
                f"entry {entry.index} did not fire: there was no other checkpoint to fall back to"
                f" after step {entry.global_step}"
            )
    return reasons


def _without_victim(case: Case, unfired: Iterable[PlannedFailure]) -> dict[int, str]:
    """Entries that never fired because their rank was missing: by index, with a description.

    The rank was lost with a node, or died and was not replaced, when their step was committed, and
    had not passed that step before.
    """
    config = case.run.stored.config
    if not may_shrink(config) and not recovery_of(config).shrinks:
        return {}
    why, reasons = (
        ("gone with a node" if may_shrink(config) else "died and nobody took its place"),
        {},
    )
    for entry in unfired:
        done, step = case.path.of(entry.global_step), entry.global_step
        passed = any(a.world_size > entry.rank and (a.last_step or 0) > step for a in case.attempts)
        if (
            done
            and not passed
            and (entry.rank >= done.world_size or _died_in(case, done.attempt, entry))
        ):
            reasons[entry.index] = (
                f"entry {entry.index} did not fire: rank {entry.rank} had {why},"
                f" {plural(done.world_size, 'rank')} did step {step}"
            )
    return reasons


def _dropped_with_its_step(case: Case, unfired: Iterable[PlannedFailure]) -> dict[int, str]:
    """Entries inside a step that never fired because survivors dropped it before: by index, with a
    description.
    """
    dropped = {
        report.global_step
        for segment in case.path.segments
        if (report := case.run.logs(segment.attempt).survivor_report)
        and report.dropped
        and report.global_step in segment.steps()
    }
    return {
        entry.index: (
            f"entry {entry.index} did not fire: survivors of another failure dropped step"
            f" {entry.global_step}"
        )
        for entry in unfired
        if entry.moment in INSIDE and entry.global_step in dropped
    }


def _died_in(case: Case, attempt: int, entry: PlannedFailure) -> bool:
    """Whether the entry's rank was dead when the others finished the entry's step in `attempt`."""
    a, report = case.attempt(attempt), case.run.logs(attempt).survivor_report
    return (
        a is not None
        and report is not None
        and report.global_step == entry.global_step
        and entry.rank in dead(a, report)
    )


def _check_repeats(case: Case, by_index: dict[int, PlannedFailure], notes: FindingBuilder) -> None:
    """No attempt died again of a fault that had fired in another attempt."""
    hit = _ended_by_plan(case, by_index)
    for a in case.attempts:
        for fired in case.run.fired:
            entry = by_index.get(fired.index)
            again = entry is not None and entry.moment == "boundary" and _looks_like(case, a, fired)
            if fired.attempt != a.attempt and a.attempt not in hit and again:
                notes.broken(
                    f"entry {fired.index} fired in attempt {fired.attempt} and attempt {a.attempt}"
                    " died of it again"
                )


def _ended_by_plan(case: Case, by_index: dict[int, PlannedFailure]) -> set[int]:
    """The attempts that a planned fault was to end."""
    return {
        f.attempt
        for f in case.run.fired
        if f.index not in by_index or ends_attempt(by_index[f.index], case)
    }


def _looks_like(case: Case, a: Attempt, fired: InjectedFault) -> bool:
    """Whether `a` ended the way `fired` ends an attempt: the same specific death, of the same rank
    after the same step.
    """
    lines = case.run.logs(a.attempt).ranks.get(fired.rank)
    behind = lines.events[-1].global_step if lines and lines.events else None
    kind = recorded_kind(fired.kind)
    same_death = kind.death_tells and (a.exit_code, a.signal) == kind.death and a.rank == fired.rank
    return a.outcome in ("died", SURVIVED) and same_death and behind == fired.global_step


def _unplanned(case: Case, by_index: dict[int, PlannedFailure]) -> list[str]:
    """Unplanned deaths: no broken promise, but reported as evidence."""
    hit = _ended_by_plan(case, by_index)
    ends = {
        "died": "died unplanned",
        "hung": "hung unplanned",
        SURVIVED: "outlived an unplanned death",
    }
    return [
        f"attempt {a.attempt} {ends[a.outcome]}: {how_it_ended(a)}"
        for a in case.attempts
        if a.outcome in ends and a.attempt not in hit
    ]
