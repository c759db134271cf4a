"""Measures quality on held-out data between two steps and leaves the training as it was, bit for
bit.

What is put back afterwards: which modules are in training mode (a frozen one may not be), every
buffer, and the state of every generator. Parameters, gradients and optimizer are not touched, and
the model is called without its DDP wrapper: no collective of the training takes part.

What is measured is what a checkpoint holds: the parameters, which are equal on all ranks, and rank
0's buffers. (Under DDP each rank has own running statistics of BatchNorm until the next forward
pass takes rank 0's.)

The result does not depend on the number of ranks, nor on which rank computes what: the held-out
samples in their order are cut into batches of `evaluate.batch`, rank r of W computes the batches r,
r + W, r + 2W, ..., so that each sample is computed once and always beside the same others, by the
same kernels. The values of all samples are then gathered in order; a mean is their sum rounded once
(`math.fsum`), over the number of samples. Ranks on different processors, or with another number of
threads, may compute other bits, as they do in training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ecrl_cli.checkpoint.capture.rng import capture_rng, restore_rng
from ecrl_cli.checkpoint.capture.tensor_sources import raw
from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.tasks import TASKS
from ecrl_cli.data.sample_set import SampleSet, normalised
from ecrl_cli.errors import ConfigError
from ecrl_cli.linux.clock import both_clocks
from ecrl_cli.records.evaluations import Evaluation, evaluation_due
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.span_clock import SpanClock
from ecrl_cli.training.control_client import HeartbeatWriter
from ecrl_cli.training.measures import Measures
from ecrl_cli.training.train_step import put_back


@dataclass
class Evaluator:
    """One rank's part in evaluations. `result`, on rank 0: what was measured after `result_step`,
    the last evaluation that was made or found on record; None before the first.
    """

    config: RunConfig
    layout: RunLayout
    attempt: int
    held_out: SampleSet
    train_state: TrainState
    autocast: AbstractContextManager[Any]
    heartbeat: HeartbeatWriter
    clock: SpanClock
    result: dict[str, float] | None = None
    result_step: int = -1

    def __post_init__(self) -> None:
        self._task = TASKS.of(self.config.task.name)
        self._measures: Measures = self._task.load_measures()

    def owed(self, step: int) -> bool:
        """Whether the evaluation after `step`, the last one before this attempt, is due and not
        recorded yet. Collective where it is due: only rank 0 reads the record, because others may
        see an older state of a shared folder.
        """
        if not evaluation_due(self.config, step):
            return False
        if self.train_state.rank == 0 and (found := self._recorded(step)):
            self.result, self.result_step = found.measures, step
        known = torch.tensor([int(self.result_step == step)])
        return not int(
            known
            if self.train_state.world_size == 1
            else self.train_state.peers.all_gather(known)[0]
        )

    def _recorded(self, step: int) -> Evaluation | None:
        paths = [self.layout.attempt(attempt).evaluations for attempt in self.layout.attempts()]
        return next(
            (
                line
                for path in paths
                for line in read_journal(path, Evaluation).events
                if line.global_step == step
            ),
            None,
        )

    def evaluate(self, step: int) -> None:
        """Measure after `step`; rank 0 records it. Collective. The time is booked as `evaluate`."""
        before, began = self.clock.category, self.clock.switch("evaluate")
        self.heartbeat.phase("evaluating")
        with undisturbed(self.train_state):
            values = self._gathered(self._own_values())
        if self.train_state.rank == 0:
            size = len(self.held_out)
            self.result = self._task.summarised(
                {name: total(each) / size for name, each in values.items()}
            )
            self.result_step = step
            at, time = both_clocks()
            with closing(Journal(self.layout.attempt(self.attempt).evaluations)) as journal:
                journal.append(
                    Evaluation(step, self.attempt, size, self.result, at - began, at, time)
                )
        self.clock.switch(before)

    def _own_values(self) -> dict[str, torch.Tensor]:
        """By measure, the values of this rank's samples, float64, in order; empty if there is no
        batch for it.
        """
        size, batch, state = len(self.held_out), self.config.evaluate.batch, self.train_state
        found: dict[str, list[torch.Tensor]] = {}
        for first in range(state.rank * batch, size, state.world_size * batch):
            ids = np.arange(first, min(first + batch, size), dtype=np.int64)
            pixels, targets = self.held_out.fetch(ids)
            # Copied into memory that torch has aligned: see `data.loading.SampleBatch`.
            x = torch.from_numpy(normalised(pixels, self.held_out.traits)).clone().to(state.device)
            y = torch.from_numpy(targets).clone().to(state.device)
            with self.autocast:
                measured = self._measures(state.model, x, y)
            for name, each in measured.items():
                if each.shape != (len(ids),):
                    fact = (
                        f"{self._task.name} measures {name} as {tuple(each.shape)} for {len(ids)}"
                        " samples"
                    )
                    raise ConfigError("task", fact, "return one number per sample")
                found.setdefault(name, []).append(each.detach().double().cpu())
            self.heartbeat.again()
        return {name: torch.cat(each) for name, each in found.items()}

    def _gathered(self, own: dict[str, torch.Tensor]) -> dict[str, list[float]]:
        """By measure, the values of all samples in order. Only rank 0, which has the first batch,
        knows the names; the others return nothing.
        """
        size, batch, ranks = (
            len(self.held_out),
            self.config.evaluate.batch,
            self.train_state.world_size,
        )
        if ranks == 1:
            return {name: each.tolist() for name, each in own.items()}
        names, gather = tuple(own), self.train_state.peers.all_gather
        rows = int(gather(torch.tensor([len(names)]))[0])
        padded = torch.zeros(rows, -(-size // (batch * ranks)) * batch, dtype=torch.float64)
        for row, each in zip(padded, own.values(), strict=False):
            row[: len(each)] = each
        by_rank = gather(padded)
        whose = torch.arange(size) // batch % ranks
        values = torch.zeros(rows, size, dtype=torch.float64)
        for rank, found in enumerate(by_rank):
            values[:, whose == rank] = found[:, : int((whose == rank).sum())]
        return dict(zip(names, values.tolist(), strict=True)) if self.train_state.rank == 0 else {}


def total(values: list[float]) -> float:
    """The sum, rounded once; infinite or not a number where a value is."""
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


@contextmanager
def undisturbed(train_state: TrainState) -> Iterator[None]:
    """Evaluation mode, no gradients, and rank 0's buffers on every rank; at the end everything is
    as it was. Collective with several ranks.
    """
    model = train_state.model
    modes = [(module, module.training) for module in model.modules()]
    generators = capture_rng(train_state.device)
    buffers = [
        (module._buffers, key, buffer)
        for module in model.modules()
        for key, buffer in module._buffers.items()
        if buffer is not None
    ]
    before = [buffer.clone() for _, _, buffer in buffers]
    try:
        take_first_ranks(train_state, [buffer for _, _, buffer in buffers])
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
        for (holder, key, buffer), value in zip(buffers, before, strict=True):
            holder[key] = buffer
            # not written where nothing changed: a background writer may be reading it
            if not torch.equal(buffer, value):
                put_back([buffer], [value])
        restore_rng(generators, train_state.device)


def take_first_ranks(train_state: TrainState, buffers: list[torch.Tensor]) -> None:
    """Give every rank rank 0's `buffers`, byte by byte. Collective."""
    if train_state.world_size == 1 or not buffers:
        return
    own = torch.cat([raw(buffer) for buffer in buffers])
    first = train_state.peers.all_gather(own)[0]
    if train_state.rank == 0:
        return
    for buffer, data in zip(
        buffers,
        torch.split(first, [buffer.numel() * buffer.element_size() for buffer in buffers]),
        strict=True,
    ):
        put_back([buffer], [data.clone().view(buffer.dtype).view(buffer.shape).to(buffer.device)])
