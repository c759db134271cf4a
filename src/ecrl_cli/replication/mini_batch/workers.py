"""Logical workers computed one after the other: each has its shard, its gradients in backward order and the buffers of its forward pass."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ecrl_cli.linux.clock import processor
from ecrl_cli.replication.mini_batch.samples import Samples
from ecrl_cli.replication.mini_batch.simulated_trainer import Trainee


@dataclass(frozen=True)
class Pass:
    """One worker's result of one mini-batch. `gradients`: in backward order, incomplete if it died. `buffers`: after its forward pass.

    `seconds`: processor time.
    """

    worker: int
    gradients: tuple[torch.Tensor, ...]
    buffers: tuple[torch.Tensor, ...]
    loss: float
    seconds: float


class _Died(Exception):
    """Raised inside backward to stop a worker."""


class Workers:
    """`order`: parameter indices in the order in which backward finishes their gradients, observed once."""

    def __init__(self, trainee: Trainee, samples: Samples) -> None:
        self.trainee, self.samples = trainee, samples
        self._finished: list[int] = []
        self._until = len(trainee.parameters)
        for index, parameter in enumerate(trainee.parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(index))  # type: ignore[no-untyped-call]
        before = trainee.buffers_now()
        self.compute(1, 0)
        trainee.put_buffers(before)
        self.order = tuple(self._finished)

    @property
    def number(self) -> int:
        return self.samples.workers

    def all(self, mini_batch: int) -> list[Pass]:
        return self.some(mini_batch, range(self.number))

    def some(self, mini_batch: int, who: Iterable[int]) -> list[Pass]:
        """Passes of the workers `who` from the current state; afterwards the buffers are those of the first, the leader."""
        before = self.trainee.buffers_now()
        found = []
        for worker in who:
            self.trainee.put_buffers(before)
            found.append(self.compute(mini_batch, worker))
        self.trainee.put_buffers(found[0].buffers)
        return found

    def compute(self, mini_batch: int, worker: int, until: int | None = None) -> Pass:
        """Forward and backward of one worker, stopped once `until` gradients are there. Randomness depends on seed, mini-batch and worker."""
        x, y = self.samples.batch(mini_batch, worker)
        torch.manual_seed(_seed(self.samples.seed, mini_batch, worker))
        self._finished.clear()
        self._until = len(self.trainee.parameters) if until is None else until
        began = processor()
        loss = F.cross_entropy(self.trainee.model(x), y)
        if self._until:
            self._backward(loss)
        seconds = processor() - began
        gradients = tuple(self._take(index) for index in self._finished)
        return Pass(worker, gradients, self.trainee.buffers_now(), float(loss.detach()), seconds)

    def _backward(self, loss: torch.Tensor) -> None:
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except _Died:
            return

    def _hook(self, index: int) -> object:
        def finished(parameter: torch.Tensor) -> None:
            self._finished.append(index)
            if len(self._finished) == self._until < len(self.trainee.parameters):
                raise _Died

        return finished

    def _take(self, index: int) -> torch.Tensor:
        gradient = self.trainee.parameters[index].grad
        assert gradient is not None
        self.trainee.parameters[index].grad = None
        return gradient


def average(passes: Sequence[Pass], places: slice, divisor: int) -> list[torch.Tensor]:
    """Sum, from first to last worker, of the gradients at `places` of the backward order, divided by `divisor`."""
    total = [gradient.clone() for gradient in passes[0].gradients[places]]
    if total:
        for each in passes[1:]:
            torch._foreach_add_(total, list(each.gradients[places]))
        torch._foreach_div_(total, divisor)
    return total


def _seed(seed: int, mini_batch: int, worker: int) -> int:
    digest = hashlib.sha256(f"{seed}/{mini_batch}/{worker}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % 2**63
