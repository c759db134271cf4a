"""Whether the job is deterministic: what differs between runs, or parts of runs, that nothing has
disturbed.

Besides the undisturbed runs, the first attempt of every arm up to its failure is one more of them:
a difference there is no effect of the failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ecrl_cli.audit.components import (
    COMPONENTS,
    GENERATORS,
    KEPT,
    NOT_CHECKED,
    UNKNOWN,
    ArmFinding,
    Judged,
    compare,
    unseeded,
)
from ecrl_cli.audit.lineage import CommittedSteps, path_of
from ecrl_cli.audit.records import Arm
from ecrl_cli.errors import plural

# What to look at, by the component that differs first.
CAUSES = {
    "samples": (
        "usual causes: a sampler or a shuffle without a seed (webdataset: .shuffle(n, seed=...)),"
        " files listed in no order"
    ),
    "input": "usual causes: augmentation or a worker without a seed, time in the data",
    "generators": "usual causes: no torch.manual_seed, draws whose number depends on time",
    "model input": "usual causes: noise from a generator without a seed, time in the data",
}
OTHERWISE = (
    "usual causes: threads, cuDNN's choice of kernels, atomics on a GPU"
    " (torch.use_deterministic_algorithms(True)), time"
)


@dataclass(frozen=True)
class Determinism:
    """`finding`: the promise. `apart`: by component, the first step in which undisturbed runs
    differ.
    `spread`: how far their losses are apart at most.
    """

    finding: ArmFinding | None
    apart: Mapping[str, int] = field(default_factory=dict)
    spread: float | None = None

    @property
    def exact(self) -> bool:
        """Whether a step may be compared with the undisturbed run's, bit for bit."""
        return not self.apart and (self.finding is None or self.finding.status != UNKNOWN)

    def stable(self, component: str) -> bool:
        """Whether undisturbed runs agree in `component`, and, but for the samples and the settings,
        in all that it may follow from.
        """
        if component in ("samples", "settings"):
            return component not in self.apart
        return not any(
            COMPONENTS.index(name) <= COMPONENTS.index(component) or name in GENERATORS
            for name in self.apart
        )


def determinism(references: list[Judged], arms: Iterable[Arm]) -> Determinism:
    """The promise, from two undisturbed runs, or one and the first attempts of the arms."""
    if not references:
        return Determinism(None)
    first, *others = references
    left_out = unseeded(references)
    runs = [(other.arm.name, other.path) for other in others]
    runs += [
        (f"attempt {min(arm.attempts)} of {arm.name} before its failure", path)
        for arm in arms
        if (path := before_failure(arm)).steps
    ]
    apart: dict[str, int] = {}
    first_apart: tuple[int, str, str] | None = None
    for name, path in runs:
        differs = compare(path, first.path, left_out)
        for step in sorted(differs):
            for component in differs[step]:
                apart[component] = min(step, apart.get(component, step))
        if differs and (first_apart is None or min(differs) < first_apart[0]):
            first_apart = (min(differs), differs[min(differs)][0], name)
    spread = max((distance(path, first.path) for _, path in runs), default=0.0)
    return Determinism(
        _finding(first, others, runs, first_apart, left_out), apart, spread if apart else None
    )


def _finding(
    first: Judged,
    others: list[Judged],
    runs: list[tuple[str, CommittedSteps]],
    apart: tuple[int, str, str] | None,
    left_out: frozenset[str],
) -> ArmFinding:
    promise = "deterministic"
    if apart is not None:
        step, component, name = apart
        whose = (
            "two undisturbed runs"
            if any(name == other.arm.name for other in others)
            else f"the undisturbed run and {name}"
        )
        said = (
            f"{whose} differ from step {step} on, first in {component}: the effect of a failure"
            " cannot be told from that"
        )
        return ArmFinding(
            promise,
            UNKNOWN,
            said,
            name if name in {other.arm.name for other in others} else "",
            step,
            (CAUSES.get(component, OTHERWISE),),
        )
    for other in others:
        if first.path.last != other.path.last:
            said = (
                f"two undisturbed runs did {first.path.last} and {plural(other.path.last, 'step')}"
            )
            return ArmFinding(promise, UNKNOWN, said, other.arm.name)
    evidence = tuple(
        f"the {name} is not seeded alike: it is not compared" for name in sorted(left_out)
    )
    if others:
        return ArmFinding(
            promise,
            KEPT,
            f"{len(others) + 1} undisturbed runs are equal in all"
            f" {plural(first.path.last, 'step')}",
            evidence=evidence,
        )
    if runs:
        steps = max(path.last for _, path in runs)
        said = (
            "one undisturbed run was recorded, and what came before the failures equals it in"
            f" {plural(steps, 'step')}"
        )
        return ArmFinding(promise, KEPT, said, evidence=evidence)
    return ArmFinding(
        promise,
        NOT_CHECKED,
        "one undisturbed run was recorded; two show whether the job is deterministic",
    )


def before_failure(arm: Arm) -> CommittedSteps:
    """The steps of an arm's first attempt that no failure can have reached; none where it is the
    only one and no failure is on record.
    """
    number = min(arm.attempts)
    struck = [
        int(fault.get("step") or 0) for process in arm.attempts[number] for fault in process.faults
    ]
    end = min(struck, default=None if len(arm.attempts) > 1 else 0)
    processes = [
        replace(process, steps=[step for step in process.steps if end is None or step.number < end])
        for process in arm.attempts[number]
    ]
    return path_of(Arm(arm.name, arm.folder, {number: processes}))


def distance(path: CommittedSteps, reference: CommittedSteps, since: int = 0) -> float:
    """How far the losses of the same step and rank are apart, at most, after step `since`."""
    found = 0.0
    for number in path.steps.keys() & reference.steps.keys():
        for rank in (
            path.steps[number].keys() & reference.steps[number].keys() if number > since else ()
        ):
            ours, theirs = (
                path.steps[number][rank][1].losses,
                reference.steps[number][rank][1].losses,
            )
            pairs = [
                (one, other)
                for one, other in zip(ours, theirs, strict=False)
                if one is not None and other is not None
            ]
            found = max(
                [
                    found,
                    *(abs(one - other) for one, other in pairs if one == one and other == other),
                ]
            )
    return found
