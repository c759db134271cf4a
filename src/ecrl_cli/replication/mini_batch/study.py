"""`mini-batch-failure`: workers die in the middle of a mini-batch, and five recovery strategies are
compared. Published table I, figures 2, 3 and
4.

A trial is one run of one application with one seed: trained without failures, and at each scenario
every failure under every strategy from the same state (`cells`); or to its end without and then
with failures (`long`). The workers are simulated one after the other on one thread: the results are
those of a synchronous job, and equality always means bitwise. One more trial uses real processes:
dormant workers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.config.studies import MiniBatchFailure
from ecrl_cli.data import preflight
from ecrl_cli.errors import ConfigError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.replication.mini_batch.findings import findings
from ecrl_cli.replication.mini_batch.sizes import SIZES, Size
from ecrl_cli.studies.frame.study import Arm, Study, StudyContext, Trial

if TYPE_CHECKING:  # a trial needs torch, listing the study's keys does not
    from ecrl_cli.replication.mini_batch.simulated_run import SimulatedRun

POINTS = 20  # of the held-out accuracy over the run
_DATA_SETS = {"resnet50": "tinyimagenet", "nt3": "nt3"}


def _checked(context: StudyContext) -> bool:
    """Raises ConfigError for an impossible study, once, before its first trial."""
    keys: MiniBatchFailure = context.keys
    for application in keys.applications:
        _check_length(keys, SIZES[keys.scale][application])
    if keys.data == "files":
        for application in keys.applications:
            preflight.check(DatasetConfig(name=_DATA_SETS[application], root=keys.root))
    if keys.scale in ("paper", "middle"):
        from ecrl_cli.replication.mini_batch.long_run import refuse_what_cannot_be

        refuse_what_cannot_be(keys, context.config.workers or len(os.sched_getaffinity(0)))
    return True


def _check_length(keys: MiniBatchFailure, size: Size) -> None:
    """Raises ConfigError if so many workers use up the data before the last scenario."""
    workers, last = keys.replicas, max(size.scenarios.values())
    if size.mini_batches(workers) < last:
        fact = (
            f"with {workers} workers the run has {size.mini_batches(workers)} mini-batches, the"
            f" last scenario is the {last}th"
        )
        raise ConfigError("study.replicas", fact, "use fewer")


def _trials(kind: str, context: StudyContext) -> list[Trial]:
    context.shared(_checked)
    return [
        Trial(
            f"{kind}/{application}/{seed:03d}",
            {"kind": kind, "application": application, "seed": seed},
        )
        for application in context.keys.applications
        for seed in range(context.keys.seeds)
    ]


@contextmanager
def _folder(context: StudyContext, trial: Trial) -> Iterator[Path]:
    """A temporary folder for the trial. Sets torch to one thread: the thread count changes the
    bits, and trials share the cores.
    """
    import torch

    folder, threads = context.scratch / trial.key.replace("/", "-"), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield folder
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(folder, ignore_errors=True)


def _dormant(context: StudyContext, trial: Trial) -> dict[str, Any]:
    from ecrl_cli.replication.mini_batch.dormant import dormant_arm

    with _folder(context, trial) as folder:
        return dormant_arm(folder, context.keys.averages)


def _train(context: StudyContext, trial: Trial) -> dict[str, Any]:
    from ecrl_cli.replication.mini_batch.cells import corrections
    from ecrl_cli.replication.mini_batch.long_run import long_run
    from ecrl_cli.replication.mini_batch.samples import samples_of
    from ecrl_cli.replication.mini_batch.simulated_run import SimulatedRun
    from ecrl_cli.replication.mini_batch.simulated_trainer import (
        SimulatedCheckpoints,
        Trainee,
        Workers,
    )

    keys, application, seed = context.keys, trial.facts["application"], trial.facts["seed"]
    size, drawn = (
        SIZES[keys.scale][application],
        context.rng(f"{application}/{seed}").getrandbits(31),
    )
    with _folder(context, trial) as folder:
        folder.mkdir()
        began = monotonic()
        samples = samples_of(keys, application, size, drawn)
        trainee = Trainee(samples.size, drawn)
        workers = Workers(trainee, samples)
        init_s = monotonic() - began
        checkpoints = SimulatedCheckpoints(folder / "checkpoints", trainee)
        sim = SimulatedRun(trainee, workers, checkpoints, corrections(keys))
        try:
            if trial.facts["kind"] == "long":
                return long_run(sim, keys, seed, str(drawn), folder)
            return _cells(context, sim, size, trial, str(drawn)) | {"parts": _parts(sim, init_s)}
        finally:
            checkpoints.close()


def _cells(
    context: StudyContext, sim: SimulatedRun, size: Size, trial: Trial, drawn: str
) -> dict[str, Any]:
    """The whole run without failures, with its accuracy at intervals, and all cells at each
    scenario.
    """
    from ecrl_cli.replication.mini_batch.cells import try_scenario

    last = size.mini_batches(context.keys.replicas)
    looks = {max(1, round(last * (index + 1) / POINTS)) for index in range(POINTS)}
    evolution, scenarios = [[0, *sim.samples.accuracy(sim.trainee.model)]], []
    for mini_batch in sorted(looks | set(size.scenarios.values())):
        sim.run_to(mini_batch - 1)
        if mini_batch in size.scenarios.values():
            scenarios.append(
                try_scenario(
                    sim, mini_batch, context.keys, drawn, context.rng(f"{trial.key}/{mini_batch}")
                )
            )
        else:
            sim.run_to(mini_batch)
        evolution.append([mini_batch, *sim.samples.accuracy(sim.trainee.model)])
    return {"evolution": evolution, "scenarios": scenarios}


def _parts(sim: SimulatedRun, init_s: float) -> dict[str, Any]:
    """Measurements for `components.MeasuredParts`."""
    began = monotonic()
    sim.checkpoints.restore()
    load_s = monotonic() - began
    saving = sim.checkpoints.saving_s
    return {
        "workers": sim.workers.number,
        "mini_batches_per_epoch": sim.samples.per_epoch,
        "mini_batches": sim.samples.size.mini_batches(sim.workers.number),
        "layers": len(sim.trainee.parameters),
        "model_bytes": sim.trainee.nbytes,
        "mini_batch_s": sum(sim.steps_s) / len(sim.steps_s),
        "init_s": init_s,
        "checkpoint_s": sum(saving) / len(saving),
        "load_s": load_s,
    }


STUDY = Study(
    keys=MiniBatchFailure,
    description=(
        "Workers die in the middle of a mini-batch, and five ways to go on; simulated. Published"
        " Table I, Figures 2, 3 and 4."
    ),
    arms=(  # the long ones first, so that no worker is left with a long one at the end
        Arm("long", partial(_trials, "long"), _train, lambda keys: bool(keys.long_run)),
        Arm("cells", partial(_trials, "cells"), _train),
        Arm(
            "dormant",
            lambda context: [Trial("dormant", {"kind": "dormant"})],
            _dormant,
            lambda keys: bool(keys.averages),
        ),
    ),
    findings=(lambda results: findings(results.keys, results.records),),
    fact="kind",
)
