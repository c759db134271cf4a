"""Session of `recovery=redistribute`: survivors compute an interrupted mini-batch among themselves,
bit for bit as it would have been.

A step with fixed replicas depends neither on the number of ranks nor on which of them computes a
replica (`replicas.py`). So the survivors roll the step back, share all replicas, the dead ranks'
too, and do it again: the same samples, the same streams, the same order of additions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.data.loading import SampleBatch
from ecrl_cli.recovery.fault_tolerant_allreduce import FaultTolerantGroup, PeersLost
from ecrl_cli.training.control_client import HeartbeatWriter
from ecrl_cli.training.in_place_session import InPlaceSession
from ecrl_cli.training.replicas import ReplicaTrainStep
from ecrl_cli.training.train_step import InPlaceTrainStep, Keep, StepResult, WarmUp


class FaultTolerantReplicaTrainStep:
    """A step with fixed replicas whose exchange survivors can abort: nothing is updated before it
    is complete on every rank.
    """

    def __init__(self, step: ReplicaTrainStep) -> None:
        self._step, self.interrupted = step, 0

    @property
    def scheduler(self) -> torch.optim.lr_scheduler.LRScheduler:
        return self._step.scheduler

    @property
    def scaler(self) -> Any:
        return self._step.scaler

    def assign(
        self, peers: FaultTolerantGroup, heartbeat: HeartbeatWriter, store_rank_state: Keep
    ) -> None:
        """Join the group `peers`, with this rank's share of the replicas among its ranks."""
        self._peers, self.interrupted = peers, 0
        self._step = replace(self._step, heartbeat=heartbeat).shared(
            peers.rank, len(peers.alive), peers
        )

    def keep_state(self, global_step: int, loss: float) -> None:
        """Nothing: between steps all ranks have the same generators and the same loss."""

    def run(self, batch: SampleBatch, global_step: int) -> StepResult:
        """PeersLost if the step is aborted: this rank's state is then that before the step."""
        self.interrupted = global_step
        self._peers.begin(global_step)
        try:
            result = self._step.run(batch, global_step)
        except PeersLost:
            self._step.undo(global_step)
            raise
        self.interrupted = 0
        return result


class RedistributeSession(InPlaceSession):
    @staticmethod
    def in_place_step(
        config: RunConfig,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        warm_up: WarmUp,
        heartbeat: HeartbeatWriter,
    ) -> InPlaceTrainStep:
        return FaultTolerantReplicaTrainStep(
            ReplicaTrainStep.of(config, model, optimizer, warm_up.device, heartbeat)
        )
