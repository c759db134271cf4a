"""The plan struck where it says, each entry once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ecrl_cli.config.seats import may_shrink
from ecrl_cli.failures.plan import plan
from ecrl_cli.records.events import Attempt, Fired, PlannedFailure
from ecrl_cli.verify.case import Case
from ecrl_cli.verify.verdict import Finding, Notes

PROMISE = "failures-once"
# How the victim of a kind ends: (exit code, signal).
_DEATHS = {"exit": (137, None), "kill": (None, 9)}


def failures_once(case: Case) -> Finding:
    """The stored plan is the configuration's; every fired entry is one of it and brought down the attempt it names, no other."""
    notes = Notes(PROMISE)
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
        if entry is None or (entry.kind, entry.rank, entry.global_step) != (fired.kind, fired.rank, fired.global_step):
            notes.broken(f"entry {fired.index} fired ({fired.kind}, rank {fired.rank}, step {fired.global_step}), which was not planned")
        _check_blow(case, fired, notes)
    _check_repeats(case, notes)
    unfired = {entry.index: entry for entry in planned if entry.index not in {fired.index for fired in case.run.fired}}
    excused = _without_victim(case, unfired.values())
    if (owed := sorted(unfired.keys() - excused.keys())) and case.completed:
        notes.broken(f"the run completed and entries {owed} never fired")
    kept = f"{len(case.run.fired)} of {len(planned)} planned failures fired, each once"
    return notes.finding(kept, [*excused.values(), *_unplanned(case)])


def _without_victim(case: Case, unfired: Iterable[PlannedFailure]) -> dict[int, str]:
    """Of the entries that never fired, by index and in words, those whose rank had gone with a lost node when their step was committed,
    and had not passed that step before."""
    if not may_shrink(case.run.stored.config):
        return {}
    told = {}
    for entry in unfired:
        done, step = case.path.of(entry.global_step), entry.global_step
        passed = any(a.world_size > entry.rank and (a.last_step or 0) > step for a in case.attempts)
        if done and entry.rank >= done.world_size and not passed:
            told[entry.index] = f"entry {entry.index} did not fire: rank {entry.rank} had gone with a node, {done.world_size} ranks did step {step}"
    return told


def _check_blow(case: Case, fired: Fired, notes: Notes) -> None:
    """The attempt died of it: the right rank, the right way, behind the right step."""
    a, who = case.attempt(fired.attempt), f"entry {fired.index}"
    if a is None:
        notes.broken(f"{who} fired in attempt {fired.attempt}, which supervisor.json does not know")
        return
    if a.outcome in ("completed", "resized"):
        notes.broken(f"{who} fired in attempt {a.attempt}, which {'completed' if a.outcome == 'completed' else 'ended well to be resized'}")
    seen = a.exit_code is not None or a.signal is not None  # nobody saw it where the supervisor was killed first
    if a.outcome == "died" and seen and ((a.exit_code, a.signal) != _DEATHS.get(fired.kind) or a.rank not in (fired.rank, None)):
        notes.broken(f"{who} ({fired.kind} of rank {fired.rank}) is not how attempt {a.attempt} died: {_death(a)}")
    lines = case.run.logs(a.attempt).ranks.get(fired.rank)
    if lines is None or not lines.events:
        if a.resumed_from_step == fired.global_step:
            return  # it stood behind that step from the start
        notes.missing(f"{who} fired in attempt {a.attempt} and rank {fired.rank} left no log")
    elif lines.events[-1].global_step > fired.global_step:
        notes.broken(f"{who} fired behind step {fired.global_step}, rank {fired.rank} went on to step {lines.events[-1].global_step}")
    elif lines.events[-1].global_step < fired.global_step:
        notes.missing(f"{who} fired behind step {fired.global_step}, the log of rank {fired.rank} ends at step {lines.events[-1].global_step}")


def _check_repeats(case: Case, notes: Notes) -> None:
    """No attempt was armed with what had fired, and none died again of it."""
    for a in case.attempts:
        order = case.run.logs(a.attempt).order
        for fired in case.run.fired:
            if fired.attempt < a.attempt and order and fired.index in {entry.index for entry in order.pending}:
                notes.broken(f"entry {fired.index} fired in attempt {fired.attempt} and attempt {a.attempt} was armed with it again")
            if fired.attempt != a.attempt and a.attempt not in _struck(case) and _looks_like(case, a, fired):
                notes.broken(f"entry {fired.index} fired in attempt {fired.attempt} and attempt {a.attempt} died of it again")


def _struck(case: Case) -> set[int]:
    return {fired.attempt for fired in case.run.fired}


def _looks_like(case: Case, a: Attempt, fired: Fired) -> bool:
    """Whether `a` ended as `fired` ends an attempt: the same death of the same rank behind the same step."""
    lines = case.run.logs(a.attempt).ranks.get(fired.rank)
    behind = lines.events[-1].global_step if lines and lines.events else None
    same_death = (a.exit_code, a.signal) == _DEATHS.get(fired.kind) and a.rank == fired.rank
    return a.outcome == "died" and same_death and behind == fired.global_step


def _unplanned(case: Case) -> list[str]:
    """Deaths that nobody planned are no broken promise; they are told."""
    return [f"attempt {a.attempt} died unplanned: {_death(a)}" for a in case.attempts if a.outcome == "died" and a.attempt not in _struck(case)]


def _death(a: Attempt) -> str:
    return f"rank {a.rank}, exit code {a.exit_code}, signal {a.signal}"
