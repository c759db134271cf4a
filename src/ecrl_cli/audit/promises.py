"""The recovery promises of a job besides those about data (samples.py): kept, broken, unknown or
not checked, with evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from ecrl_cli.audit.causes import cause_of
from ecrl_cli.audit.components import (
    BROKEN,
    COMPONENTS,
    KEPT,
    NOT_CHECKED,
    SHOWN,
    UNKNOWN,
    ArmFinding,
    Judged,
    differing,
    steps_apart,
    unequal,
    unrecorded,
    value_of,
    walk,
)
from ecrl_cli.audit.determinism import Determinism, distance
from ecrl_cli.audit.lineage import Resumed
from ecrl_cli.audit.progress import how_it_ended
from ecrl_cli.audit.records import Arm, Process
from ecrl_cli.audit.steps import OptimizerState, Step
from ecrl_cli.errors import plural


def same_trajectory(judged: Judged, reference: Judged | None, steady: Determinism) -> ArmFinding:
    """Every step equals the undisturbed run's; repeated steps equal their first pass, which needs
    no reference.
    """
    promise, arm = "same trajectory", judged.arm.name
    apart: list[ArmFinding] = []
    # else what a killed attempt had done otherwise is gone
    if steady.exact and not follows_exactly(judged, reference, steady):
        apart += _done_otherwise(judged)
    if reference is not None and steady.exact and judged.differs:
        apart.append(_left(judged, reference))
    if apart:  # of two at one step the first needs no reference
        return min(apart, key=lambda finding: finding.step or 0)
    if reference is None:
        return ArmFinding(promise, NOT_CHECKED, "no undisturbed run to compare with", arm)
    if not steady.exact:
        return ArmFinding(promise, UNKNOWN, _undecided(judged, reference, steady), arm)
    gap = unrecorded(
        judged, reference, tuple(name for name in COMPONENTS if name not in judged.ignored)
    )
    if gap:
        return ArmFinding(promise, UNKNOWN, gap, arm)
    if judged.path.resized:
        said = (
            "another number of processes adds up in another order: only the steps of the first"
            " number were compared"
        )
        return ArmFinding(promise, NOT_CHECKED, said, arm)
    compared = [
        value
        for _, _, step in walk(judged.path)
        for value in (value_of(step, "loss"), value_of(step, "parameters"))
        if value
    ]
    if not compared:
        return ArmFinding(promise, NOT_CHECKED, "neither losses nor digests are on record", arm)
    further = judged.path.last > reference.path.last
    steps = plural(min(judged.path.last, reference.path.last), "step is", "steps are")
    said = f"{'the first' if further else 'all'} {steps} bit for bit those of the undisturbed run"
    said += ", which ended there" if further else ""
    return ArmFinding(promise, KEPT, said, arm)


def with_savers(
    findings: list[ArmFinding], arms: Sequence[Judged], reference: Judged | None
) -> list[ArmFinding]:
    """`findings`, those of broken trajectories with the sentence of `_saved_by_a_restarted`."""
    sentence = _saved_by_a_restarted(arms, reference)
    return [
        replace(finding, evidence=(*finding.evidence, sentence))
        if sentence and finding.promise == "same trajectory" and finding.status == BROKEN
        else finding
        for finding in findings
    ]


def _saved_by_a_restarted(arms: Sequence[Judged], reference: Judged | None) -> str:
    """A sentence where every attempt that left the undisturbed run did so in its first step, from
    what a restarted attempt had saved to its end, and one that went on from a first attempt's save
    did not leave it; else empty.
    """
    exact, wrong = "", ""
    if reference is None:
        return ""
    for judged in arms:
        path, apart = judged.path, steps_apart(judged, reference)
        for begun in path.resumed:
            after, done = begun.after or 0, judged.arm.attempts[begun.attempt]
            savers = [
                number
                for number, processes in judged.arm.attempts.items()
                if number < begun.attempt
                and any(
                    after == path.number_of(step, number) for p in processes for step in p.steps
                )
            ]
            if not savers or not any(process.steps for process in done):
                continue
            who, by = f"attempt {begun.attempt} of {judged.arm.name}", max(savers)
            if left := apart[begun.attempt]:
                if not path.offsets[by] or min(left) > after + 1 or begun.early:
                    return ""
                wrong = wrong or who
                break  # what comes after it is wrong too
            exact = exact or ("" if path.offsets[by] else who)
    if not (exact and wrong):
        return ""
    return (
        f"{exact} went on from what the first attempt had saved, and was right; {wrong} from what a"
        " restarted one had saved: look at what is saved after a restart"
    )


def _done_otherwise(judged: Judged) -> Iterator[ArmFinding]:
    """The first step that was done twice and not alike; of its ranks, that in which the cause
    shows: another rank's gradients are in all updates. None if only the undisturbed run shows it:
    a rank may have died before its first pass was on record.
    """
    apart = []
    for number, rank, attempt, before, after in judged.path.done_again:
        first = judged.path.is_first(number, attempt)
        names = tuple(
            name for name in differing(after, before, first) if name not in judged.ignored
        )
        if names:
            place = (number, COMPONENTS.index(names[0]), rank, attempt)
            apart.append((place, names, before, after))
    if apart:
        (number, earliest, rank, attempt), names, before, after = min(apart, key=lambda one: one[0])
        if COMPONENTS.index(judged.differs.get(number, names)[0]) < earliest:
            return
        cause = cause_of(judged, number, attempt, before, after, names)
        said = (
            f"step {number} was done twice and differs in {names[0]} (rank {rank}, attempt"
            f" {attempt}): {cause}"
        )
        evidence = (f"differs in {', '.join(names)}",)
        yield ArmFinding("same trajectory", BROKEN, said, judged.arm.name, number, evidence)


def _left(judged: Judged, reference: Judged) -> ArmFinding:
    """The first step that is not the undisturbed run's."""
    step = min(judged.differs)
    names = judged.differs[step]
    rank = next(
        rank
        for rank in judged.path.steps[step]
        if rank in reference.path.steps[step] and names[0] in _differ(judged, reference, step, rank)
    )
    attempt, ours = judged.path.steps[step][rank]
    cause = cause_of(judged, step, attempt, reference.path.steps[step][rank][1], ours, names)
    said = f"differs from step {step} on, first in {names[0]}: {cause}"
    if len(judged.path.resumed) > 1 and "attempt" not in cause:
        said += f" (attempt {attempt})"
    evidence = (f"differs in {', '.join(names)}",)
    return ArmFinding("same trajectory", BROKEN, said, judged.arm.name, step, evidence)


