"""The components of a step for an audit, and how two passes of a step are compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ecrl_cli.audit.lineage import (
    CommittedSteps,
    path_of,
    with_due_samples,
    without_trial_steps,
)
from ecrl_cli.audit.records import Arm, with_steps
from ecrl_cli.audit.steps import Optimizers, Step
from ecrl_cli.verify.verdict import NOT_CHECKED as NOT_CHECKED
from ecrl_cli.verify.verdict import UNKNOWN as UNKNOWN

KEPT, BROKEN = "kept", "broken"  # of one promise of one arm
WORST_FIRST = (BROKEN, UNKNOWN, NOT_CHECKED, KEPT)
SCALER = "restored: scaler"
SHOWN = 8

# Components of a step, ordered by cause: a difference in one explains those in later ones, so the
# first that differs names the cause.
COMPONENTS = (
    "samples",
    "input",
    "generators",
    "python generator",
    "numpy generator",
    "settings",
    "scale",
    "model input",
    "loss",
    "buffers",
    "parameters",
    "optimizer",
    "watched",
)
DIGEST_OF = {
    "generators": "rng",
    "python generator": "rng_python",
    "numpy generator": "rng_numpy",
    "buffers": "buffers",
    "watched": "watched",
}
# Recorded for each optimizer on its own, and compared for those that both sides have.
_PART_OF = {"settings": "settings", "parameters": "params", "optimizer": "optimizer"}
_NAME = re.compile(r"^(?P<kind>.*?)\[(?P<tensors>\d+)\][0-9a-f]*(?:\.(?P<number>\d+))?$")
# By component, the cause of a difference, where nothing else differs before it.
TWO_MOMENTS = "parts of two moments came back"
BY_THREAD = " (a thread writes what the training goes on changing)"
MEANING = {
    "samples": "the data position was not restored",
    "input": (
        "the same samples came out as other tensors: what makes them (augmentation, a worker's"
        " seed, statistics, a cache) was not restored"
    ),
    "generators": "torch's random number generators were not restored",
    "python generator": "Python's random number generator was not restored",
    "numpy generator": "numpy's random number generator was not restored",
    "settings": "the learning-rate schedule, or another setting of the optimizer, was not restored",
    "scale": "the gradient scaler was not restored",
    "model input": (
        "other tensors entered the model: what the job keeps elsewhere, between its data and its"
        " model (a normaliser, a recurrent state, a memory, an environment, a random stream), was"
        " not restored"
    ),
    "loss": "something that enters the loss was not restored",
    "buffers": (
        "the model's buffers were not restored, or the forward pass changes them otherwise (train"
        " or eval mode, a flag)"
    ),
    "parameters": "something that the update depends on was not restored",
    "optimizer": "the optimizer's state was not restored",
    "watched": "what the job watches by name was not restored",
}


@dataclass(frozen=True)
class ArmFinding:
    """One promise of one arm. `step`: where it first broke, or None."""

    promise: str
    status: str
    message: str
    arm: str = ""
    step: int | None = None
    evidence: tuple[str, ...] = ()


@dataclass
class Judged:
    """An arm, its path, and by step the components that differ from the reference."""

    arm: Arm
    path: CommittedSteps
    differs: dict[int, tuple[str, ...]] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    # what differs though nothing that follows from it does
    without_effect: frozenset[str] = frozenset()
    # kinds of files without which no attempt goes on
    needed: frozenset[str] = frozenset()
    # its DataLoader gave batches in other steps than in the undisturbed run, and what entered the
    # model and what followed was the same in all of them
    asked_elsewhere: bool = False


def value_of(step: Step, component: str) -> object:
    """The recorded value of `component` in `step`; None if not recorded. By optimizer where each
    has its own.
    """
    if component in _PART_OF:
        return part_of(step.optimizers, component) or None
    if component == "samples":
        return step.samples or None
    if component == "input":
        return step.inputs or None
    if component == "model input":
        return Entered(step.entered) or None
    if component == "scale":
        return step.scale
    if component == "loss":
        return tuple(repr(loss) for loss in step.losses if loss is not None) or None
    return step.digests.get(DIGEST_OF[component])


def part_of(optimizers: Optimizers, component: str) -> dict[str, str]:
    """By optimizer, the digest of its settings, parameters or state, where recorded."""
    part = _PART_OF[component]
    return {name: digest for name, state in optimizers.items() if (digest := getattr(state, part))}


def unequal(one: object, other: object) -> bool:
    """Whether two recorded values differ; of what each optimizer has for itself, in one that both
    have; of what entered the model, in the last passes that both have: an evaluation before the
    step, which a restarted process need not repeat, comes first.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return any(one[name] != other[name] for name in one.keys() & other.keys())
    if isinstance(one, Entered) and isinstance(other, Entered) and len(one) != len(other):
        shared = min(len(one), len(other))
        return one[-shared:] != other[-shared:]
    return one != other


