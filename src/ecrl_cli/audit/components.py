"""What a step consists of for an audit, and how two passes of a step are compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ecrl_cli.audit.lineage import Path, path_of
from ecrl_cli.audit.records import Arm, Step

KEPT, BROKEN, UNKNOWN, NOT_CHECKED = "kept", "broken", "unknown", "not checked"
SHOWN = 8

# Components of a step, ordered by cause: a difference in one explains those in later ones, so the first that differs names the cause.
COMPONENTS = (
    "samples",
    "input",
    "generators",
    "python generator",
    "numpy generator",
    "settings",
    "scale",
    "loss",
    "buffers",
    "parameters",
    "optimizer",
    "watched",
)
_DIGEST_OF = {
    "generators": "rng",
    "python generator": "rng_python",
    "numpy generator": "rng_numpy",
    "settings": "settings",
    "buffers": "buffers",
    "parameters": "params",
    "optimizer": "optimizer",
    "watched": "watched",
}
MEANING = {
    "samples": "the data position was not restored",
    "input": "the same samples came out as other tensors: augmentation or a worker's seed was not restored",
    "generators": "torch's random number generators were not restored",
    "python generator": "Python's random number generator was not restored",
    "numpy generator": "numpy's random number generator was not restored",
    "settings": "the learning-rate schedule, or another setting of the optimizer, was not restored",
    "scale": "the gradient scaler was not restored",
    "loss": "parameters or buffers were not restored, or a generator that is not recorded",
    "buffers": "the model's buffers were not restored",
    "parameters": "the optimizer's state, its settings or the scaler were not restored",
    "optimizer": "the optimizer's state was not restored",
    "watched": "what the job watches by name was not restored",
}


@dataclass(frozen=True)
class Finding:
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
    path: Path
    differs: dict[int, tuple[str, ...]] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()


def value_of(step: Step, component: str) -> object:
    """The recorded value of `component` in `step`; None if not recorded."""
    if component == "samples":
        return step.samples or None
    if component == "input":
        return step.inputs or None
    if component == "scale":
        return step.scale
    if component == "loss":
        return tuple(repr(loss) for loss in step.losses if loss is not None) or None
    return step.digests.get(_DIGEST_OF[component])


def differing(one: Step, other: Step) -> tuple[str, ...]:
    """The components that both recorded with different values."""
    return tuple(name for name in COMPONENTS if (a := value_of(one, name)) is not None and (b := value_of(other, name)) is not None and a != b)


def compare(path: Path, reference: Path, ignored: frozenset[str] = frozenset()) -> dict[int, tuple[str, ...]]:
    """By step, the components in which any rank differs from the same rank of `reference`."""
    found: dict[int, tuple[str, ...]] = {}
    for number in sorted(path.steps.keys() & reference.steps.keys()):
        names: set[str] = set()
        for rank, (attempt, step) in path.steps[number].items():
            if rank in reference.steps[number] and attempt not in path.resized:
                names.update(differing(step, reference.steps[number][rank][1]))
        names -= ignored
        if names:
            found[number] = tuple(name for name in COMPONENTS if name in names)
    return found


# Generators that many jobs leave unseeded because they do not use them: compared only if two undisturbed runs agree in them.
UNSEEDED = ("python generator", "numpy generator")


def unseeded(references: list[Judged]) -> frozenset[str]:
    """Those of UNSEEDED in which undisturbed runs differ; all of them if there is only one undisturbed run."""
    if len(references) < 2:
        return frozenset(UNSEEDED)
    first, *others = references
    differs = {name for other in others for names in compare(other.path, first.path).values() for name in names}
    return frozenset(differs & set(UNSEEDED))


def walk(path: Path) -> Iterator[tuple[int, int, Step]]:
    """(step, rank, record) of all committed steps, in order."""
    for number in sorted(path.steps):
        for rank in sorted(path.steps[number]):
            yield number, rank, path.steps[number][rank][1]


def unrecorded(judged: Judged, reference: Judged, components: tuple[str, ...]) -> str:
    """What of `components` the undisturbed run recorded and this arm did not, in one sentence; empty if nothing is missing.

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
                missing = [name for name in components if value_of(due, name) is not None and value_of(ranks[rank][1], name) is None]
                if missing:
                    return f"the {missing[0]} of step {number}, rank {rank}, is not on record (attempt {attempt})"
            elif attempt == final:
                return f"step {number} of rank {rank} is not on record (attempt {attempt})"
    return ""


def judged_arm(arm: Arm, reference: Judged | None = None, ignored: frozenset[str] = frozenset()) -> Judged:
    path = path_of(arm)
    return Judged(arm, path, compare(path, reference.path, ignored) if reference is not None else {}, ignored)
