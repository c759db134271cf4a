"""Rough estimates without torch: the bytes of a snapshot and the seconds of a run."""

from __future__ import annotations

import os
from typing import NamedTuple

from ecrl_cli.config.schema import ModelConfig, RunConfig

_BYTES = 4  # parameters and optimizer state are fp32, under autocast too


class _Cost(NamedTuple):
    """Of a model, for its width and for the square of that: parameters, and what a training step of one sample (of 32 x 32 pixels, or one of NT3's
    profiles) takes one core, in milliseconds. Narrow networks move memory (`linear_ms`), wide ones multiply (`square_ms`)."""

    square_parameters: float
    linear_ms: float
    square_ms: float
    fixed_ms: float = 0.0
    linear_parameters: float = 0.0


# Fitted to one core of an AMD EPYC at widths of 8 to 128 (2026-11-28) and taken times 0.75, because the same machine was up to twice as fast on other
# days. The measured seconds then lie within a factor of two on both sides; below a hundredth of a second a step is all overhead.
_COSTS = {
    "resnet18": _Cost(11.2e6 / 64**2, 0.15, 0.011),
    "resnet50": _Cost(23.5e6 / 64**2, 0.49, 0.033),
    "resnet152": _Cost(58.2e6 / 64**2, 0.89, 0.053),
    "small_cnn": _Cost(382, 0.033, 0.0006),
    "vit": _Cost(48, 0.0, 0.00034, fixed_ms=0.9),  # of depth 4
    "nt3": _Cost(0, 3.3, 0.05, linear_parameters=1.21e6),
}
_CORES_OF_A_GPU = 400  # that together are as fast as one data-centre GPU
_SIDES = {"digits": 8, "cifar10": 32, "cifar100": 32, "tinyimagenet": 64}  # pixels; of the others dataset.image_size
_STEP_FLOOR_S = 0.01
_START_S = {"zygote": 1.0}  # from a launch to the first step
_START_ELSEWHERE_S = 4.5


def parameters(model: ModelConfig) -> float:
    """Approximate number of parameters of `model`; one that is not built in counts as small_cnn."""
    cost = _COSTS.get(model.name, _COSTS["small_cnn"])
    return cost.square_parameters * model.width**2 * _depth(model) + cost.linear_parameters * model.width


def _depth(model: ModelConfig) -> float:
    return model.depth / 4 if model.name == "vit" else 1.0


def snapshot_bytes(config: RunConfig) -> int:
    """Approximate bytes of a checkpoint: parameters and optimizer state."""
    states = 2 if config.optimizer.name == "adamw" else int(config.optimizer.momentum > 0)  # of the optimizer, for each parameter
    return round(_BYTES * parameters(config.model) * (1 + states))


def core_seconds(config: RunConfig) -> float:
    """Approximate seconds of one core for a step of one sample."""
    model, cost = config.model, _COSTS.get(config.model.name, _COSTS["small_cnn"])
    area = 1.0
    if model.name not in ("vit", "nt3"):
        area = (_SIDES.get(config.dataset.name, config.dataset.image_size) / 32) ** 2
        area /= 16 if model.stem == "imagenet" and model.name != "small_cnn" else 1
    return 1e-3 * area * _depth(model) * (cost.fixed_ms + cost.linear_ms * model.width + cost.square_ms * model.width**2)


def seconds(config: RunConfig, *, gpu: bool) -> float:
    """Approximate seconds of a run with its launches."""
    failure = config.failure
    drawn = config.target_steps / failure.mtbf_steps if failure.mtbf_steps else 0
    failures = len(failure.steps) + len(failure.entries) + drawn
    starts = _START_S.get(config.supervision.launcher, _START_ELSEWHERE_S) * (1 + failures + len(config.elastic.schedule))
    workers = config.world_size if gpu else min(config.world_size, os.cpu_count() or 1)
    cores = _CORES_OF_A_GPU if gpu else config.threads
    return starts + config.target_steps * max(core_seconds(config) * config.global_batch / (cores * workers), _STEP_FLOOR_S)


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