class Entered(tuple[str, ...]):
    """Digests of what entered the model, pass by pass."""


def differing(one: Step, other: Step, resumed: bool = False) -> tuple[str, ...]:
    """The components that both recorded with different values. `resumed`: `one` is the first step
    of an attempt that may have gone on in the middle of it, after some of its micro-batches: it has
    the rest of what was due; and before it the losses of passes that each process makes before it
    trains (for DDP's buckets, say).
    """
    names = []
    for name in COMPONENTS:
        ours, due = value_of(one, name), value_of(other, name)
        if ours is None or due is None:
            continue
        if resumed:
            due = _rest(due, ours)
            ours = _rest(ours, due) if name == "loss" else ours
        if unequal(ours, due):
            names.append(name)
    return tuple(names)


def _rest(due: object, ours: object) -> object:
    """The end of `due`, as long as `ours`, where both are sequences."""
    return (
        due[-len(ours) :]
        if isinstance(due, tuple) and isinstance(ours, tuple) and 0 < len(ours) < len(due)
        else due
    )


def optimizers_apart(one: Optimizers, other: Optimizers, component: str) -> list[str]:
    """The names of the optimizers whose settings, parameters or state differ."""
    a, b = part_of(one, component), part_of(other, component)
    return sorted(name for name in a.keys() & b.keys() if a[name] != b[name])


def in_words(name: str, every: Iterable[str] = ()) -> str:
    """An optimizer's name for people: `AdamW[12]3f2a` is `AdamW of 12 tensors`; where others of
    `every`, in their order, are called the same: `AdamW of 12 tensors, number 2`.
    """
    match = _NAME.match(name)
    if not match:
        return name or "the optimizer"
    words = _kind(name)
    alike = [other for other in every if _kind(other) == words]
    if len(alike) > 1 and name in alike:
        return f"{words}, number {alike.index(name) + 1}"
    return f"{words}, number {match['number']}" if match["number"] else words


def _kind(name: str) -> str:
    """Class and number of tensors of an optimizer, in words."""
    match = _NAME.match(name)
    if not match:
        return name
    return f"{match['kind']} of {match['tensors']} tensor{'s' if match['tensors'] != '1' else ''}"


def named(names: list[str], every: Optimizers) -> str:
    """` of AdamW of 12 tensors` where the job has more than one optimizer, else nothing."""
    if len(every) < 2 or not names:
        return ""
    further = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return " of " + " and ".join(in_words(name, every) for name in names[:3]) + further


def compare(
    path: CommittedSteps, reference: CommittedSteps, ignored: frozenset[str] = frozenset()
) -> dict[int, tuple[str, ...]]:
    """By step, the components in which any rank differs from the same rank of `reference`."""
    found: dict[int, tuple[str, ...]] = {}
    for number in sorted(path.steps.keys() & reference.steps.keys()):
        names: set[str] = set()
        for rank, (attempt, step) in path.steps[number].items():
            if rank in reference.steps[number] and attempt not in path.resized:
                names.update(
                    differing(
                        step, reference.steps[number][rank][1], path.is_first(number, attempt)
                    )
                )
        names -= ignored
        if names:
            found[number] = tuple(name for name in COMPONENTS if name in names)
    return found


# Generators that many jobs leave unseeded because they do not use them: compared only if two
# undisturbed runs agree in them.
UNSEEDED = ("python generator", "numpy generator")


def unseeded(references: list[Judged]) -> frozenset[str]:
    """The generators of UNSEEDED in which undisturbed runs differ; all of them if there is only one
    undisturbed run.
    """
    if len(references) < 2:
        return frozenset(UNSEEDED)
    first, *others = references
    differs = {
        name
        for other in others
        for names in compare(other.path, first.path).values()
        for name in names
    }
    return frozenset(differs & set(UNSEEDED))


def walk(path: CommittedSteps) -> Iterator[tuple[int, int, Step]]:
    """(step, rank, record) of all committed steps, in order."""
    for number in sorted(path.steps):
        for rank in sorted(path.steps[number]):
            yield number, rank, path.steps[number][rank][1]