def _differ(judged: Judged, reference: Judged, step: int, rank: int) -> tuple[str, ...]:
    attempt, ours = judged.path.steps[step][rank]
    return differing(ours, reference.path.steps[step][rank][1], judged.path.is_first(step, attempt))


def _undecided(judged: Judged, reference: Judged, steady: Determinism) -> str:
    """How far the runs are apart, with and without a failure, as far as losses tell."""
    said = "the job is not deterministic: a difference would mean nothing"
    if steady.spread is None:
        return said
    since = min((begun.after or 0 for begun in judged.path.resumed), default=0)
    ours = distance(judged.path, reference.path, since)
    return (
        f"{said} (losses differ by up to {steady.spread:.3g} undisturbed, by up to {ours:.3g} after"
        " a restart)"
    )


def follows_exactly(judged: Judged, reference: Judged | None, steady: Determinism) -> bool:
    """Whether every step from the first restart to the end is bit for bit that of the undisturbed
    run: then nothing can be missing, wherever the state came from.
    """
    if (
        reference is None
        or not steady.exact
        or judged.path.resized
        or judged.path.last != reference.path.last
    ):
        return False
    since = min((begun.after or 0 for begun in judged.path.resumed), default=0)
    if any(step > since for step in judged.differs):
        return False
    return not unrecorded(judged, reference, ("loss", "parameters", "optimizer"))


