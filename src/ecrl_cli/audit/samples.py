"""The promises about data: each sample exactly once, and the same tensors for the same samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ecrl_cli.audit.causes import is_order, is_shuffled
from ecrl_cli.audit.components import (
    BROKEN,
    BY_THREAD,
    DIGEST_OF,
    GENERATORS,
    KEPT,
    MEANING,
    NOT_CHECKED,
    SCALER,
    SHOWN,
    TWO_MOMENTS,
    UNKNOWN,
    ArmFinding,
    Judged,
    compare,
    consumed,
    unequal,
    unrecorded,
    value_of,
    walk,
)
from ecrl_cli.audit.steps import MAX_STEP, Step
from ecrl_cli.errors import plural
from ecrl_cli.history.exactly_once import counted, discrepancies, in_order

PERSISTENT = (
    "the loader has persistent_workers=True: in later epochs it draws no seed and its workers keep"
    " their copy of the data set, and a new one does neither, so that a restart at an epoch's end"
    " has another order and other noise; make the order and the workers' seeds depend on the epoch,"
    " in a way that reaches the workers, or leave persistent workers out"
)


def exactly_once(judged: Judged, reference: Judged | None, order: str) -> ArmFinding:
    """The committed steps consumed the reference's samples, in its order unless `order` says that
    the order is free.
    """
    promise, arm = "exactly once", judged.arm.name
    known = {(number, rank): step for number, rank, step in walk(judged.path) if step.samples}
    if reference is None:
        return ArmFinding(promise, NOT_CHECKED, "no undisturbed run to compare with", arm)
    if not known or judged.asked_elsewhere:
        return _by_inputs(judged, reference)
    free = order == "free" or (order == "auto" and not all(step.by_id for step in known.values()))
    if free:
        return _as_often(judged, reference)
    gap = unrecorded(judged, reference, ("samples",))
    if gap:
        return ArmFinding(promise, UNKNOWN, gap, arm)
    if judged.path.resized:
        return _by_all_ranks(judged, reference)
    for number, rank, step in walk(judged.path):
        due = reference.path.steps.get(number, {}).get(rank)
        if due is None or in_order(step.samples or None, due[1].samples or None):
            continue
        attempt = judged.path.steps[number][rank][0]
        if (
            judged.path.is_first(number, attempt)
            and step.samples == due[1].samples[-len(step.samples) :]
        ):
            continue  # the attempt went on after some of the step's micro-batches
        skips = _skips(judged), _skips(reference)
        if said := _overflowed(judged, reference, skips, number, rank):
            said += ": from there on the steps have other samples by nature"
        if said := said or _follows_from_before(judged, reference, number, attempt):
            return ArmFinding(promise, NOT_CHECKED, said, arm, number)
        evidence = (_first_ids(step, due[1]), *_hints(judged, attempt))
        said = _told(judged, reference, (number, rank, attempt), step)
        return ArmFinding(promise, BROKEN, said, arm, number, evidence)
    compared = [(number, rank) for number, rank in known if number <= reference.path.last]
    said = f"{_steps_of_ranks(compared)} consumed the samples of the undisturbed run, in its order"
    said += ", which ended there" if judged.path.last > reference.path.last else ""
    return ArmFinding(promise, KEPT, said + _beside(reference), arm)


def _follows_from_before(judged: Judged, reference: Judged, number: int, attempt: int) -> str:
    """Why other samples in step `number` show no lost position, in words; empty if they do. A lost
    position shows in an attempt's first step, unless the attempt before had these samples there
    too, or in a run that was the undisturbed one until then.
    """
    left = min(judged.differs, default=number)
    skips = bool(_skips(judged) or _skips(reference))
    as_before = any(
        first.samples == again.samples
        for step, _, later, first, again in judged.path.done_again
        if (step, later) == (number, attempt)
    )
    begins = judged.path.is_first(number, attempt) and not as_before
    if number <= left or (begins and not skips):
        return ""
    said = f"the run had left the undisturbed one at step {left}, and"
    if skips:
        return f"{said} its gradient scaler skips steps: the steps have other samples by nature"
    return f"{said} that step {number} has other samples may follow from it"


def _beside(reference: Judged) -> str:
    """Words on loaders that give one batch a step and are on no step's account."""
    others = max((process.loaders_beside for process in reference.arm.processes), default=0)
    if not others:
        return ""
    return (
        f"; only those of the DataLoader asked last in each step: of {others} more the tensors are"
        " judged, where they enter the model"
    )


