"""One training step: forward, backward, update, with plain data parallelism. `replicas.py` has fixed replicas."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from ecrl_cli.data.loading import Batch
from ecrl_cli.training.heartbeat import HeartbeatWriter


@dataclass(frozen=True)
class StepResult:
    """`loss`: the step's loss on this rank. `logged`: the mean loss of this rank's samples, or of each replica that it computed."""

    loss: float
    logged: float | tuple[float, ...]


class TrainStep(Protocol):
    def run(self, batch: Batch, global_step: int) -> StepResult:
        """Do the step `global_step` with this rank's samples. Collective."""


@dataclass
class DataParallelTrainStep:
    """The DDP-wrapped model and everything that updates it."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    scaler: Any
    device: torch.device
    autocast: AbstractContextManager[Any]
    heartbeat: HeartbeatWriter

    def run(self, batch: Batch, global_step: int) -> StepResult:
        """Forward, backward (DDP averages the gradients), update."""
        x, y = batch.x.to(self.device), batch.y.to(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        self.heartbeat.wait()  # DDP broadcasts rank 0's buffers before the module's own forward pass
        with self.autocast:
            loss = F.cross_entropy(self.model(x).float(), y)
        self.heartbeat.phase("backward")
        self.scaler.scale(loss).backward()
        self.exchanged(global_step, loss)
        self.heartbeat.phase("update")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        own = float(loss.item())
        return StepResult(own, own)

    def exchanged(self, global_step: int, loss: torch.Tensor) -> None:
        """When this returns, every rank has the mean of all gradients; here DDP has already averaged them inside backward."""
