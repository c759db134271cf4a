"""The second oracle of an audit: a cold start. A resumed attempt that does what a job without any state does has not used its state."""

from __future__ import annotations

from ecrl_cli.audit.components import BROKEN, COMPONENTS, KEPT, NOT_CHECKED, Finding, Judged, value_of
from ecrl_cli.audit.lineage import Resumed
from ecrl_cli.audit.records import Step

NAME = "cold"
STEPS = 3  # how many a cold start is compared by
PROMISE = "state used"


def state_used(judged: Judged, cold: Judged, reference: Judged | None) -> Finding:
    """No resumed attempt begins as a cold start does. Needs no deterministic job: equal samples or losses are told by themselves."""
    arm, told = judged.arm.name, []
    for begun in judged.path.resumed:
        if not begun.loaded and begun.newest_saved is None:
            continue  # nothing was saved before: a cold start is right
        alike, unlike = _compared(judged, begun, cold, reference)
        if alike:
            said = f"attempt {begun.attempt} began with the {', '.join(alike)} of a cold start: what was saved of that was not used"
            return Finding(PROMISE, BROKEN, said, arm, (begun.newest_saved or 0) + 1)
        if unlike:
            told.append(f"attempt {begun.attempt} differs from a cold start in {', '.join(unlike)}")
    if not told:
        return Finding(PROMISE, NOT_CHECKED, "no attempt that had something to load could be compared with a cold start", arm)
    return Finding(PROMISE, KEPT, "; ".join(told), arm)


def _compared(judged: Judged, begun: Resumed, cold: Judged, reference: Judged | None) -> tuple[list[str], list[str]]:
    """Components that are a cold start's in each of the first steps, though the undisturbed run goes on with others; and those that are not."""
    alike, unlike = [], []
    expected_after = begun.behind or begun.newest_saved or 0
    ours = {process.rank: process.steps for process in judged.arm.attempts[begun.attempt]}
    theirs = {process.rank: process.steps for process in cold.arm.attempts[min(cold.arm.attempts)]}
    for name in COMPONENTS:
        if name in judged.ignored:
            continue
        pairs = [(rank, place, one, other) for rank in ours.keys() & theirs.keys() for place, one, other in _first(ours[rank], theirs[rank], name)]
        if not pairs:
            continue
        if any(one != other for _, _, one, other in pairs):
            unlike.append(name)
        elif _tells(reference, expected_after, pairs, name):
            alike.append(name)
    return alike, unlike


def _first(ours: list[Step], theirs: list[Step], name: str) -> list[tuple[int, object, object]]:
    values = [(value_of(one, name), value_of(other, name)) for one, other in zip(ours[:STEPS], theirs[:STEPS], strict=False)]
    return [(place, one, other) for place, (one, other) in enumerate(values, start=1) if one is not None and other is not None]


def _tells(reference: Judged | None, behind: int, pairs: list[tuple[int, int, object, object]], name: str) -> bool:
    """Whether the undisturbed run has something else there: a constant learning rate, say, tells nothing."""
    for rank, place, _, other in pairs:
        step = reference.path.steps.get(behind + place, {}).get(rank) if reference is not None else None
        due = value_of(step[1], name) if step is not None else None
        if due is not None and due != other:
            return True
    return False
