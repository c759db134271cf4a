"""`power-loss`: the model and, if asked for and supported by the machine, real file systems."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ecrl_cli.config.studies import PowerLoss
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import Arm, Results, Study, StudyContext
from ecrl_cli.studies.power_loss import model_findings
from ecrl_cli.studies.power_loss.model_arm import ModelArm
from ecrl_cli.studies.power_loss.model_findings import model_classes

if TYPE_CHECKING:
    from ecrl_cli.studies.power_loss.real_arms import RealArms

MODEL = ("ours", "published", "planted")
REAL = ("shutdown", "blocks")


def _real(context: StudyContext) -> RealArms:
    from ecrl_cli.studies.power_loss.real_arms import RealArms

    return RealArms(context)


def _model_asked(keys: PowerLoss) -> bool:
    return "model" in keys.arms


def _real_asked(keys: PowerLoss) -> bool:
    return any(arm in keys.arms for arm in REAL)


def _model_findings(results: Results) -> Findings:
    records = results.of(*MODEL)
    return model_findings.findings(records, results.keys) if records else Findings()


def _real_findings(results: Results) -> Findings:
    """The real arms' findings; with both arms run, the model must also allow every real outcome."""
    records = results.of(*REAL)
    if not records:
        return Findings()
    from ecrl_cli.studies.power_loss.real_findings import not_kinder, real_findings

    found, classes = real_findings(records, results.keys.real_window_s), model_classes(results.records)
    compared = (not_kinder(classes, records),) if classes else ()
    return Findings(found.tables, found.figures, (*found.gates, *compared), found.notes)


def _arm(name: str, trials: Callable[[StudyContext], ModelArm | RealArms], asked: Callable[[PowerLoss], bool]) -> Arm:
    """The arm `name` of the trials from `trials(context)`, which several arms share."""
    return Arm(
        name,
        lambda context: [trial for trial in context.shared(trials).plan() if trial.facts["arm"] == name],
        lambda context, trial: context.shared(trials).run(trial),
        asked,
    )


STUDY = Study(
    keys=PowerLoss,
    description="Power loss: every legal state of a model; file systems cut off; every crash point of what a disk was told.",
    arms=(*(_arm(name, ModelArm, _model_asked) for name in MODEL), *(_arm(name, _real, _real_asked) for name in REAL)),
    findings=(_model_findings, _real_findings),
    skips=lambda context: context.shared(_real).skips() if _real_asked(context.keys) else (),
)
