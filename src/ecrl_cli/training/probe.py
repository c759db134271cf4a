"""Tries a data set, a model and a task together on two samples before anything is launched: `python
-m ecrl_cli.training.probe`, the configuration as JSON on standard input. The last line of standard
output is JSON: empty if they fit, else `key`, `fact` and `remedy`.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch

from ecrl_cli.checkpoint.capture.rng import capture_rng
from ecrl_cli.config.codec import decode
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.tasks import TASKS
from ecrl_cli.data.datasets import build_dataset, held_out_of
from ecrl_cli.data.loading import BatchLoader, describe
from ecrl_cli.data.sample_set import SampleSet
from ecrl_cli.errors import ConfigError, DatasetError, EcrlError, first_line, shown
from ecrl_cli.models import build as build_model
from ecrl_cli.models.optimization import autocast, build_optimizer
from ecrl_cli.records.events import DatasetRecord

SAMPLES = 2


def probe(config: RunConfig) -> None:
    """EcrlError, in one line, for the first thing that does not fit."""
    dataset = _dataset(config)
    record = describe(dataset)
    check_samples(config, dataset, record)
    torch.manual_seed(config.seed)
    try:
        model = build_model(config.model, record.classes, record.shape)
    except EcrlError:
        raise
    except Exception as error:
        fact = (
            f"{config.model.name} cannot be built for inputs of {record.shape} and {record.classes}"
            f" outputs ({_said(error)})"
        )
        raise ConfigError("model", fact, "choose a model of that kind of input") from error
    ids = np.arange(min(SAMPLES, len(dataset)), dtype=np.int64)
    batch = BatchLoader(dataset, config.seed, config.dataset.augment).batch(0, ids)
    try:
        with autocast(config.precision, torch.device("cpu")):
            loss = TASKS.of(config.task.name).load()(model, batch.x, batch.y)
        shape, single = tuple(loss.shape), loss.numel() == 1
        if single:
            loss.backward()
    except EcrlError:
        raise
    except Exception as error:
        fact = (
            f"{config.task.name} cannot compute the loss of model {config.model.name} on"
            f" {config.dataset.name} ({_said(error)})"
        )
        raise ConfigError("task", fact, "do model, data set and task belong together?") from error
    if not single:
        raise ConfigError(
            "task",
            f"{config.task.name} has a loss of shape {shape}",
            "return the mean over the batch: one number",
        )
    check_update(config, model)
    if config.evaluate.every:
        check_measures(config, model, held_out_of(dataset))


def check_update(config: RunConfig, model: torch.nn.Module) -> None:
    """ConfigError where the task's own update, if it has one, fails or draws random numbers. The
    parameters have gradients.
    """
    task, optimizer = (
        TASKS.of(config.task.name),
        build_optimizer(config.optimizer, model.parameters()),
    )
    before = capture_rng(torch.device("cpu"))
    try:
        update = task.load_update()
        if update:
            update(model, optimizer)
    except EcrlError:
        raise
    except Exception as error:
        fact = f"{task.name} cannot update model {config.model.name} ({_said(error)})"
        raise ConfigError(
            "task", fact, "mend its update, a function of model and optimizer"
        ) from error
    after = capture_rng(torch.device("cpu"))
    if any(not torch.equal(state, after[name]) for name, state in before.items()):
        raise ConfigError(
            "task",
            f"the update of {task.name} draws random numbers",
            "draw them in its loss: a recovery would draw others",
        )


def check_measures(config: RunConfig, model: torch.nn.Module, held_out: SampleSet) -> None:
    """EcrlError where what the task measures on held-out samples is not one number per sample."""
    task, name = TASKS.of(config.task.name), config.dataset.name
    check_samples(config, held_out, describe(held_out))
    ids = np.arange(min(SAMPLES, len(held_out)), dtype=np.int64)
    batch = BatchLoader(held_out, config.seed, augment=False).batch(0, ids)
    model.eval()
    try:
        with torch.no_grad(), autocast(config.precision, torch.device("cpu")):
            measured = task.load_measures()(model, batch.x, batch.y)
        shapes = {measure: tuple(each.shape) for measure, each in measured.items()}
        task.summarised(
            {measure: float(each.double().mean()) for measure, each in measured.items()}
        )
    except EcrlError:
        raise
    except Exception as error:
        fact = (
            f"{task.name} cannot measure model {config.model.name} on the held-out samples of"
            f" {name} ({_said(error)})"
        )
        raise ConfigError("task", fact, "mend its measures, or leave evaluate.every out") from error
    for measure, shape in shapes.items():
        if shape != (len(ids),):
            raise ConfigError(
                "task",
                f"{task.name} measures {measure} as {shape} for {len(ids)} samples",
                "return one number per sample",
            )


def check_samples(config: RunConfig, dataset: SampleSet, record: DatasetRecord) -> None:
    """ConfigError where the samples are not what the task is made for."""
    task, name = TASKS.of(config.task.name), config.dataset.name
    for what, have, want in (
        ("inputs", record.inputs, task.inputs),
        ("targets", record.targets, task.targets),
    ):
        if have != want:
            raise ConfigError(
                "task",
                f"{task.name} takes {what} of {want}, those of {name} are {have}",
                "choose another task, or convert them",
            )
    if task.target_dims is not None and len(record.target_shape) != task.target_dims:
        fact = (
            f"{task.name} takes targets of {task.target_dims} dimensions, one of {name} has"
            f" {len(record.target_shape)}"
        )
        raise ConfigError("task", fact, "choose another task, or reshape them")
    if config.dataset.augment and not dataset.traits.mean:
        raise ConfigError(
            "dataset.augment",
            f"{name} has no pictures that could be cropped and flipped",
            "add dataset.augment=false",
        )


def _dataset(config: RunConfig) -> SampleSet:
    try:
        return build_dataset(config.dataset)
    except EcrlError:
        raise
    except Exception as error:
        raise DatasetError(
            "dataset", f"{config.dataset.name} cannot be built ({_said(error)})", "mend its builder"
        ) from error


def _said(error: Exception) -> str:
    return shown(first_line(error, 1000), 160).strip("'\"")


def main() -> int:
    """0; the answer is on standard output."""
    answer = {}
    try:
        probe(decode(RunConfig, json.load(sys.stdin)))
    except EcrlError as error:
        answer = {"key": error.key, "fact": error.fact, "remedy": error.remedy}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
