"""`mini-batch-failure`: workers die in the middle of a mini-batch, and five ways to go on. Published Table I, Figures 2, 3 and 4.

A trial is one run of one application with one seed: trained without failures, and at each scenario every failure under every strategy from the
same state (`cells`); or to its end once without and then with failures (`long`). The workers are simulated, one after the other on one thread:
their numbers are those of a synchronous job, and every statement of equality is of bits. One more trial has real processes: dormant workers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

import torch

from ecrl_cli.config.mini_batch import MiniBatchFailure
from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.data import preflight
from ecrl_cli.errors import ConfigError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.replication.mini_batch.cells import corrections, try_scenario
from ecrl_cli.replication.mini_batch.checkpoints import Checkpoints
from ecrl_cli.replication.mini_batch.dormant_arm import dormant_arm
from ecrl_cli.replication.mini_batch.estimate import refuse_what_cannot_be
from ecrl_cli.replication.mini_batch.findings import findings
from ecrl_cli.replication.mini_batch.long_run import long_run
from ecrl_cli.replication.mini_batch.samples import samples_of
from ecrl_cli.replication.mini_batch.scene import Scene
from ecrl_cli.replication.mini_batch.simulated_trainer import Trainee
from ecrl_cli.replication.mini_batch.sizes import SIZES, Size
from ecrl_cli.replication.mini_batch.workers import Workers
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, Skip, StudyContext, Trial

POINTS = 20  # of the evolution
_DATA_SETS = {"resnet50": "tinyimagenet", "nt3": "nt3"}


def make(setting: StudyContext) -> PreparedStudy:
    return _MiniBatchFailure(setting)


class _MiniBatchFailure:
    def __init__(self, setting: StudyContext) -> None:
        self._setting = setting
        self._config: MiniBatchFailure = setting.config.study

    def plan(self) -> list[Trial]:
        """The long ones first, so that no worker is left with one at the end."""
        for application in self._config.applications:
            self._check_length(SIZES[self._config.scale][application])
        if self._config.data == "files":
            for application in self._config.applications:
                preflight.check(DatasetConfig(name=_DATA_SETS[application], root=self._config.root))
        if self._config.scale == "paper":
            refuse_what_cannot_be(self._config, self._setting.config.workers or len(os.sched_getaffinity(0)))
        kinds = ("long", "cells") if self._config.long_run else ("cells",)
        trials = [
            Trial(f"{kind}/{application}/{seed:03d}", {"kind": kind, "application": application, "seed": seed})
            for kind in kinds
            for application in self._config.applications
            for seed in range(self._config.seeds)
        ]
        return trials + ([Trial("dormant", {"kind": "dormant"})] if self._config.averages else [])

    def skips(self) -> list[Skip]:
        return []

    def run(self, trial: Trial) -> dict[str, Any]:
        folder = self._setting.scratch / trial.key.replace("/", "-")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the number of threads changes the bits, and the trials share the cores
        try:
            if trial.facts["kind"] == "dormant":
                return dormant_arm(folder, self._config.averages)
            folder.mkdir()
            return self._train(trial)
        finally:
            torch.set_num_threads(threads)
            shutil.rmtree(folder, ignore_errors=True)

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(self._config, records)

    def close(self) -> None:
        """Every trial gives back what it took."""

    def _check_length(self, size: Size) -> None:
        """ConfigError where so many workers use up the data before the last scenario."""
        workers, last = self._config.replicas, max(size.scenarios.values())
        if size.mini_batches(workers) < last:
            fact = f"with {workers} workers the run has {size.mini_batches(workers)} mini-batches, the last scenario is the {last}th"
            raise ConfigError("study.replicas", fact, "use fewer")

    def _train(self, trial: Trial) -> dict[str, Any]:
        application, seed = trial.facts["application"], trial.facts["seed"]
        size, folder = SIZES[self._config.scale][application], self._setting.scratch / trial.key.replace("/", "-")
        drawn = self._setting.rng(f"{application}/{seed}").getrandbits(31)
        began = monotonic()
        samples = samples_of(self._config, application, size, drawn)
        trainee = Trainee(samples.size, drawn)
        workers = Workers(trainee, samples)
        init_s = monotonic() - began
        checkpoints = Checkpoints(folder / "checkpoints", trainee)
        scene = Scene(trainee, workers, checkpoints, corrections(self._config))
        try:
            if trial.facts["kind"] == "long":
                return long_run(scene, self._config, seed, str(drawn), folder)
            return self._cells(scene, size, trial, str(drawn)) | {"parts": _parts(scene, init_s)}
        finally:
            checkpoints.close()

    def _cells(self, scene: Scene, size: Size, trial: Trial, drawn: str) -> dict[str, Any]:
        """The whole run without failures, with a look at its accuracy now and then, and at each scenario all cells."""
        last = size.mini_batches(self._config.replicas)
        looks = {max(1, round(last * (index + 1) / POINTS)) for index in range(POINTS)}
        evolution, scenarios = [[0, *scene.samples.accuracy(scene.trainee.model)]], []
        for mini_batch in sorted(looks | set(size.scenarios.values())):
            scene.run_to(mini_batch - 1)
            if mini_batch in size.scenarios.values():
                scenarios.append(try_scenario(scene, mini_batch, self._config, drawn, self._setting.rng(f"{trial.key}/{mini_batch}")))
            else:
                scene.run_to(mini_batch)
            evolution.append([mini_batch, *scene.samples.accuracy(scene.trainee.model)])
        return {"evolution": evolution, "scenarios": scenarios}


def _parts(scene: Scene, init_s: float) -> dict[str, Any]:
    """What parts.MeasuredParts is made of."""
    began = monotonic()
    scene.checkpoints.restore()
    load_s = monotonic() - began
    saving = scene.checkpoints.saving_s
    return {
        "workers": scene.workers.number,
        "mini_batches_per_epoch": scene.samples.per_epoch,
        "mini_batches": scene.samples.size.mini_batches(scene.workers.number),
        "layers": len(scene.trainee.parameters),
        "model_bytes": scene.trainee.nbytes,
        "mini_batch_s": sum(scene.steps_s) / len(scene.steps_s),
        "init_s": init_s,
        "checkpoint_s": sum(saving) / len(saving),
        "load_s": load_s,
    }
