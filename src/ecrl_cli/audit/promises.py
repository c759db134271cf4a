"""The recovery promises of a job besides those about data (samples.py): kept, broken, unknown or not checked, with evidence."""

from __future__ import annotations

from collections.abc import Iterator

from ecrl_cli.audit.components import (
    BROKEN,
    COMPONENTS,
    KEPT,
    MEANING,
    NOT_CHECKED,
    SHOWN,
    UNKNOWN,
    Finding,
    Judged,
    compare,
    differing,
    unrecorded,
    unseeded,
    value_of,
    walk,
)
from ecrl_cli.audit.lineage import Resumed
from ecrl_cli.audit.progress import how_it_ended
from ecrl_cli.audit.records import Step, same_number
from ecrl_cli.errors import plural


def deterministic(references: list[Judged]) -> Finding:
    """Undisturbed runs are equal; otherwise a difference of a run with faults means nothing."""
    promise = "deterministic"
    if len(references) < 2:
        return Finding(promise, NOT_CHECKED, "one undisturbed run was recorded; two show whether the job is deterministic")
    first, *others = references
    left_out = unseeded(references)
    for other in others:
        differs = compare(other.path, first.path, left_out)
        if differs:
            step = min(differs)
            usual = "usual causes: threads, cuDNN's choice of kernels, an unseeded sampler or worker, time in the data"
            said = f"two undisturbed runs differ from step {step} on, first in {differs[step][0]}: the effect of a failure cannot be told from that"
            return Finding(promise, UNKNOWN, said, other.arm.name, step, (usual,))
        if first.path.last != other.path.last:
            said = f"two undisturbed runs did {first.path.last} and {plural(other.path.last, 'step')}"
            return Finding(promise, UNKNOWN, said, other.arm.name)
    evidence = tuple(f"the {name} is not seeded alike: it is not compared" for name in sorted(left_out))
    return Finding(promise, KEPT, f"{len(references)} undisturbed runs are equal in all {plural(first.path.last, 'step')}", evidence=evidence)


def restored(judged: Judged, reference: Judged | None) -> Iterator[Finding]:
    """The state that each resumed attempt began with, component by component."""
    for begun in judged.path.resumed:
        yield from _restored(judged, begun, reference)


def _restored(judged: Judged, begun: Resumed, reference: Judged | None) -> Iterator[Finding]:
    arm, who = judged.arm.name, f"attempt {begun.attempt}"
    starts = {process.rank: process.start for process in judged.arm.attempts[begun.attempt] if process.start is not None}
    if not starts:  # no step recorded: `same_end` and `progress` judge that
        return
    if begun.proof != "content" and not begun.comparable:
        said = "no digest of the state after the newest checkpoint is on record (audit.digests)"
        yield Finding("restored: parameters", NOT_CHECKED, said, arm)
        return
    if begun.after is None or begun.proof == "load":
        said = f"the parameters before the first step of {who} are those of no earlier step"
        yield Finding("restored: parameters", BROKEN, f"{said}: they were not restored as they were", arm, begun.newest_saved)
        return
    next_step = begun.after + 1
    if begun.strays:
        ranks = ", ".join(map(str, begun.strays))
        said = f"rank {ranks} began {who} with parameters that no rank had after step {begun.after}: they were not restored"
        yield Finding("restored: parameters", BROKEN, said, arm, next_step)
        return
    yield Finding("restored: parameters", KEPT, f"{who} began with the parameters of step {begun.after}", arm)
    if begun.entries is not None and begun.after:
        if begun.entries == 0 and _had_state(judged, begun):
            said = f"the optimizer's state before step {next_step} is that of no earlier step (0 entries): it was not loaded"
            yield Finding("restored: optimizer", BROKEN, said, arm, next_step)
        elif begun.optimizer_after == begun.after or (begun.optimizer_after is not None and not _had_state(judged, begun)):
            yield Finding("restored: optimizer", KEPT, f"{who} began with the optimizer's state of step {begun.after}", arm)
        else:
            where = f"that of step {begun.optimizer_after}" if begun.optimizer_after is not None else "that of no earlier step"
            said = f"the optimizer's state before step {next_step} is {where}, the parameters are those of step {begun.after}"
            yield Finding("restored: optimizer", BROKEN, said, arm, next_step)
    yield from _against(judged, begun, reference, starts)


def _had_state(judged: Judged, begun: Resumed) -> bool:
    """Whether the optimizer had any state after the step resumed from: plain SGD has none."""
    first = [process.start for process in judged.arm.attempts[min(judged.arm.attempts)] if process.start is not None]
    ranks = judged.path.steps.get(begun.after or 0, {})
    behind = [step.digests.get("optimizer") for _, step in ranks.values()]
    return bool(first and behind) and any(digest and digest != first[0].get("optimizer") for digest in behind)