def _steps_of_ranks(places: list[tuple[int, int]]) -> str:
    """How many steps the `places` (step, rank) are, and of how many ranks."""
    steps = plural(len({number for number, _ in places}), "step")
    ranks = len({rank for _, rank in places})
    return f"{steps} of {ranks} ranks" if ranks > 1 else steps


def _why_by_inputs(judged: Judged) -> str:
    if judged.asked_elsewhere:
        return "its DataLoader gave batches in other steps than in the undisturbed run"
    if any(process.given for process in judged.arm.processes):
        return "the batches of its DataLoader belong to no one step"
    return "the job has no DataLoader"


def _by_inputs(judged: Judged, reference: Judged) -> ArmFinding:
    """Judges a job without a DataLoader, or whose DataLoader tells of other steps, by the tensors
    that entered the model in each step; where these are not on record, by the losses and the
    updates.
    """
    promise, arm = "exactly once", judged.arm.name
    why = _why_by_inputs(judged)
    components = (
        ("model input",)
        if any(step.entered for _, _, step in walk(judged.path))
        else ("loss", "parameters")
    )
    entered = len(components) == 1
    what = "what entered the model" if entered else "its losses and updates"
    compared = 0
    for number, rank, step in walk(judged.path):
        due = reference.path.steps.get(number, {}).get(rank)
        if due is None or judged.path.steps[number][rank][0] in judged.path.resized:
            continue
        values = [(value_of(step, name), value_of(due[1], name)) for name in components]
        values = [pair for pair in values if pair[0] is not None and pair[1] is not None]
        compared += bool(values)
        if number in judged.differs and any(unequal(one, other) for one, other in values):
            # Other inputs may follow from another state (an agent's own actions): `same trajectory`
            # says what differed first.
            said = (
                f"{why}, and {what} {'differs' if entered else 'differ'} from"
                f" step {number} on: see same trajectory"
            )
            return ArmFinding(promise, NOT_CHECKED, said, arm, number)
    if not compared:
        return ArmFinding(
            promise, NOT_CHECKED, "no sample ids and no input hashes are on record", arm
        )
    return ArmFinding(
        promise,
        KEPT,
        f"{why}; {what} {'was that' if entered else 'were those'} of the"
        " undisturbed run in"
        f" {plural(compared, 'step')}",
        arm,
    )


def same_overflows(judged: Judged, reference: Judged | None) -> Iterator[ArmFinding]:
    """Broken where the gradient scaler skipped other steps than in the undisturbed run; nothing to
    say otherwise.
    """
    if reference is None or judged.path.resized:
        return
    ours, theirs = _skips(judged), _skips(reference)
    if not ours and not theirs:
        return
    left = min(judged.differs, default=MAX_STEP)
    for number, rank, _ in walk(judged.path):
        if number > left:
            return  # from there on gradients overflow elsewhere by nature
        if rank in reference.path.steps.get(number, {}) and (
            said := _overflowed(judged, reference, (ours, theirs), number, rank)
        ):
            yield ArmFinding(SCALER, BROKEN, f"{said}: {MEANING['scale']}", judged.arm.name, number)
            return


# by attempt and rank: how often the gradient scaler skipped a step, by the step before
Skips = dict[tuple[int, int], Counter[int]]


def _skips(judged: Judged) -> Skips:
    found: Skips = {}
    for attempt, processes in judged.arm.attempts.items():
        for process in processes:
            if process.skips:
                found.setdefault((attempt, process.rank), Counter()).update(process.skips)
    return found


