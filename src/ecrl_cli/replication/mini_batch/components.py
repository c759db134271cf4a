"""The measured parts of an overhead as plain numbers, as input for a performance model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ecrl_cli.metrics.statistics import summary
from ecrl_cli.studies.frame.study import Record


@dataclass(frozen=True)
class MeasuredParts:
    """Means over the seeds for one application at one scale with `workers` logical workers; names ending in _s are seconds.

    `mini_batch_s`: processor time of a mini-batch with the workers in parallel, so that other load on the machine does not count. `init_s`: data,
    model, optimizer and the first pass, in a process that has imported its libraries. `checkpoint_s`: until it is durable. `load_s`: reading and
    restoring it. `layers`: number of parameter tensors, `model_bytes`: their size.
    """

    application: str
    workers: int
    mini_batches_per_epoch: int
    mini_batches: int
    layers: int
    model_bytes: int
    mini_batch_s: float
    init_s: float
    checkpoint_s: float
    load_s: float

    @property
    def restart_s(self) -> float:
        """From a running process to the first mini-batch that it repeats."""
        return self.init_s + self.load_s

    def typed(self) -> dict[str, float | int]:
        """The keys of `recovery-overhead`, to three digits. Its `init_s` (processes and communicators) is missing: this is a simulation in one
        process."""
        seconds = {"mini_batch_s": self.mini_batch_s, "checkpoint_s": self.checkpoint_s, "restart_s": self.restart_s}
        return {"every": self.mini_batches_per_epoch, **{key: float(f"{value:.3g}") for key, value in seconds.items()}}


COUNTS = ("workers", "mini_batches_per_epoch", "mini_batches", "layers", "model_bytes")
SECONDS = ("mini_batch_s", "init_s", "checkpoint_s", "load_s")


def measured(records: Sequence[Record]) -> tuple[MeasuredParts, ...]:
    """The parts of each application in the records of `mini-batch-failure`, in record order."""
    found = []
    cells = [record for record in records if record.facts["kind"] == "cells"]
    for application in dict.fromkeys(record.facts["application"] for record in cells):
        parts = [record.found["parts"] for record in cells if record.facts["application"] == application]
        facts: dict[str, Any] = {name: int(parts[0][name]) for name in COUNTS}
        facts |= {name: summary([part[name] for part in parts]).mean for name in SECONDS}
        found.append(MeasuredParts(application=application, **facts))
    return tuple(found)
