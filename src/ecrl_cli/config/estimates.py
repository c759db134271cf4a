"""Rough estimates without torch: the bytes of a snapshot and the seconds of a run."""

from __future__ import annotations

import os

from ecrl_cli.config.schema import ModelConfig, RunConfig

_BYTES = 4  # parameters and optimizer state are fp32, under autocast too
_RESNETS = {"resnet18": 11.2e6, "resnet50": 23.5e6, "resnet152": 58.2e6}  # at 64 channels
_RESNET_GFLOP = {"resnet18": 0.56, "resnet50": 1.31, "resnet152": 3.7}  # one 32 x 32 picture forward, CIFAR stem (multiply-adds)
# Reached by one core and by one data-centre GPU. The convolutions of ResNet-18 are all 3 x 3: a core is twice as fast at them.
_CPU_GFLOPS, _GPU_GFLOPS = {"resnet18": 55.0}, 20_000.0
_CPU_GFLOPS_ELSEWHERE = 30.0
_STEP_FLOOR_S = 0.01
_START_S = {"zygote": 1.0}  # from a launch to the first step
_START_ELSEWHERE_S = 4.5


def parameters(model: ModelConfig) -> float:
    """Approximate number of parameters of `model`."""
    if model.name in _RESNETS:
        return _RESNETS[model.name] * (model.width / 64) ** 2
    return 12.0 * model.depth * model.width**2 if model.name == "vit" else 100.0 * model.width**2


def snapshot_bytes(config: RunConfig) -> int:
    """Approximate bytes of a checkpoint: parameters and optimizer state."""
    states = 2 if config.optimizer.name == "adamw" else int(config.optimizer.momentum > 0)  # of the optimizer, for each parameter
    return round(_BYTES * parameters(config.model) * (1 + states))


def seconds(config: RunConfig, *, gpu: bool) -> float:
    """Approximate seconds of a run with its launches: a step counts as three forward passes, at two operations per multiply-add."""
    model = config.model
    if model.name in _RESNETS:
        gflop = _RESNET_GFLOP[model.name] * (model.width / 64) ** 2
    else:
        gflop = parameters(model) * (50e-9 if config.dataset.name == "digits" else 100e-9)  # of 8 x 8 pixels, and of more
    work = 6 * gflop * config.global_batch
    rate = _GPU_GFLOPS if gpu else _CPU_GFLOPS.get(model.name, _CPU_GFLOPS_ELSEWHERE) * config.threads
    failure = config.failure
    drawn = config.target_steps / failure.mtbf_steps if failure.mtbf_steps else 0
    failures = len(failure.steps) + len(failure.entries) + drawn
    starts = _START_S.get(config.supervision.launcher, _START_ELSEWHERE_S) * (1 + failures + len(config.elastic.schedule))
    workers = config.world_size if gpu else min(config.world_size, os.cpu_count() or 1)
    return starts + config.target_steps * max(work / (rate * workers), _STEP_FLOOR_S)


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