def _overflowed(
    judged: Judged, reference: Judged, skips: tuple[Skips, Skips], number: int, rank: int
) -> str:
    """Whether the gradient scaler skipped more or fewer steps before step `number` than in the
    undisturbed run, in words; empty if not.

    An attempt that resumed after some of those steps counts only the rest.
    """
    attempt = judged.path.steps[number][rank][0]
    before = number - 1 - judged.path.offsets.get(attempt, 0)
    ours = skips[0].get((attempt, rank), Counter())[before]
    theirs = skips[1].get((reference.path.steps[number][rank][0], rank), Counter())[number - 1]
    if ours == theirs or (ours < theirs and before == 0):
        return ""
    return (
        f"before step {number}, gradients of rank {rank} overflowed {_times(ours)}, in the"
        f" undisturbed run {_times(theirs)}"
    )


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def _by_all_ranks(judged: Judged, reference: Judged) -> ArmFinding:
    """With another number of processes a rank's share is another one: the ranks of a step together
    consumed what they did in the undisturbed run; where a step is of another size, each sample came
    as often.
    """
    for number in judged.path.steps:
        step = range(number, number + 1)
        if discrepancies(consumed(judged.path, step), consumed(reference.path, step)):
            return _as_often(judged, reference)
    sizes = " and ".join(
        str(size)
        for size in sorted({process.world_size for process in judged.arm.processes}, reverse=True)
    )
    return ArmFinding(
        "exactly once",
        KEPT,
        f"with {sizes} processes, each step consumed the samples of the undisturbed run",
        judged.arm.name,
    )


def _as_often(judged: Judged, reference: Judged) -> ArmFinding:
    """Each sample occurs as often as in the undisturbed run, in any order."""
    promise, arm = "exactly once", judged.arm.name
    until = range(judged.path.last + 1)
    before = _before_a_restart(judged, reference)
    ours, theirs = (consumed(run.path, until) for run in (judged, reference))
    if discrepancies(ours + before, theirs):  # else: of a job that ended early `same end` tells
        ours, theirs = (consumed(run.path) for run in (judged, reference))
    counts = counted(ours + before, theirs)
    if not counts.too_often and not counts.missing:
        return ArmFinding(
            promise,
            KEPT,
            f"each of {plural(counts.consumed, 'sample')} came as often as in the undisturbed"
            " run; their order is not judged",
            arm,
        )
    said = (
        f"{plural(counts.too_often, 'sample')} came too often and {counts.missing} are"
        f" missing, of {sum(theirs.values())}"
    )
    first = _first_different_samples(judged, reference)
    where = f" from step {first} on" if first is not None else ""
    attempt = judged.path.attempt_of(first) if first is not None else max(judged.path.offsets)
    return ArmFinding(
        promise, BROKEN, f"{said}{where}: {MEANING['samples']}", arm, first, _hints(judged, attempt)
    )


def _before_a_restart(judged: Judged, reference: Judged) -> Counter[str]:
    """The samples of a step that an attempt went on in the middle of: those that the attempt before
    had consumed for it.
    """
    found: Counter[str] = Counter()
    for number, rank, step in walk(judged.path):
        due = reference.path.steps.get(number, {}).get(rank)
        attempt = judged.path.steps[number][rank][0]
        if due is None or not judged.path.is_first(number, attempt) or not step.samples:
            continue
        done = due[1].samples[: -len(step.samples)]
        if done and due[1].samples == done + step.samples:
            found.update(done)
    return found


def _first_different_samples(judged: Judged, reference: Judged) -> int | None:
    differs = compare(judged.path, reference.path)
    return next((number for number in sorted(differs) if "samples" in differs[number]), None)


