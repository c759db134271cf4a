"""`recovery-overhead`: the cost of each recovery strategy by a model, as the published study
promised: parts, and jobs at scale.

Arms: `check` (the simulation against closed forms, and with planted bugs), `optimum` (the best
checkpoint interval, by formula and by search), `scale` (every strategy over MTBF and number of
workers), `two minutes` (the published claim), `recorded` (recorded failures, predicted).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ecrl_cli.config.studies import RecoveryOverhead
from ecrl_cli.replication.overhead import closed_forms, tables
from ecrl_cli.replication.overhead.closed_forms import CASES, PLANTED
from ecrl_cli.replication.overhead.experiments import Experiments
from ecrl_cli.replication.overhead.findings import figures, gates, notes
from ecrl_cli.replication.overhead.record_index import (
    RecordIndex,
    RunTimings,
    measured_parts,
    parts_without,
    predictable,
    recordings,
)
from ecrl_cli.replication.overhead.simulate import system_mtbf
from ecrl_cli.replication.overhead.strategies import (
    PUBLISHED,
    Loss,
    Parts,
    checkpoint_restart,
    typed,
    typed_alone,
    waiting,
)
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import Arm, Skip, Study, StudyContext, Trial, TrialResults


def _recordings(context: StudyContext) -> list[RunTimings]:
    """The recordings; read only by the planning process, since trial facts hold all that workers
    need.
    """
    source = context.keys.source
    return [] if source in ("published", "typed") else recordings(Path(source).expanduser())


def _models(context: StudyContext) -> dict[str, Parts]:
    """The parts by the name of what they were measured on."""
    keys: RecoveryOverhead = context.keys
    if keys.source == "published":
        return {name: typed(keys, parts) for name, parts in PUBLISHED.items()}
    if keys.source == "typed":
        return {"typed": typed_alone(keys)}
    return {"measured": typed(keys, measured_parts(context.shared(_recordings)))}


def _skips(context: StudyContext) -> list[Skip]:
    found = context.shared(_recordings)
    if not found or predictable(found):
        return []
    return [
        Skip(
            "prediction",
            "one failure is on record, and no other to predict it from: name a folder of runs with"
            " more",
        )
    ]


def _run(context: StudyContext, trial: Trial) -> dict[str, Any]:
    rng = np.random.default_rng(context.rng(trial.key).getrandbits(128))
    return Experiments(context.keys).run(trial.facts, rng)


def _checks(context: StudyContext) -> Iterator[Trial]:
    for name in (*CASES, *(PLANTED if context.keys.planted else ())):
        yield Trial(f"check/{name}", {"kind": "check", "case": name})


def _recorded(context: StudyContext) -> Iterator[Trial]:
    every = context.shared(_recordings)
    for recording in every:
        for failure in recording.failures:
            parts, others = parts_without(every, recording, failure)
            facts = {
                "run": recording.name,
                "strategy": recording.strategy,
                "workers": recording.workers,
                **asdict(failure),
            }
            yield Trial(
                f"recorded/{recording.name}/{failure.attempt}",
                {"kind": "recorded", **facts, "from": others, "others": asdict(parts)},
            )


def _two_minutes(context: StudyContext) -> Iterator[Trial]:
    for name, (checkpoint, restart) in _assumptions(context).items():
        needed = closed_forms.needed(checkpoint, restart)
        mtbfs = {
            "published": system_mtbf(closed_forms.WORKER_MTBF, closed_forms.WORKERS),
            **({"needed": needed} if needed else {}),
        }
        for at, mtbf in mtbfs.items():
            facts = {
                "assumption": name,
                "checkpoint": checkpoint,
                "restart": restart,
                "at": at,
                "mtbf": mtbf,
            }
            yield Trial(f"two minutes/{name}/{at}", {"kind": "two minutes", **facts})


def _assumptions(context: StudyContext) -> dict[str, tuple[float, float]]:
    """Seconds of a checkpoint and of a restart under which the claim is evaluated."""
    scenario = Experiments(context.keys).scenario(closed_forms.WORKERS)
    found = {
        name: (p.checkpoint, waiting(checkpoint_restart(p, scenario, Loss(0.0))))
        for name, p in context.shared(_models).items()
    }
    return {"both cost nothing": (0.0, 0.0), "5 s and 30 s": (5.0, 30.0), **found}


def _cells(context: StudyContext) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every model, MTBF and size: the parts and the MTBF of a system of that size."""
    keys = context.keys
    for model, parts in context.shared(_models).items():
        for minutes in keys.mtbf_min:
            for workers in keys.workers:
                mtbf = (
                    system_mtbf(60.0 * minutes * keys.reference_workers, workers)
                    if keys.reference_workers
                    else 60.0 * minutes
                )
                yield (
                    f"{model}/{minutes}/{workers}",
                    {
                        "model": model,
                        "minutes": minutes,
                        "workers": workers,
                        "mtbf": mtbf,
                        **asdict(parts),
                    },
                )


def _optima(context: StudyContext) -> Iterator[Trial]:
    keys = context.keys
    for name, facts in _cells(context):
        yield Trial(f"optimum/{name}", {"kind": "optimum", **facts, "shape": 1.0})
        if facts["workers"] == max(keys.workers) and keys.weibull_shape != 1.0:
            yield Trial(
                f"optimum/{name}/weibull", {"kind": "optimum", **facts, "shape": keys.weibull_shape}
            )


def _findings(results: TrialResults) -> Findings:
    context = results.context
    found = RecordIndex(
        context.keys, context.shared(_models), context.shared(_recordings), results.records
    )
    shown = tuple(made for make in tables.ORDER if (made := make(found)).rows)
    return Findings(shown, figures(found), gates(found), notes(found))


STUDY = Study(
    keys=RecoveryOverhead,
    description=(
        "What each recovery strategy costs: a sum of measured parts, and a job at scale simulated"
        " event by event."
    ),
    arms=(
        Arm("check", _checks, _run),
        Arm("recorded", _recorded, _run),
        Arm("two minutes", _two_minutes, _run),
        Arm("optimum", _optima, _run),
        Arm(
            "scale",
            lambda context: [
                Trial(f"scale/{name}", {"kind": "scale", **facts})
                for name, facts in _cells(context)
            ],
            _run,
        ),
    ),
    findings=(_findings,),
    skips=_skips,
    fact="kind",
)