def only_interleaved(judged: Judged, reference: Judged | None) -> bool:
    """Whether the arm differs only in the order in which optimizers that never step together take
    turns: each one's updates, of all attempts, are updates of the undisturbed run, and it ends in
    the same state. Models that know nothing of each other, each with a checkpoint of its own.
    """
    if reference is None or not judged.differs:
        return False

    def updates(processes: Iterable[Process]) -> dict[str, list[OptimizerState | None]]:
        """By rank and optimizer, the state before and after each of its updates, in turn."""
        found: dict[str, list[OptimizerState | None]] = {}
        for process in processes:
            for step in process.steps:
                for name in step.who if len(step.who) == 1 else ("", ""):
                    pair = [step.optimizers_before.get(name), step.optimizers.get(name)]
                    found.setdefault(f"{process.rank} {name}", []).extend(pair)
        return found

    theirs = updates(reference.arm.processes)
    if len({key.partition(" ")[2] for key in theirs}) < 2:
        return False
    ours = updates(
        one for number in sorted(judged.arm.attempts) for one in judged.arm.attempts[number]
    )
    return ours.keys() == theirs.keys() and all(
        states[-1] == theirs[key][-1]
        and None not in states
        and {*zip(states[::2], states[1::2], strict=True)}
        == {*zip(theirs[key][::2], theirs[key][1::2], strict=True)}
        for key, states in ours.items()
    )


def started_again(arm: Arm, references: list[Arm]) -> ArmFinding | None:
    """Unknown where an attempt had more processes of one rank that made steps than the undisturbed
    run: something in the job started that rank again, and which steps follow which is not told.
    torchrun's restarts are, as attempts of their own.
    """
    undisturbed = Counter(p.rank for other in references for p in other.processes if p.steps)
    for number, processes in sorted(arm.attempts.items()):
        trained = Counter(process.rank for process in processes if process.steps)
        again = [rank for rank in sorted(trained - undisturbed) if trained[rank] > 1]
        if again and references:
            said = (
                f"in attempt {number} the job started rank {again[0]} again itself, in a way that"
                " cannot be followed (torchrun's restarts can): turn its restarts off, the audit"
                " starts it again"
            )
            return ArmFinding("complete record", UNKNOWN, said, arm.name)
    return None


def in_several_processes(references: Sequence[Arm]) -> ArmFinding | None:
    """Unknown where one rank of an undisturbed run makes its steps in several processes, one after
    another (one an epoch, say): each counts from 1, and which step of a restart is due which of
    theirs is not told.
    """
    for arm in references:
        for processes in arm.attempts.values():
            spans: dict[int, list[tuple[float, float]]] = {}
            for process in processes:
                if process.steps and process.steps[0].at:
                    span = (process.steps[0].at, process.steps[-1].at)
                    spans.setdefault(process.rank, []).append(span)
            for rank, times in sorted(spans.items()):
                times.sort()
                if len(times) > 1 and all(a[1] < b[0] for a, b in pairwise(times)):
                    said = (
                        f"rank {rank} makes its steps in {len(times)} processes, one after another,"
                        " which cannot be followed: audit a job that trains in one process"
                    )
                    return ArmFinding("complete record", UNKNOWN, said, arm.name)
    return None


def complete_record(judged: Judged, reference: Judged | None = None) -> ArmFinding:
    """Every rank of every attempt that did a step is on record. A rank that has a record and makes
    no step of its own in the undisturbed run either (it computes gradients for another) is not
    missing.
    """
    promise, arm = "complete record", judged.arm.name
    undisturbed = (reference or judged).arm
    elsewhere = {process.rank for process in undisturbed.processes if process.steps}
    for number, processes in sorted(judged.arm.attempts.items()):
        trained = {process.rank for process in processes if process.steps}
        trained |= {process.rank for process in judged.arm.others.get(number, ())} - elsewhere
        size = max((process.world_size for process in processes), default=0)
        longest = max((len(process.steps) for process in processes), default=0)
        if trained and longest > 1 and len(trained) < size:
            missing = ", ".join(str(rank) for rank in range(size) if rank not in trained)[:80]
            said = f"attempt {number} had {size} processes, and the record lacks rank {missing}"
            return ArmFinding(promise, UNKNOWN, said, arm)
    return ArmFinding(promise, KEPT, "every rank of every attempt is on record", arm)


