"""`power-loss`: the model and, if asked for and supported by the machine, real file systems."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ecrl_cli.config.studies import PowerLoss
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.study import Arm, Study, StudyContext, TrialResults
from ecrl_cli.studies.power_loss import model_findings as model
from ecrl_cli.studies.power_loss import real_findings as real
from ecrl_cli.studies.power_loss.model_arm import ModelArm
from ecrl_cli.studies.power_loss.real_arms import RealArms


def _arm(
    name: str,
    trials: Callable[[StudyContext], ModelArm | RealArms],
    keys: tuple[str, ...],
    missing: Callable[[StudyContext], str] = lambda context: "",
) -> Arm:
    """The arm `name` of the trials from `trials(context)`, which several arms share; on if the user
    asks for one of `keys`.
    """
    return Arm(
        name,
        lambda context: [
            trial for trial in context.shared(trials).plan() if trial.facts["arm"] == name
        ],
        lambda context, trial: context.shared(trials).run(trial),
        lambda asked: any(key in asked.arms for key in keys),
        missing,
    )


def _real_arm(name: str) -> Arm:
    return _arm(name, RealArms, (name,), lambda context: context.shared(RealArms).missing(name))


def not_kinder(results: TrialResults) -> Iterator[Gate]:
    """Every outcome of a mode on a real file system must be possible in the model, where both were
    tried.
    """
    allowed, seen = model.classes(results), real.classes(results)
    if not allowed or not results.of(*real.ARMS):
        return
    missing = [
        f"{mode}: {outcome} happened, the model has it not"
        for mode, found in sorted(seen.items())
        for outcome in sorted(found - allowed.get(mode, set()))
    ]
    kept = (
        f"the model has all {sum(map(len, seen.values()))} outcomes that {len(seen)} modes showed"
        " on real file systems"
    )
    yield Gate(
        "model not kinder",
        bool(seen) and not missing,
        "; ".join(missing) or (kept if seen else "no real trial ran"),
    )


STUDY = Study(
    keys=PowerLoss,
    description=(
        "Power loss: every legal state of a model; file systems cut off; every crash point of what"
        " a disk was told."
    ),
    arms=(*(_arm(name, ModelArm, ("model",)) for name in model.ARMS), *map(_real_arm, real.ARMS)),
    tables=(*model.TABLES, *real.TABLES),
    figures=lambda results: (*model.figures(results), *real.figures(results)),
    gates=(model.gates, real.gates, not_kinder),
    notes=lambda results: (*model.notes(results), *real.notes(results)),
    skips=lambda context: (
        context.shared(RealArms).skips()
        if any(arm in context.keys.arms for arm in real.ARMS)
        else ()
    ),
)
