"""Trains to the end of the run after a recovery, once and with repeated failures; and estimates
what the published sizes would take.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch

from ecrl_cli.config.studies import MiniBatchFailure
from ecrl_cli.errors import ConfigError
from ecrl_cli.models import build
from ecrl_cli.replication.mini_batch.cells import (
    corrections,
    middle,
    replace_corrections,
    survivors,
)
from ecrl_cli.replication.mini_batch.samples import Samples, samples_of
from ecrl_cli.replication.mini_batch.simulated_run import (
    EXACT,
    RECOVER,
    WITH_SURVIVORS,
    SimulatedFailure,
    SimulatedRun,
)
from ecrl_cli.replication.mini_batch.simulated_trainer import (
    SimulatedCheckpoints,
    State,
    Trainee,
    Workers,
)
from ecrl_cli.replication.mini_batch.sizes import SIZES, Size
from ecrl_cli.verify.sample_accounting import unaccounted

ONCE, REPEATEDLY = "once", "repeatedly"


def arms(config: MiniBatchFailure, seed: int) -> list[tuple[str, str]]:
    """(strategy, how often). Exact strategies are checked with the first seed and every failure
    only; there is nothing to compare.
    """
    lossy = [
        (strategy, often)
        for strategy in config.strategies
        if strategy not in EXACT
        for often in (ONCE, REPEATEDLY)
    ]
    exact = [(strategy, REPEATEDLY) for strategy in config.strategies if strategy in EXACT]
    return [*lossy, *(exact if seed == 0 else [])]


def struck(config: MiniBatchFailure, last: int, often: str) -> list[int]:
    """The mini-batches that fail: the middle one of the run, or `config.failures` at equal
    distances.
    """
    number = config.failures if often == REPEATEDLY else 1
    return sorted({max(1, round(last * (index + 1) / (number + 1))) for index in range(number)})


def long_run(
    sim: SimulatedRun, config: MiniBatchFailure, seed: int, key: str, scratch: Path
) -> dict[str, Any]:
    """Train without a failure and under every arm to the end. Returns JSON values."""
    last = sim.samples.size.mini_batches(sim.workers.number)
    start = sim.trainee.state()
    begins = {struck(config, last, often)[0]: start for _, often in arms(config, seed)}
    for mini_batch in sorted(begins):
        sim.run_to(mini_batch - 1)
        begins[mini_batch] = sim.trainee.state()
    sim.run_to(last)
    accuracy, loss = sim.samples.accuracy(sim.trainee.model)
    baseline = sim.trainee.digest()
    found = []
    for strategy, often in arms(config, seed):
        failing = struck(config, last, often)
        # starts at 1: it takes its own checkpoints
        first = 1 if strategy == "checkpoint_restart" else failing[0]
        begin = start if first == 1 else begins[first]
        found.append(
            _arm(
                sim,
                config,
                (strategy, often, failing),
                (first, begin),
                key,
                scratch / f"{strategy}-{often}",
            )
        )
        found[-1]["same"] = found[-1].pop("digest") == baseline
    return {"mini_batches": last, "baseline": {"accuracy": accuracy, "loss": loss}, "arms": found}


def _arm(
    whole: SimulatedRun,
    config: MiniBatchFailure,
    arm: tuple[str, str, list[int]],
    begin: tuple[int, State],
    key: str,
    folder: Path,
) -> dict[str, Any]:
    """Train to the end from `begin`, the state before the first mini-batch that fails."""
    strategy, often, failing = arm
    first, state = begin
    last = whole.samples.size.mini_batches(whole.workers.number)
    checkpoints = SimulatedCheckpoints(folder, whole.trainee)
    sim = replace_corrections(whole, corrections(config))
    sim.checkpoints = checkpoints
    sim.trainee.restore(state)
    sim.trainee.cursor.done = first - 1
    try:
        for mini_batch in failing:
            _forward(sim, strategy, mini_batch - 1)
            if strategy == "checkpoint_restart":
                sim.checkpoint_if_due()
            number = middle(config.survivors) if strategy in WITH_SURVIVORS else 0
            who = survivors(config, random.Random(f"{key}/{mini_batch}"), number)
            RECOVER[strategy](sim, SimulatedFailure(mini_batch, middle(config.percents), who))
        _forward(sim, strategy, last)
    finally:
        checkpoints.close()
    accuracy, loss = sim.samples.accuracy(sim.trainee.model)
    windows = {step: sim.samples.window(step) for step in range(first, last + 1)}
    wrong = unaccounted(windows, sim.trainee.names, sim.applied, sim.lost_samples)
    facts = {
        "strategy": strategy,
        "often": often,
        "failures": len(failing),
        "accuracy": accuracy,
        "loss": loss,
    }
    return facts | {"digest": sim.trainee.digest(), "unaccounted": wrong[:3], "kept": sim.kept}


def _forward(sim: SimulatedRun, strategy: str, mini_batch: int) -> None:
    """Train up to the mini-batch; checkpoints are taken only by the strategy that restarts from
    them.
    """
    if strategy == "checkpoint_restart":
        sim.run_to(mini_batch)
    while sim.done < mini_batch:
        sim.step()


# copies of the state besides one set of gradients per worker: parameters, moments, before, after,
# what is averaged
_COPIES = 8
_GB, _HOUR = 1e9, 3600.0


def refuse_what_cannot_be(config: MiniBatchFailure, processes: int) -> None:
    """Raises ConfigError if an application does not fit into memory or all together take longer
    than `config.hours`.
    """
    hours = 0.0
    for application in config.applications:
        size = SIZES[config.scale][application]
        _check_memory(config, application, size)
        hours += _seconds(config, application, size) / processes / _HOUR
    if hours > config.hours:
        fact = (
            f"the scale {config.scale} would take about {hours:,.0f} hours here (a sample alone was"
            f" timed), study.hours is {config.hours:g}"
        )
        raise ConfigError(
            "study.hours",
            fact,
            "use study.scale=small, fewer study.seeds or study.long_run=false, or raise it",
        )


def needed_bytes(config: MiniBatchFailure, size: Size) -> int:
    """Bytes of every worker's gradients and of the copies of the state that a scenario holds at
    once.
    """
    with torch.device("meta"):
        model = build(size.model, size.classes, size.shape)
    return sum(parameter.nbytes for parameter in model.parameters()) * (config.replicas + _COPIES)


def _check_memory(config: MiniBatchFailure, application: str, size: Size) -> None:
    needed, free = needed_bytes(config, size), psutil.virtual_memory().available
    if needed > free:
        fact = (
            f"{application} at the scale {config.scale} needs {needed / _GB:.1f} GB of memory,"
            f" {free / _GB:.1f} GB are free"
        )
        raise ConfigError("study.scale", fact, "use study.scale=small, or fewer study.replicas")


def _seconds(config: MiniBatchFailure, application: str, size: Size) -> float:
    """Seconds for the mini-batches of all runs, one worker after the other; each sample is
    estimated by the second pass of one generated sample.
    """
    few = replace(size, train=config.replicas, held_out=1, batch=1)
    samples: Samples = samples_of(replace(config, data="made"), application, few, seed=0)
    workers = Workers(Trainee(size, 0), samples)
    runs = 1 + (1 + 0.65 * len(arms(config, 1)) if config.long_run else 0)
    return (
        workers.compute(1, 0).seconds
        * size.batch
        * config.replicas
        * size.mini_batches(config.replicas)
        * runs
        * config.seeds
    )