def _told(judged: Judged, reference: Judged, where: tuple[int, int, int], step: Step) -> str:
    """A description of the wrong samples of a step. `where`: step, rank, attempt."""
    number, rank, attempt = where
    place = f"(rank {rank}, attempt {attempt})"
    due = reference.path.steps[number][rank][1].samples
    if step.samples == due[: len(step.samples)]:
        return (
            f"step {number} consumed the first {len(step.samples)} of {len(due)} samples that were"
            f" due {place}: it took fewer batches, or smaller ones, than that step is to have"
        )
    taken = _renumbered(reference, rank, number, step)
    if taken is not None:
        said = f"step {number} consumed, under other ids, what was due in step {taken} {place}"
        return f"{said}: {MEANING['samples']}"
    until = min((end for end in _ends(reference) if end >= number), default=reference.path.last)
    earlier = _repeated(judged, rank, number)
    again = earlier is not None and _repeated(judged, rank, number + 1) == earlier + 1
    if not again and until > number and is_order(judged.path, reference.path, number, rank, until):
        said = f"from step {number} to {until} the due samples came in another order {place}"
        return f"{said}: {_shuffle_lost(judged, reference, attempt, rank)}"
    if earlier is not None:
        begun = judged.path.offsets.get(attempt, 0) + 1
        said = f"step {number} repeats the samples of step {earlier} {place}"
        cause, first = MEANING["samples"], judged.path.steps.get(earlier, {}).get(rank)
        inputs = set(first[1].inputs) if first is not None else set()
        if step.by_id and step.inputs and inputs and not inputs & set(step.inputs):
            cause += ", or these ids are other data since the restart (a data set that is cut anew)"
        starts = _epoch_starts(reference)
        if number == begun and {number, earlier} <= starts:
            return (
                f"{said}: the order of an earlier epoch came again, its number or its shuffle was"
                " not restored"
            )
        if number == begun and judged.path.background_saves:
            return (
                f"{said} and has the parameters of step {number - 1}: the data position was not"
                f" restored, or {TWO_MOMENTS}{BY_THREAD}"
            )
        if number == begun and earlier == max(start for start in starts if start <= number):
            return f"{said}: {cause}, the epoch began anew"
        return f"{said}: {cause}"
    began = max((end for end in _ends(reference) if end < number), default=0)
    shuffled = is_shuffled(judged.path, reference.path, number, rank, until)
    if shuffled is False and is_shuffled(
        judged.path, reference.path, number, rank, until, began + 1
    ):
        said = f"from step {number} on the samples came in the order of another epoch {place}"
        return f"{said}: the epoch, a seed or the data position was not restored"
    if shuffled:
        said = f"from step {number} on the samples came in another order {place}"
        said += _never_came(judged, reference, range(began + 1, until + 1))
        return f"{said}: {_shuffle_lost(judged, reference, attempt, rank)}"
    lost = "the data position, or their order, was not restored"
    return (
        f"step {number} consumed other samples than the undisturbed run {place}:"
        f" {lost if shuffled is None else MEANING['samples']}"
    )


def _renumbered(reference: Judged, rank: int, number: int, step: Step) -> int | None:
    """Another step of the undisturbed run in which the same entered the model and whose samples
    have other ids: a data set that a restart makes of what is left numbers rows anew.
    """
    alike = (
        (other, ranks[rank][1])
        for other, ranks in reference.path.steps.items()
        if rank in ranks and other != number and step.entered == ranks[rank][1].entered
    )
    other, due = next(alike, (None, step)) if step.entered else (None, step)
    return None if due.samples == step.samples else other


def _samples_at(judged: Judged, rank: int, number: int) -> tuple[str, ...] | None:
    entry = judged.path.steps.get(number, {}).get(rank)
    return entry[1].samples if entry is not None else None


def _repeated(judged: Judged, rank: int, number: int) -> int | None:
    """The first step before `number` that consumed the same samples in the same order."""
    samples = _samples_at(judged, rank, number)
    steps = (step for step in sorted(judged.path.steps) if samples and step < number)
    return next((step for step in steps if _samples_at(judged, rank, step) == samples), None)


def _ends(reference: Judged) -> set[int]:
    """The steps after which an epoch ended."""
    return {end for process in reference.arm.processes for end in process.epochs}


def _never_came(judged: Judged, reference: Judged, steps: range) -> str:
    """Words on the samples due in an epoch's `steps` that none of them consumed; empty if all
    came.
    """
    counts = counted(consumed(judged.path, steps), due := consumed(reference.path, steps))
    of_all = f"{counts.missing} of the epoch's {sum(due.values())} never"
    return f", and {of_all}" if counts.missing else ""


def _shuffle_lost(judged: Judged, reference: Judged, attempt: int, rank: int) -> str:
    """Why the order is another one. Where the attempt began with the global generators of the
    undisturbed run, it is none of these.
    """
    first = judged.path.offsets.get(attempt, 0) + 1
    pair = [path.steps.get(first, {}).get(rank) for path in (judged.path, reference.path)]
    ours, due = ({} if step is None else step[1].digests_before for step in pair)
    told = [
        (ours[digest], due[digest])
        for digest in (DIGEST_OF[name] for name in GENERATORS if name not in judged.ignored)
        if ours.get(digest) and due.get(digest)
    ]
    if told and all(one == other for one, other in told):
        return "what shuffles them, a generator of its own perhaps, went on from another state"
    return "the shuffle, or its generator, was not restored"


