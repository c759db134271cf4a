"""Estimates memory and time before the first trial of the published sizes."""

from __future__ import annotations

from dataclasses import replace

import psutil
import torch

from ecrl_cli.config.studies import MiniBatchFailure
from ecrl_cli.errors import ConfigError
from ecrl_cli.models import build
from ecrl_cli.replication.mini_batch.long_run import arms
from ecrl_cli.replication.mini_batch.samples import Samples, samples_of
from ecrl_cli.replication.mini_batch.simulated_trainer import Trainee
from ecrl_cli.replication.mini_batch.sizes import SIZES, Size
from ecrl_cli.replication.mini_batch.workers import Workers

_COPIES = 8  # copies of the state besides one set of gradients per worker: parameters, moments, before, after, what is averaged
_GB, _HOUR = 1e9, 3600.0


def refuse_what_cannot_be(config: MiniBatchFailure, processes: int) -> None:
    """Raises ConfigError if an application does not fit into memory or all together take longer than `config.hours`."""
    hours = 0.0
    for application in config.applications:
        size = SIZES[config.scale][application]
        _check_memory(config, application, size)
        hours += _seconds(config, application, size) / processes / _HOUR
    if hours > config.hours:
        fact = f"the scale {config.scale} would take about {hours:,.0f} hours here (a sample alone was timed), study.hours is {config.hours:g}"
        raise ConfigError("study.hours", fact, "use study.scale=small, fewer study.seeds or study.long_run=false, or raise it")


def needed_bytes(config: MiniBatchFailure, size: Size) -> int:
    """Bytes of every worker's gradients and of the copies of the state that a scenario holds at once."""
    with torch.device("meta"):
        model = build(size.model, size.classes, size.shape)
    return sum(parameter.nbytes for parameter in model.parameters()) * (config.replicas + _COPIES)


def _check_memory(config: MiniBatchFailure, application: str, size: Size) -> None:
    needed, free = needed_bytes(config, size), psutil.virtual_memory().available
    if needed > free:
        fact = f"{application} at the scale {config.scale} needs {needed / _GB:.1f} GB of memory, {free / _GB:.1f} GB are free"
        raise ConfigError("study.scale", fact, "use study.scale=small, or fewer study.replicas")


def _seconds(config: MiniBatchFailure, application: str, size: Size) -> float:
    """Seconds for the mini-batches of all runs, one worker after the other; each sample is estimated by the second pass of one generated sample."""
    few = replace(size, train=config.replicas, held_out=1, batch=1)
    samples: Samples = samples_of(replace(config, data="made"), application, few, seed=0)
    workers = Workers(Trainee(size, 0), samples)
    runs = 1 + (1 + 0.65 * len(arms(config, 1)) if config.long_run else 0)
    return workers.compute(1, 0).seconds * size.batch * config.replicas * size.mini_batches(config.replicas) * runs * config.seeds
