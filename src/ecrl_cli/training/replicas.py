"""World-size-invariant training: the window is V fixed micro-shards (replicas), and no result depends on which rank computes which of them.

A rank computes its replicas one after another: each starts from the buffers at the beginning of the step and has its own RNG streams. Its result
(gradients, buffers after the forward pass, loss) is one vector; the mean of the V vectors is summed in the order of one tree (`tree_reduce.py`),
whatever the number of ranks (`replica_allreduce.py`), and every rank then does the same update.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F

from ecrl_cli.data.loading import Batch
from ecrl_cli.training.heartbeat import HeartbeatWriter
from ecrl_cli.training.replica_allreduce import Exchange
from ecrl_cli.training.seeding import seed_replica
from ecrl_cli.training.train_step import StepResult
from ecrl_cli.training.tree_reduce import TreeReduce


class ReplicaGradient:
    """Packs a replica's result into one vector: loss, which parameters have a gradient, gradients, float buffers, which of their elements changed.

    Its dtype is float32, or wider where the model's is. Buffers of other dtypes (BatchNorm's counter) are not averaged: each rank keeps the values
    of its last replica.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._places = [(module._buffers, key) for module in model.modules() for key in module._buffers]
        self._before = [buffer.clone() for buffer in self._buffers()]
        floats = [tensor for tensor in (*self.parameters, *self._before) if tensor.is_floating_point()]
        self._dtype = reduce(torch.promote_types, (tensor.dtype for tensor in floats), torch.float32)

    def _buffers(self) -> list[torch.Tensor]:
        """Looked up each time: a forward pass may replace a buffer's tensor."""
        found = {id(buffer): buffer for holder, key in self._places if (buffer := holder[key]) is not None}
        return list(found.values())

    def _floats(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The float buffers, which are averaged, each with its value at the beginning of the step."""
        return [(buffer, before) for buffer, before in zip(self._buffers(), self._before, strict=True) if buffer.is_floating_point()]

    def begin(self) -> None:
        """Store the buffers from which each replica of this step starts."""
        self._before = [buffer.clone() for buffer in self._buffers()]

    def rewind(self) -> None:
        """Restore the buffers to the beginning of the step, before each replica."""
        for buffer, before in zip(self._buffers(), self._before, strict=True):
            buffer.copy_(before)

    def vector(self, loss: torch.Tensor) -> torch.Tensor:
        """The result of the replica that was just computed, as one vector."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        present = torch.tensor([p.grad is not None for p in self.parameters], device=loss.device)
        floats = self._floats()
        pieces = [loss, present, *gradients, *(buffer for buffer, _ in floats), *(buffer != before for buffer, before in floats)]
        return torch.cat([piece.reshape(-1).to(self._dtype) for piece in pieces])

    def take(self, mean: torch.Tensor) -> torch.Tensor:
        """Set gradients and buffers from the mean of all vectors; returns the mean loss. A gradient that no replica has stays None."""
        floats, count = self._floats(), len(self.parameters)
        sizes = [buffer.numel() for buffer, _ in floats]
        loss, present, *rest = torch.split(mean, [1, count, *(p.numel() for p in self.parameters), *sizes, *sizes])
        for parameter, gradient, there in zip(self.parameters, rest[:count], present.tolist(), strict=True):
            parameter.grad = gradient.to(parameter.dtype).view_as(parameter) if there else None
        values, moved = rest[count : count + len(floats)], rest[count + len(floats) :]
        for (buffer, before), value, share in zip(floats, values, moved, strict=True):
            buffer.copy_(torch.where(share > 0, value.to(buffer.dtype), before.reshape(-1)).view_as(buffer))
        return loss


@dataclass(frozen=True)
class ReplicaTrainStep:
    """`owned`: the replicas of this rank, out of `replicas`. `model` is not wrapped in DDP: only `exchange` communicates with other ranks."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    scaler: Any
    device: torch.device
    autocast: AbstractContextManager[Any]
    heartbeat: HeartbeatWriter
    seed: int
    replicas: int
    owned: range
    exchange: Exchange
    contribution: ReplicaGradient

    def run(self, batch: Batch, global_step: int) -> StepResult:
        """Compute every owned replica, exchange, update. Afterwards the RNG state is the same on every rank."""
        tree: TreeReduce[torch.Tensor] = TreeReduce(self.replicas, torch.Tensor.add_)
        size = len(batch.ids) // len(self.owned)
        self.contribution.begin()
        losses = []
        for number, replica in enumerate(self.owned):
            seed_replica(self.seed, global_step, replica)
            losses.append(self._compute(batch, slice(number * size, (number + 1) * size)))
            tree.push_leaf(replica, self.contribution.vector(losses[-1]))
        self.heartbeat.phase("backward")
        loss = self.contribution.take(self.exchange(tree).div_(self.replicas))
        seed_replica(self.seed, global_step, self.replicas)
        self.heartbeat.phase("update")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        return StepResult(float(loss.item()), tuple(torch.stack(losses).tolist()))

    def _compute(self, batch: Batch, part: slice) -> torch.Tensor:
        """One replica's forward and backward pass; returns its mean loss. The samples are copied, so that their memory alignment cannot matter."""
        x, y = batch.x[part].to(self.device, copy=True), batch.y[part].to(self.device, copy=True)
        self.contribution.rewind()
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast:
            loss = F.cross_entropy(self.model(x).float(), y)
        self.scaler.scale(loss).backward()
        return loss.detach()