def _epoch_starts(reference: Judged) -> set[int]:
    """The first steps of the undisturbed run's epochs."""
    return {1, *(end + 1 for process in reference.arm.processes for end in process.epochs)}


def _first_ids(step: Step, due: Step) -> str:
    return f"consumed {', '.join(step.samples[:SHOWN])}...; due {', '.join(due.samples[:SHOWN])}..."


def _hints(judged: Judged, attempt: int) -> tuple[str, ...]:
    """Calls in that attempt that set the data position, as evidence."""
    calls = [
        call
        for process in judged.arm.attempts.get(attempt, [])
        for call in process.calls
        if call["after_step"] == 0
    ]
    epochs = sorted(
        {
            str(call.get("epoch"))
            for call in calls
            if call.get("what") == "DistributedSampler.set_epoch"
        }
    )
    hints = [f"DistributedSampler.set_epoch was called with {', '.join(epochs)}"] if epochs else []
    every = {call.get("what") for process in judged.arm.processes for call in process.calls}
    if "StatefulDataLoader" in every and not any(
        call.get("what") == "StatefulDataLoader.load_state_dict" for call in calls
    ):
        hints.append("no StatefulDataLoader.load_state_dict was called in that attempt")
    if "persistent_workers" in every:
        hints.append(PERSISTENT)
    return (*hints, *_hints_on_streams(calls))


def _hints_on_streams(calls: list[dict[str, Any]]) -> Iterator[str]:
    """The samples that the state of a streamed data set (Hugging Face's) leaves out, of one that
    was loaded.
    `calls`: those before the attempt's first step.
    """
    names = {call.get("what") for call in calls}
    if "IterableDataset.load_state_dict" not in names:
        return
    if "IterableDataset.set_epoch" not in names:
        yield (
            "IterableDataset.load_state_dict sets no epoch, and set_epoch was not called before the"
            " first step: what is left of the epoch comes in the order of epoch 0"
        )
    buffers = [
        call.get("buffer") for call in calls if call.get("what") == "IterableDataset.shuffle"
    ]
    if any(isinstance(size, int) and size > 1 for size in buffers):
        yield (
            "IterableDataset.load_state_dict does not restore the buffer of shuffle: what lay in it"
            " is lost or comes twice"
        )


def _generators_apart(one: Step, other: Step) -> bool:
    """Whether a global generator was in another state just before the update."""
    ours, theirs = one.digests_before, other.digests_before
    names = {DIGEST_OF[name] for name in GENERATORS} & ours.keys() & theirs.keys()
    return any(ours[name] != theirs[name] for name in names)


def same_input(judged: Judged, reference: Judged | None) -> ArmFinding:
    """Equal samples give equal tensors: compared with the undisturbed run and between repeated
    steps.
    """
    promise, arm, checked = "same input", judged.arm.name, 0
    pairs = [
        (number, rank, before, after) for number, rank, _, before, after in judged.path.done_again
    ]
    if reference is not None:
        pairs += [
            (number, rank, reference.path.steps[number][rank][1], step)
            for number in judged.path.steps
            for rank, (attempt, step) in judged.path.steps[number].items()
            if rank in reference.path.steps.get(number, {}) and attempt not in judged.path.resized
        ]
    for number, rank, before, after in sorted(pairs, key=lambda pair: pair[:2]):
        if before.by_id and before.samples == after.samples and before.inputs and after.inputs:
            checked += 1
            if before.inputs != after.inputs:
                said = f"step {number}, rank {rank}: {MEANING['input']}"
                said += "; a global generator was in another state" * _generators_apart(
                    before, after
                )
                return ArmFinding(promise, BROKEN, said, arm, number)
    if not checked:
        said = (
            "no step with known sample ids and input hashes could be compared"
            if any(step.samples for _, _, step in walk(judged.path))
            else f"{_why_by_inputs(judged)}: exactly once judges what entered its model"
        )
        return ArmFinding(promise, NOT_CHECKED, said, arm)
    return ArmFinding(
        promise, KEPT, f"{plural(checked, 'step')} with the same samples had the same tensors", arm
    )