def steps_apart(judged: Judged, reference: Judged) -> dict[int, list[int]]:
    """By attempt, the numbers of its steps that differ from the undisturbed run's: of all that it
    did, those that a later one did again included.
    """
    aside = judged.ignored | judged.without_effect
    apart: dict[int, list[int]] = {}
    for attempt, processes in judged.arm.attempts.items():
        numbers = apart.setdefault(attempt, [])
        for process in processes:
            for place, step in enumerate(process.steps):
                number = judged.path.number_of(step, attempt)
                undisturbed = reference.path.steps.get(number, {}).get(process.rank)
                if undisturbed and {*differing(step, undisturbed[1], place == 0)} - aside:
                    numbers.append(number)
    return apart


def consumed(
    path: CommittedSteps, steps: range | None = None, rank: int | None = None
) -> Counter[str]:
    """How often each sample came: in `steps` only, and to `rank` only, where given."""
    return Counter(
        sample
        for number in (path.steps if steps is None else path.steps.keys() & steps)
        for one, (_, step) in path.steps[number].items()
        if rank in (None, one)
        for sample in step.samples
    )


def unrecorded(judged: Judged, reference: Judged, components: tuple[str, ...]) -> str:
    """The `components` that the undisturbed run recorded and this arm did not, in one sentence;
    empty if nothing is missing.

    A rank that died has no record of the steps that the others finished without it.
    """
    path, final = judged.path, max(judged.path.offsets, default=0)
    for number in range(1, min(path.last, reference.path.last) + 1):
        ranks = path.steps.get(number)
        if not ranks:
            return f"step {number} is on no record"
        attempt = next(iter(ranks.values()))[0]
        if attempt in path.resized:
            continue
        for rank, (_, due) in reference.path.steps.get(number, {}).items():
            if rank in ranks:
                missing = [
                    name
                    for name in components
                    if value_of(due, name) is not None and value_of(ranks[rank][1], name) is None
                ]
                if missing:
                    return (
                        f"the {missing[0]} of step {number}, rank {rank}, is not on record (attempt"
                        f" {attempt})"
                    )
            elif attempt == final:
                return f"step {number} of rank {rank} is not on record (attempt {attempt})"
    return ""


FOLLOWING = 3  # updates that must be right for a state to be without effect on them
GENERATORS = ("generators", "python generator", "numpy generator")


def judged_arm(
    arm: Arm,
    reference: Judged | None = None,
    ignored: frozenset[str] = frozenset(),
    needed: frozenset[str] = frozenset(),
) -> Judged:
    """The arm's path, held against the reference's. Left out are a generator whose state differs
    where nothing else ever does (what is drawn from it, a loader's seed, say, is no part of the
    training), and an optimizer's state that differs while all updates that follow are the same (it
    is kept in another form: an optimizer that each rank holds a part of). `needed`: the kinds of
    files without which no attempt goes on (`lineage.resume_kinds`).
    """
    if reference is None:
        return Judged(arm, path_of(arm, needed=needed), {}, ignored, needed=needed)
    arm = without_trial_steps(arm, reference.path)
    path = path_of(arm, reference.path, needed)
    elsewhere = _asked_elsewhere(path, reference.path)
    arm, path = with_due_samples(arm, path, reference.path, elsewhere)
    differs = _without_dead(path, reference.path, compare(path, reference.path, ignored))
    again = {
        name
        for number, _, attempt, before, after in path.done_again
        for name in differing(after, before, path.is_first(number, attempt))
    } - ignored
    names = {name for found in differs.values() for name in found} | again
    # What first differs in one of the last steps has had nothing to show itself in.
    since = max(
        (
            min(step for step in differs if name in differs[step])
            for name in names
            if any(name in found for found in differs.values())
        ),
        default=0,
    )
    idle = {*GENERATORS, "optimizer"} if path.last - since >= FOLLOWING else set(GENERATORS)
    if names and names <= idle and path.last == reference.path.last:
        return Judged(arm, path, {}, ignored | names, frozenset(names), needed, elsewhere)
    drawn = _without_effect(differs, names)
    if names & set(GENERATORS) and not names & {"samples", "input", "model input"}:
        drawn |= names & _drawn_between_epochs(reference)
    if drawn:
        left = {
            step: tuple(name for name in found if name not in drawn)
            for step, found in differs.items()
        }
        return Judged(
            arm,
            path,
            {step: found for step, found in left.items() if found},
            ignored | drawn,
            drawn,
            needed,
            elsewhere,
        )
    return Judged(arm, path, differs, ignored, needed=needed, asked_elsewhere=elsewhere)


