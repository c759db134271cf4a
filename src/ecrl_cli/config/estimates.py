"""Rough estimates without torch: the bytes of a snapshot and the seconds of a run."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import NamedTuple

from ecrl_cli.config.schema import DatasetConfig, RunConfig

_BYTES = 4  # parameters and optimizer state are fp32, under autocast too


class _Cost(NamedTuple):
    """Milliseconds that one core takes for a training step of one sample of 32 x 32 pixels: fixed,
    for the model's width, and for its square. Narrow networks move memory, wide ones multiply.
    """

    fixed: float
    linear: float
    square: float


# Fitted to one core of an AMD EPYC at widths of 8 to 128 (2026-11-28), and multiplied by 0.75: on
# other days the same machine was up to twice as fast, and so both lie within a factor of two. Below
# a hundredth of a second a step is all overhead.
_COSTS = {
    "resnet18": _Cost(0.0, 0.15, 0.011),
    "resnet50": _Cost(0.0, 0.49, 0.033),
    "resnet152": _Cost(0.0, 0.89, 0.053),
    "small_cnn": _Cost(0.0, 0.033, 0.0006),  # of depth 4
    "vit": _Cost(0.9, 0.0, 0.00034),  # of depth 4
    "nt3": _Cost(0.0, 3.3, 0.05),  # of one profile
}
# parameters at 64 channels
_RESNETS = {"resnet18": 11.2e6, "resnet50": 23.5e6, "resnet152": 58.2e6}
_PROFILE = 60_483  # genes
_CORES_OF_A_GPU = 400  # that together are as fast as one data-centre GPU
# pixels; of the others dataset.image_size
_SIDES = {"digits": 8, "cifar10": 32, "cifar100": 32, "tinyimagenet": 64}
_STEP_FLOOR_S = 0.01
_START_S = {"zygote": 1.0}  # from a launch to the first step
_START_ELSEWHERE_S = 4.5


def parameters(config: RunConfig) -> float:
    """Approximate number of parameters; a model that is not built in counts as small_cnn."""
    model, width = config.model, config.model.width
    if model.name in _RESNETS:
        return _RESNETS[model.name] * (width / 64) ** 2
    if model.name == "vit":
        return 12.0 * model.depth * width**2
    if model.name == "nt3":  # nearly all in the first dense layer: of 200, behind a pooling of 10
        return 20.0 * _features(config) * width
    channels = [3, *(width * min(1 << block, 8) for block in range(model.depth))]
    return 9.0 * sum(inputs * outputs for inputs, outputs in pairwise(channels))


def _features(config: RunConfig) -> int:
    """Values of one sample."""
    data = config.dataset
    return (
        _PROFILE
        if data.name == "nt3"
        else _side(data) ** 2 * (1 if data.name == "digits" else data.channels)
    )


def _side(data: DatasetConfig) -> int:
    return _SIDES.get(data.name, data.image_size)


def snapshot_bytes(config: RunConfig) -> int:
    """Approximate bytes of a checkpoint: parameters and optimizer state."""
    # of the optimizer, for each parameter
    states = 2 if config.optimizer.name == "adamw" else int(config.optimizer.momentum > 0)
    return round(_BYTES * parameters(config) * (1 + states))


def core_seconds(config: RunConfig) -> float:
    """Approximate seconds of one core for a step of one sample."""
    model, cost = config.model, _COSTS.get(config.model.name, _COSTS["small_cnn"])
    share = (_side(config.dataset) / 32) ** 2
    if model.name == "nt3":
        share = _features(config) / _PROFILE
    elif model.name == "vit":
        share = model.depth / 4  # always as many patches
    elif model.name not in _RESNETS:
        share *= model.depth / 4
    elif model.stem == "imagenet":
        share /= 16
    return 1e-3 * share * (cost.fixed + cost.linear * model.width + cost.square * model.width**2)


def seconds(config: RunConfig, *, gpus: int) -> float:
    """Approximate seconds of a run with its launches. `gpus`: of each node, shared where there are
    more ranks; 0: it trains on the processor.
    """
    failure = config.failure
    drawn = config.target_steps / failure.mtbf_steps if failure.mtbf_steps else 0
    failures = len(failure.steps) + len(failure.entries) + drawn
    starts = _START_S.get(config.supervision.launcher, _START_ELSEWHERE_S) * (
        1 + failures + len(config.elastic.schedule)
    )
    there = gpus * config.supervision.nodes if gpus else os.cpu_count() or 1
    workers = min(config.world_size, there)
    cores = _CORES_OF_A_GPU if gpus else config.threads
    return starts + config.target_steps * max(
        core_seconds(config) * config.global_batch / (cores * workers), _STEP_FLOOR_S
    )


def human_bytes(count: float) -> str:
    """`count` bytes with a unit that keeps it below a thousand."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.3g} {unit}"
        count /= 1000
    return ""


def human_seconds(count: float) -> str:
    """`count` seconds, rounded for people."""
    for size, unit in ((3600, "h"), (60, "min")):
        if count >= 1.5 * size:
            return f"{count / size:.2g} {unit}"
    return f"{max(1, round(count))} s"