def _against(judged: Judged, begun: Resumed, reference: Judged | None, starts: dict[int, dict[str, object]]) -> Iterator[Finding]:
    """Settings, generators and scaler at the first step's update, compared with the same step of the undisturbed run."""
    arm, number = judged.arm.name, (begun.after or 0) + 1
    if begun.attempt in judged.path.resized:
        said = f"attempt {begun.attempt} had another number of processes: generators are a rank's own, and a schedule may depend on their number"
        yield Finding("restored: generators", NOT_CHECKED, said, arm)
        return
    due = reference.path.steps.get(number, {}) if reference is not None else {}
    ours = judged.path.steps.get(number, {})
    for component, name in (("schedule and settings", "settings"), ("generators", "rng")):
        pairs = [(rank, start.get(name), due[rank][1].digests.get(name)) for rank, start in starts.items() if rank in due]
        pairs = [pair for pair in pairs if pair[1] and pair[2]]
        wrong = [rank for rank, one, other in pairs if one != other]
        if name == "rng" and wrong and _samples_differ(ours, due):
            continue  # other samples may draw a different number of times: the data position is the finding
        if wrong:
            key = "settings" if name == "settings" else "generators"
            rates = f"lr {[*starts[wrong[0]].get('lr', [])]} for {[*due[wrong[0]][1].lr]}" if name == "settings" else ""  # type: ignore[misc]
            said = f"before step {number}, rank {', '.join(map(str, wrong))}: {MEANING[key]}"
            yield Finding(f"restored: {component}", BROKEN, said, arm, number, (rates,) if rates else ())
        elif pairs:
            yield Finding(f"restored: {component}", KEPT, f"attempt {begun.attempt} had those of the undisturbed run before step {number}", arm)
    pairs = [(rank, ours[rank][1].digests.get("buffers"), due[rank][1].digests.get("buffers")) for rank in ours.keys() & due.keys()]
    pairs = [pair for pair in pairs if pair[1] and pair[2]]
    if pairs and not _samples_differ(ours, due):  # other samples leave other running statistics
        wrong = [rank for rank, one, other in pairs if one != other]
        said = f"after step {number}, rank {', '.join(map(str, wrong))}: {MEANING['buffers']}" if wrong else "they are those of the undisturbed run"
        yield Finding("restored: buffers", BROKEN if wrong else KEPT, said, arm, number if wrong else None)
    scales = [(rank, ours[rank][1].scale, due[rank][1].scale) for rank in ours.keys() & due.keys()]
    if any(one is not None or other is not None for _, one, other in scales):
        wrong = [rank for rank, one, other in scales if not same_number(one, other)]
        said = f"in step {number}, rank {', '.join(map(str, wrong))}: {MEANING['scale']}" if wrong else "the scale is that of the undisturbed run"
        yield Finding("restored: scaler", BROKEN if wrong else KEPT, said, arm, number if wrong else None)


def _samples_differ(ours: dict[int, tuple[int, Step]], due: dict[int, tuple[int, Step]]) -> bool:
    return any(ours[rank][1].samples != due[rank][1].samples for rank in ours.keys() & due.keys())


def same_trajectory(judged: Judged, reference: Judged | None, stable: bool) -> Finding:
    """Every step equals the undisturbed run's; repeated steps equal their first pass, which needs no reference."""
    promise, arm = "same trajectory", judged.arm.name
    for number, rank, attempt, before, after in sorted(judged.path.done_again, key=lambda entry: entry[:2]):
        names = tuple(name for name in differing(before, after) if name not in judged.ignored)
        if names and stable:
            said = f"step {number} was done twice and differs in {names[0]} (rank {rank}, attempt {attempt}): {MEANING[names[0]]}"
            return Finding(promise, BROKEN, said, arm, number, (f"differs in {', '.join(names)}",))
    if reference is None:
        return Finding(promise, NOT_CHECKED, "no undisturbed run to compare with", arm)
    if not stable:
        return Finding(promise, UNKNOWN, "the job is not deterministic: a difference would mean nothing", arm)
    if judged.differs:
        step = min(judged.differs)
        names = judged.differs[step]
        return Finding(
            promise, BROKEN, f"differs from step {step} on, first in {names[0]}: {MEANING[names[0]]}", arm, step, (f"differs in {', '.join(names)}",)
        )
    gap = unrecorded(judged, reference, tuple(name for name in COMPONENTS if name not in judged.ignored))
    if gap:
        return Finding(promise, UNKNOWN, gap, arm)
    if judged.path.resized:
        said = "another number of processes adds up in another order: only the steps of the first number were compared"
        return Finding(promise, NOT_CHECKED, said, arm)
    compared = [value for _, _, step in walk(judged.path) for value in (value_of(step, "loss"), value_of(step, "parameters")) if value]
    if not compared:
        return Finding(promise, NOT_CHECKED, "neither losses nor digests are on record", arm)
    return Finding(promise, KEPT, f"all {plural(judged.path.last, 'step is', 'steps are')} bit for bit those of the undisturbed run", arm)