def _asked_elsewhere(path: CommittedSteps, reference: CommittedSteps) -> bool:
    """Whether all steps, those done again too, trained on what the undisturbed run's did, though
    batches came out of the DataLoader in other ones: a job that cuts new batches out of what it has
    fetched takes several at once, and a restart in between takes them again.
    """
    pairs = [(before, after) for _, _, _, before, after in path.done_again]
    moved = False
    for number in path.steps.keys() | reference.steps.keys():
        ours, theirs = path.steps.get(number, {}), reference.steps.get(number, {})
        if ours.keys() != theirs.keys():
            return False
        pairs += [(theirs[rank][1], ours[rank][1]) for rank in ours]
        moved = moved or any(theirs[rank][1].samples != ours[rank][1].samples for rank in ours)
    return moved and all(_trained_alike(one, other) for one, other in pairs)


def by_model_input(references: Sequence[Arm]) -> bool:
    """Whether the batches of the job's DataLoaders belong to no one step, and what enters its model
    is on record in every step: undisturbed runs differ in them and in nothing else (a thread
    fetches ahead), or many more are fetched than there are passes (new ones are cut out of them).
    """
    runs = [path_of(arm) for arm in references]
    steps = [step for run in runs for _, _, step in walk(run)]
    if not steps or not all(map(_known_by_input, steps)):
        return False
    first, *others = runs
    cut_anew = all(
        process.left_over > max(4, len(process.steps) // 4)
        for process in references[0].processes
        if process.steps
    )
    return cut_anew or any(_asked_elsewhere(other, first) for other in others)


def without_batches(arm: Arm) -> Arm:
    """`arm`, judged by what enters its model (`by_model_input`)."""
    return with_steps(arm, lambda step: replace(step, batches=()))


def _known_by_input(step: Step) -> bool:
    """Whether what entered the model and what followed from it are on record."""
    return bool(step.entered and step.losses and step.optimizers)


def _trained_alike(one: Step, other: Step) -> bool:
    known = _known_by_input(one) and _known_by_input(other)
    return known and not set(differing(one, other)) - {"samples", "input", *GENERATORS}


def _drawn_between_epochs(undisturbed: Judged) -> frozenset[str]:
    """The generators that no step draws from: their state moves only between the last step of an
    epoch and the next, where a loader draws its seed.
    """
    ends = {end for process in undisturbed.arm.processes for end in process.epochs}
    steps, quiet = undisturbed.path.steps, set()
    for name in GENERATORS:
        states: dict[int, object] = {}  # by rank, behind the last step
        still, seen = True, False
        for number in sorted(steps):
            for rank, (_, step) in steps[number].items():
                before, after = step.digests_before.get(DIGEST_OF[name]), value_of(step, name)
                seen = seen or after is not None
                still = still and before == after
                if number - 1 not in ends and rank in states:
                    still = still and states[rank] == before
                states[rank] = after
        if seen and still:
            quiet.add(name)
    return frozenset(quiet)


def _without_dead(
    path: CommittedSteps, reference: CommittedSteps, differs: dict[int, tuple[str, ...]]
) -> dict[int, tuple[str, ...]]:
    """`differs` without steps in which only optimizers that do not step have other parameters or
    state, which the job writes anew before their next turn: they were dead.
    """
    left = dict(differs)
    # by rank and optimizer, whether its next turn begins as the undisturbed run's does
    restored: dict[tuple[int, str], bool] = {}
    for number in sorted(path.steps.keys() & reference.steps.keys(), reverse=True):
        pairs = {
            rank: (step, reference.steps[number][rank][1])
            for rank, (_, step) in path.steps[number].items()
            if rank in reference.steps[number]
        }
        if set(left.get(number, ("",))) <= {"parameters", "optimizer"} and all(
            name not in (*ours.who, *due.who) and restored.get((rank, name))
            for rank, (ours, due) in pairs.items()
            for component in ("parameters", "optimizer")
            for name in optimizers_apart(ours.optimizers, due.optimizers, component)
        ):
            del left[number]
        for rank, (ours, due) in pairs.items():
            for name in ours.who:
                before = ours.optimizers_before.get(name), due.optimizers_before.get(name)
                restored[rank, name] = before[0] is not None and before[0] == before[1]
    return left


def _without_effect(differs: dict[int, tuple[str, ...]], names: set[str]) -> frozenset[str]:
    """The generators, if steps passed in which only they differed, and what differed next cannot
    have been drawn.
    """
    drawn = names & set(GENERATORS)
    others = {
        step: [name for name in found if name not in drawn] for step, found in differs.items()
    }
    first = min((step for step, found in others.items() if found), default=None)
    if not drawn or first is None or min(differs) == first:
        return frozenset()
    return (
        frozenset(drawn)
        if others[first][0] in ("settings", "scale", "buffers", "parameters", "optimizer")
        else frozenset()
    )
