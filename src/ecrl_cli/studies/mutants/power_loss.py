"""Checks that the power-loss model can see bugs: each planted bug must break a promise of its write mode in some state."""

from __future__ import annotations

import random
from contextlib import closing
from typing import Any

from ecrl_cli.checkpoint.store.catalog import ResumeChoice
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.storage.fs import Fs
from ecrl_cli.studies.mutants.registry import Planted
from ecrl_cli.studies.power_loss.model_cell import Cell, Limits, broken
from ecrl_cli.studies.power_loss.model_disk import MODELS
from ecrl_cli.studies.power_loss.model_invariants import RecoveryOracle
from ecrl_cli.studies.power_loss.tree_store import Forest
from ecrl_cli.studies.power_loss.workloads import ROOT, Bench, played, store_config

STATES = 1024  # states per moment; a planted bug that shows in none of them counts as not found


def hunt(planted: Planted, seed: int, rng: random.Random, states: int = STATES) -> dict[str, Any]:
    """The first state that breaks the promise, under the mildest model that has one: `found`, `model`, `outcome` and `state` in words."""
    tried = 0
    for model in MODELS:
        single = planted.layout == "single"
        bench = played(planted.situation, Bench(planted.mode, single, seed, lambda fs, config: planted.store(ROOT, config, fs)))
        cell = Cell(bench, model, RecoveryOracle(Forest(), seed, single, planted.examine, recovery(planted)), Limits(states, 0), rng)
        for _, found in cell.judged():
            if broken(planted.mode, model, found):
                return {"found": True, "model": model, "outcome": found, "state": cell.tally.examples[0], "tried": tried + len(cell.seen)}
        tried += len(cell.seen)
    return {"found": False, "model": "", "outcome": "", "state": "", "tried": tried}


def recovery(planted: Planted) -> Any:
    """How the broken store chooses, if it differs from the sound one."""
    if planted.make_store.newest_valid is CheckpointStore.newest_valid:
        return None

    def recover(fs: Fs) -> ResumeChoice:
        with closing(planted.store(ROOT, store_config(planted.mode), fs)) as store:
            return store.newest_valid()

    return recover