def right_checkpoint(judged: Judged, anew: bool = False) -> ArmFinding:
    """Each attempt resumed from the newest checkpoint that was complete when the previous attempt
    died. `anew`: the job is meant to begin anew.
    """
    promise, arm = "right checkpoint", judged.arm.name
    if (apart := _of_different_steps(judged, promise)) is not None:
        return apart
    if (older := _older_one(judged, promise)) is not None:
        return older
    began_anew = [begun for begun in judged.path.resumed if begun.after == 0 and begun.began]
    for begun in began_anew:
        if not begun.saves_at_all and not anew:
            said = (
                f"attempt {begun.attempt} began anew: nothing that the job saves before its end is"
                " on record (audit.anew=true if it is meant to)"
            )
            return ArmFinding(promise, UNKNOWN, said, arm)
    known = [
        begun
        for begun in judged.path.resumed
        if begun.newest_saved is not None
        and begun.after is not None
        and begun.proof in ("content", "declared")
    ]
    if known:
        steps = ", ".join(
            f"attempt {begun.attempt} (step {begun.after})" for begun in known if not begun.early
        )
        parts = [f"resumed from the newest finished checkpoint: {steps}"] if steps else []
        parts += [
            f"attempt {begun.attempt} went on from step {begun.after}, whose save had not ended"
            for begun in known
            if begun.early
        ]
        return ArmFinding(promise, KEPT, "; ".join(parts), arm)
    if began_anew:
        return ArmFinding(promise, KEPT, "no checkpoint had been finished: the job began anew", arm)
    if judged.arm.launches[1:] and not any(
        process.steps for number, made in judged.arm.attempts.items() if number for process in made
    ):
        return ArmFinding(
            promise, NOT_CHECKED, "no attempt did a step after the first failure", arm
        )
    lost = [
        begun
        for begun in judged.path.resumed
        if begun.newest_saved and (begun.after is None or begun.proof == "load")
    ]
    if lost:
        said = (
            f"where attempt {lost[0].attempt} went on is not on record (a checkpoint of step"
            f" {lost[0].newest_saved} had been finished)"
        )
        return ArmFinding(promise, NOT_CHECKED, said, arm)
    proved = [begun for begun in judged.path.resumed if begun.proof == "content"]
    steps = ", ".join(dict.fromkeys(f"step {begun.after}" for begun in proved))
    beside = [begun for begun in proved if begun.newest_in_background is not None]
    unknown = (
        "a thread writes the checkpoints beside the steps: which one holds which step is not known"
        if beside
        else "which checkpoints had been finished is not known"
    )
    said = (
        f"it went on from {steps}; {unknown}"
        if proved
        else "no finished checkpoint is on record before a death"
    )
    return ArmFinding(promise, NOT_CHECKED, said, arm)


def _of_different_steps(judged: Judged, promise: str) -> ArmFinding | None:
    """The finding on the first attempt whose ranks went on from different steps' checkpoints."""
    for begun in judged.path.resumed:
        if begun.elsewhere:
            others = ", ".join(f"rank {r} after step {step}" for r, step in begun.elsewhere.items())
            said = (
                f"attempt {begun.attempt}: rank {min(begun.began)} went on after step"
                f" {begun.after}, {others}: each from a checkpoint of its own"
            )
            return ArmFinding(promise, BROKEN, said, judged.arm.name, begun.after)
    return None


def _older_one(judged: Judged, promise: str) -> ArmFinding | None:
    """The finding on the first attempt that did not go on from the newest finished checkpoint."""
    for begun in judged.path.resumed:
        if begun.after is None or begun.proof == "load":
            continue
        newest = begun.newest_saved or 0
        if not begun.after:
            newest = max(newest, begun.newest_in_background or 0)
        if begun.after >= newest:
            continue
        went = f"went on after step {begun.after}" if begun.after else "began anew"
        said = (
            f"attempt {begun.attempt} {went}, and a checkpoint of step {newest} had been finished"
        )
        read = tuple(f"read {path}" for path in begun.loaded[:SHOWN])
        return ArmFinding(promise, BROKEN, said, judged.arm.name, newest, read)
    return None


