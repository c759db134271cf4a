"""Generates trials of two to five phases with different world sizes and kills at random moments, with or without fixed replicas."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from ecrl_cli.config.build import build
from ecrl_cli.config.elastic import ranks_at
from ecrl_cli.config.fault_spec import Entry
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError
from ecrl_cli.studies.training import failures_generator as failures
from ecrl_cli.studies.training.failures_generator import BATCHES, available

TARGET, EVERY = 18, 4  # steps, and steps between checkpoints
SIZES = (1, 2, 3, 4)
MODELS = failures.MODELS | {"small_cnn": ({"name": "small_cnn", "width": 4, "dropout": 0.2}, {"name": "sgd", "lr": 0.05})}
_MOMENTS = ("boundary", "forward", "backward", "optimizer", "capture", "load")
_DRAWS = 200


@dataclass(frozen=True)
class ElasticRunSpec:
    """`replicas` 0: plain data parallelism. `sizes`: (first step, number of ranks), the first from step 0."""

    model: str
    strategy: str
    replicas: int
    sizes: tuple[tuple[int, int], ...]

    def keys(self, entries: tuple[str, ...] = ()) -> dict[str, Any]:
        model, optimizer = MODELS[self.model]
        found: dict[str, Any] = {
            "target_steps": TARGET,
            "global_batch": BATCHES[self.model],
            "world_size": self.sizes[0][1],
            "device": "cpu",
            "dataset": {"name": "digits"},
            "model": dict(model),
            "optimizer": dict(optimizer),
            "checkpoint": {"strategy": self.strategy, "every": EVERY},
            "elastic": {"replicas": self.replicas, "schedule": dict(self.sizes[1:])},
            "supervision": {"launcher": "zygote"},
        }
        return found | ({"failure": {"kind": "listed", "entries": list(entries)}} if entries else {})

    @property
    def reference(self) -> dict[str, Any]:
        """With replicas, a single rank; without, the same sizes at the same steps, since they affect the result there."""
        sizes = ((0, 1),) if self.replicas else self.sizes
        return ElasticRunSpec(self.model, "blocking", self.replicas, sizes).keys()

    def typed(self, entries: tuple[str, ...]) -> str:
        """The single run as a command."""
        words = [f"target_steps={TARGET}", f"global_batch={BATCHES[self.model]}", f"world_size={self.sizes[0][1]}", "device=cpu", "dataset=digits"]
        for group, values in zip(("model", "optimizer"), MODELS[self.model], strict=True):
            words += [f"{group}={values['name']}", *(f"{group}.{key}={value}" for key, value in values.items() if key != "name")]
        schedule = ", ".join(f"{step}: {size}" for step, size in self.sizes[1:])
        words += [
            f"checkpoint={self.strategy}",
            f"checkpoint.every={EVERY}",
            f"elastic.replicas={self.replicas}",
            f"'elastic.schedule={{{schedule}}}'",
        ]
        return " ".join(["ecrl train", *words, "supervision=zygote", f"failure=listed 'failure.entries=[{','.join(entries)}]'"])


def generate(rng: random.Random, strategies: tuple[str, ...], replicas: tuple[int, ...]) -> tuple[ElasticRunSpec, tuple[str, ...]]:
    """A run and one to three kills of existing ranks."""
    steps = sorted(rng.sample(range(2, TARGET - 1), rng.randint(1, 4)))
    sizes = [(0, rng.choice(SIZES))]
    for step in steps:
        sizes.append((step, rng.choice([size for size in SIZES if size != sizes[-1][1]])))
    course = ElasticRunSpec(rng.choice(tuple(MODELS)), rng.choice(strategies), rng.choice(replicas), tuple(sizes))
    undisturbed, entries = build(course.keys()), tuple[str, ...]()
    wanted = rng.randint(1, 3)
    for _ in range(_DRAWS):
        if len(entries) == wanted:
            break
        candidate = (*entries, str(_kill(rng, undisturbed)))
        try:
            available(undisturbed, candidate)
        except ConfigError:
            continue
        entries = candidate
    return course, entries


def _kill(rng: random.Random, config: RunConfig) -> Entry:
    """A kill of an existing rank. A kill during loading is planned for the attempt after a change of size, or an earlier one."""
    moment = rng.choice(_MOMENTS)
    step = rng.choice([0, *config.elastic.schedule]) if moment == "load" else rng.randint(1, TARGET - 2)
    who = (rng.randrange(ranks_at(config, step) if step else config.world_size),)
    share = round(rng.random(), 2) if moment in ("forward", "backward", "optimizer") else None
    return Entry("kill", step, moment, share, who)