def right_checkpoint(judged: Judged) -> Finding:
    """Each attempt resumed from the newest checkpoint that was complete when the previous attempt died."""
    promise, arm = "right checkpoint", judged.arm.name
    known = [begun for begun in judged.path.resumed if begun.newest_saved is not None and begun.after is not None]
    if not known:
        return Finding(promise, NOT_CHECKED, "no finished checkpoint is on record before a death", arm)
    for begun in known:
        behind, newest = begun.after or 0, begun.newest_saved or 0
        if behind < newest:
            said = f"attempt {begun.attempt} went on after step {behind}, and a checkpoint of step {newest} had been finished"
            return Finding(promise, BROKEN, said, arm, newest, tuple(f"read {path}" for path in begun.loaded[:SHOWN]))
    return Finding(
        promise, KEPT, "each attempt went on from the newest finished checkpoint: " + ", ".join(f"step {begun.after}" for begun in known), arm
    )


def same_end(judged: Judged, reference: Judged | None, stable: bool) -> Finding:
    """The same number of steps and the same final state as the undisturbed run."""
    promise, arm = "same end", judged.arm.name
    last = judged.arm.launches[-1] if judged.arm.launches else None
    if last is not None and last.exit_code != 0:
        return Finding(promise, BROKEN, f"the job did not come to its end: attempt {last.attempt} ended with {how_it_ended(judged.arm, last)}", arm)
    if reference is None:
        return Finding(promise, NOT_CHECKED, "no undisturbed run to compare with", arm)
    if judged.path.resized:
        same = judged.path.last == reference.path.last
        theirs = "" if same else f", the undisturbed run at step {reference.path.last}"
        said = f"ended at step {judged.path.last} with another number of processes{theirs}"
        return Finding(promise, KEPT if same else NOT_CHECKED, said, arm)
    if judged.path.last != reference.path.last:
        return Finding(promise, BROKEN, f"ended at step {judged.path.last}, the undisturbed run at step {reference.path.last}", arm, judged.path.last)
    if not stable:
        return Finding(promise, UNKNOWN, "the job is not deterministic: its end cannot be compared", arm)
    names = judged.differs.get(judged.path.last, ())
    if names:
        return Finding(promise, BROKEN, f"the last step differs in {', '.join(names)}", arm, judged.path.last)
    return Finding(promise, KEPT, f"ended at step {judged.path.last} in the state of the undisturbed run", arm)


# The second oracle of an audit: a cold start. A resumed attempt that does what a job without any state does has not used its state.
COLD = "cold"
COLD_STEPS = 3  # how many a cold start is compared by
_STATE_USED = "state used"


def state_used(judged: Judged, cold: Judged, reference: Judged | None) -> Finding:
    """No resumed attempt begins as a cold start does. The job need not be deterministic: equal samples or losses are evidence enough."""
    arm, told = judged.arm.name, []
    for begun in judged.path.resumed:
        if not begun.loaded and begun.newest_saved is None:
            continue  # nothing was saved before: a cold start is right
        alike, unlike = _compared(judged, begun, cold, reference)
        if alike:
            said = f"attempt {begun.attempt} began with the {', '.join(alike)} of a cold start: what was saved of that was not used"
            return Finding(_STATE_USED, BROKEN, said, arm, (begun.newest_saved or 0) + 1)
        if unlike:
            told.append(f"attempt {begun.attempt} differs from a cold start in {', '.join(unlike)}")
    if not told:
        return Finding(_STATE_USED, NOT_CHECKED, "no attempt that had something to load could be compared with a cold start", arm)
    return Finding(_STATE_USED, KEPT, "; ".join(told), arm)


def _compared(judged: Judged, begun: Resumed, cold: Judged, reference: Judged | None) -> tuple[list[str], list[str]]:
    """The components that equal a cold start's in each of the first steps although the undisturbed run's differ there; and those that do not."""
    alike, unlike = [], []
    expected_after = begun.after or begun.newest_saved or 0
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
    values = [(value_of(one, name), value_of(other, name)) for one, other in zip(ours[:COLD_STEPS], theirs[:COLD_STEPS], strict=False)]
    return [(place, one, other) for place, (one, other) in enumerate(values, start=1) if one is not None and other is not None]


def _tells(reference: Judged | None, behind: int, pairs: list[tuple[int, int, object, object]], name: str) -> bool:
    """Whether the value in the cold start differs from that of the undisturbed run at the same step. Where it does not (a constant learning
    rate), equal values prove no restore.
    """
    for rank, place, _, other in pairs:
        step = reference.path.steps.get(behind + place, {}).get(rank) if reference is not None else None
        due = value_of(step[1], name) if step is not None else None
        if due is not None and due != other:
            return True
    return False