def same_end(judged: Judged, reference: Judged | None, steady: Determinism) -> ArmFinding:
    """The same number of steps and the same final state as the undisturbed run."""
    promise, arm = "same end", judged.arm.name
    last = judged.arm.launches[-1] if judged.arm.launches else None
    if last is not None and last.exit_code != 0:
        return ArmFinding(
            promise,
            BROKEN,
            f"the job did not come to its end: attempt {last.attempt} ended with"
            f" {how_it_ended(judged.arm, last)}",
            arm,
        )
    if reference is None:
        return ArmFinding(promise, NOT_CHECKED, "no undisturbed run to compare with", arm)
    if judged.path.resized:
        same = judged.path.last == reference.path.last
        theirs = "" if same else f", the undisturbed run at step {reference.path.last}"
        said = f"ended at step {judged.path.last} with another number of processes{theirs}"
        return ArmFinding(promise, KEPT if same else NOT_CHECKED, said, arm)
    if judged.path.last != reference.path.last:
        return ArmFinding(
            promise,
            BROKEN,
            f"ended at step {judged.path.last}, the undisturbed run at step {reference.path.last}",
            arm,
            judged.path.last,
        )
    if not steady.exact:
        return ArmFinding(
            promise, UNKNOWN, "the job is not deterministic: its end cannot be compared", arm
        )
    names = judged.differs.get(judged.path.last, ())
    if names:
        return ArmFinding(
            promise, BROKEN, f"the last step differs in {', '.join(names)}", arm, judged.path.last
        )
    return ArmFinding(
        promise, KEPT, f"ended at step {judged.path.last} in the state of the undisturbed run", arm
    )


# The second oracle of an audit: a cold start. A resumed attempt that does what a job without any
# state does has not used its state.
COLD = "cold"
COLD_STEPS = 3  # how many a cold start is compared by
_STATE_USED = "state used"


def state_used(judged: Judged, cold: Judged, reference: Judged | None) -> ArmFinding:
    """No resumed attempt begins as a cold start does. The job need not be deterministic: equal
    samples or losses are evidence enough.
    """
    arm, told = judged.arm.name, []
    for begun in judged.path.resumed:
        if not begun.loaded and begun.newest_saved is None:
            continue  # nothing was saved before: a cold start is right
        alike, unlike = _compared(judged, begun, cold, reference)
        if alike:
            said = (
                f"attempt {begun.attempt} began with the {', '.join(alike)} of a cold start: what"
                " was saved of that was not used"
            )
            return ArmFinding(_STATE_USED, BROKEN, said, arm, (begun.newest_saved or 0) + 1)
        if unlike:
            told.append(f"attempt {begun.attempt} differs from a cold start in {', '.join(unlike)}")
    if not told:
        return ArmFinding(
            _STATE_USED,
            NOT_CHECKED,
            "no attempt that had something to load could be compared with a cold start",
            arm,
        )
    return ArmFinding(_STATE_USED, KEPT, "; ".join(told), arm)


def _compared(
    judged: Judged, begun: Resumed, cold: Judged, reference: Judged | None
) -> tuple[list[str], list[str]]:
    """The components that equal a cold start's in each of the first steps although the undisturbed
    run's differ there; and those that do not.
    """
    alike, unlike = [], []
    expected_after = begun.after or begun.newest_saved or 0
    ours = {process.rank: process.steps for process in judged.arm.attempts[begun.attempt]}
    theirs = {process.rank: process.steps for process in cold.arm.attempts[min(cold.arm.attempts)]}
    for name in COMPONENTS:
        if name in judged.ignored - judged.without_effect:
            continue
        pairs = [
            (rank, place, one, other)
            for rank in ours.keys() & theirs.keys()
            for place, one, other in _first(ours[rank], theirs[rank], name)
        ]
        if not pairs:
            continue
        if any(unequal(one, other) for _, _, one, other in pairs):
            unlike.append(name)
        elif _tells(reference, expected_after, pairs, name):
            alike.append(name)
    return alike, unlike


def _first(ours: list[Step], theirs: list[Step], name: str) -> list[tuple[int, object, object]]:
    values = [
        (value_of(one, name), value_of(other, name))
        for one, other in zip(ours[:COLD_STEPS], theirs[:COLD_STEPS], strict=False)
    ]
    return [
        (place, one, other)
        for place, (one, other) in enumerate(values, start=1)
        if one is not None and other is not None
    ]


def _tells(
    reference: Judged | None, behind: int, pairs: list[tuple[int, int, object, object]], name: str
) -> bool:
    """Whether the value in the cold start differs from that of the undisturbed run at the same
    step. Where it does not (a constant learning rate), equal values prove no restore.
    """
    for rank, place, _, other in pairs:
        step = (
            reference.path.steps.get(behind + place, {}).get(rank)
            if reference is not None
            else None
        )
        due = value_of(step[1], name) if step is not None else None
        if due is not None and unequal(due, other):
            return True
    return False
