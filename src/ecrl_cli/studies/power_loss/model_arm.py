"""The arm `model`: workload x layout x write mode x fault model with a power loss at each moment;
the published protocol; planted bugs, each of which must break a promise of its write mode in some
state.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from ecrl_cli.checkpoint.store.catalog import ResumeChoice
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.config.schema import LAYOUTS
from ecrl_cli.storage.fs import Fs
from ecrl_cli.studies.frame.store_fixture import store_config
from ecrl_cli.studies.frame.study import StudyContext, Trial
from ecrl_cli.studies.mutants.registry import STORE_MUTANTS, StoreMutant
from ecrl_cli.studies.power_loss.model_disk import MODELS, Forest
from ecrl_cli.studies.power_loss.model_invariants import RecoveryOracle
from ecrl_cli.studies.power_loss.model_trial import Limits, ModelTrial, broken
from ecrl_cli.studies.power_loss.workloads import (
    ROOT,
    WORKLOADS,
    WorkloadRun,
    honest,
    played,
    published,
)

PUBLISHED = "two"  # the published protocol's workload
# tried exhaustively: a state left out could be the one that breaks the promise
_PROMISED = "atomic_dirsync"
_IN_FULL = 64  # multiple of the others' limit


class ModelArm:
    """Trials `model/ours/...`, `model/published/...` and `model/planted/...`."""

    def __init__(self, setting: StudyContext) -> None:
        self._setting, self._config = setting, setting.config.study
        self._planted = {each.name: each for each in STORE_MUTANTS}

    def plan(self) -> Sequence[Trial]:
        chosen = [each for each in WORKLOADS if each in self._config.model_workloads]
        trials = [
            self._cell("ours", mode, layout, workload, model)
            for workload in reversed(chosen)
            for layout in LAYOUTS
            for model in MODELS
            for mode in self._config.modes
        ]
        trials += [
            self._cell("published", mode, "group", PUBLISHED, model)
            for model in MODELS
            for mode in self._config.modes
        ]
        if self._config.planted:
            trials += [
                Trial(f"model/planted/{each.name}", {"arm": "planted", **_facts(each)})
                for each in STORE_MUTANTS
            ]
        return trials

    def run(self, trial: Trial) -> dict[str, Any]:
        rng, seed = self._setting.rng(trial.key), self._setting.config.seed
        if trial.facts["arm"] == "planted":
            return hunt(self._planted[trial.facts["name"]], seed, rng)
        facts = trial.facts
        single = facts["layout"] == "single"
        workload_run = played(
            facts["workload"],
            WorkloadRun(
                facts["mode"], single, seed, published if facts["arm"] == "published" else honest
            ),
        )
        judge = RecoveryOracle(Forest(), seed, single)
        cell = ModelTrial(workload_run, facts["model"], judge, self._limits(facts), rng)
        for _ in cell.judged():
            pass
        counts = asdict(cell.counts) | {"outcomes": dict(sorted(cell.counts.outcomes.items()))}
        found = {
            "calls": len(workload_run.fs.log),
            **counts,
            "distinct": len(cell.seen),
            "examined": judge.examined,
            "recoveries": judge.recoveries,
        }
        if facts["arm"] == "ours":
            found["second"] = cell.second()
            if facts["model"] == "X":
                found["folders"] = cell.in_folders(self._share(), self._setting.scratch)
        return found

    def _cell(self, arm: str, mode: str, layout: str, workload: str, model: str) -> Trial:
        facts = {"arm": arm, "mode": mode, "layout": layout, "workload": workload, "model": model}
        return Trial(f"model/{arm}/{mode}/{layout}/{workload}/{model}", facts)

    def _limits(self, facts: dict[str, Any]) -> Limits:
        states, second = self._config.model_states, self._config.model_second
        return (
            Limits(states * _IN_FULL, second)
            if facts["mode"] == _PROMISED and facts["arm"] == "ours"
            else Limits(states, second // 4)
        )

    def _share(self) -> int:
        """One cell's share of the states that are rebuilt in real folders."""
        cells = len(self._config.model_workloads) * len(LAYOUTS) * len(self._config.modes)
        return -(-int(self._config.model_folders) // cells)


def _facts(planted: StoreMutant) -> dict[str, Any]:
    names = ("name", "step", "kind", "mode", "layout", "situation")
    return {name: getattr(planted, name) for name in names}


STATES = 1024  # states per moment; a planted bug that shows in none of them counts as not found


def hunt(
    planted: StoreMutant, seed: int, rng: random.Random, states: int = STATES
) -> dict[str, Any]:
    """The first state that breaks the promise, under the mildest model that has one: `found`,
    `model`, `outcome` and `state` in words.
    """
    tried = 0
    for model in MODELS:
        single = planted.layout == "single"
        workload_run = played(
            planted.situation,
            WorkloadRun(
                planted.mode, single, seed, lambda fs, config: planted.store(ROOT, config, fs)
            ),
        )
        cell = ModelTrial(
            workload_run,
            model,
            RecoveryOracle(Forest(), seed, single, planted.verifier, recovery(planted)),
            Limits(states, 0),
            rng,
        )
        for _, found in cell.judged():
            if broken(planted.mode, model, found):
                return {
                    "found": True,
                    "model": model,
                    "outcome": found,
                    "state": cell.counts.examples[0],
                    "tried": tried + len(cell.seen),
                }
        tried += len(cell.seen)
    return {"found": False, "model": "", "outcome": "", "state": "", "tried": tried}


def recovery(planted: StoreMutant) -> Any:
    """How the broken store chooses, if it differs from the sound one."""
    if planted.make_store.newest_valid is CheckpointStore.newest_valid:
        return None

    def recover(fs: Fs) -> ResumeChoice:
        with closing(planted.store(ROOT, store_config(planted.mode), fs)) as store:
            return store.newest_valid()

    return recover
