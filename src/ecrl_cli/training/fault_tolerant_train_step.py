"""Train step that survives the death of peers: DDP over this rank alone, with an all-reduce that survivors can abort or finish."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from ecrl_cli.checkpoint.capture.rng import capture_rng, packed, restore_rng, unpacked
from ecrl_cli.data.loading import Batch
from ecrl_cli.recovery.fault_tolerant_allreduce import FaultTolerantGroup, PeersLost, group_of_one
from ecrl_cli.training.ddp import WarmUp, wrap
from ecrl_cli.training.heartbeat import HeartbeatWriter
from ecrl_cli.training.train_step import DataParallelTrainStep, StepResult

Keep = Callable[[int, bytes], None]
_LOSS = struct.Struct("<d")


@dataclass
class FaultTolerantTrainStep(DataParallelTrainStep):
    """`model`: not wrapped in DDP. The object is reused across attempts; `assign` does that for each."""

    warm_up: WarmUp = field(kw_only=True)

    def __post_init__(self) -> None:
        self._bare = self.model
        self._buffers = [buffer for buffer in self._bare.buffers() if buffer.numel()]
        self._states: dict[str, torch.Tensor] = {}
        # DDP with its usual buckets over a group of one; no initial broadcast: all ranks build the same weights, or receive them.
        self.model = wrap(self._bare, self.warm_up, process_group=group_of_one(), gradient_as_bucket_view=True, init_sync=False)
        self.model.register_comm_hook(None, lambda state, bucket: self._peers.hook(bucket))  # other annotations than DDP's would be refused
        self._bare.register_forward_pre_hook(lambda *given: self.heartbeat.work())

    def assign(self, peers: FaultTolerantGroup, heartbeat: HeartbeatWriter, store_rank_state: Keep) -> None:
        """Join the group `peers`; `store_rank_state` stores bytes for a step where they survive this rank."""
        self._peers, self.heartbeat, self._keep = peers, heartbeat, store_rank_state

    def keep_state(self, global_step: int, loss: float) -> None:
        """Store this rank's own state after `global_step`, its loss and RNG states."""
        self._states = capture_rng(self.device)
        self._keep(global_step, _LOSS.pack(loss) + packed(self._states))

    def run(self, batch: Batch, global_step: int) -> StepResult:
        """PeersLost if the step is aborted: this rank's state is then rolled back to before the step."""
        self._peers.begin(global_step)
        before = [buffer.clone() for buffer in self._buffers]
        try:
            return super().run(batch, global_step)
        except PeersLost:
            self._roll_back(before)
            raise

    def exchanged(self, global_step: int, loss: torch.Tensor) -> None:
        """Finish the all-reduce. The RNG states are stored first: nothing is drawn after the backward pass, so they are those after the step."""
        behind = self._states
        self.keep_state(global_step, float(loss.item()))
        try:
            self._peers.finish(self._buffers)
        except PeersLost:
            self._states = behind
            raise

    def _roll_back(self, before: list[torch.Tensor]) -> None:
        put_back(self._buffers, before)
        restore_rng(self._states, self.device)
        self.optimizer.zero_grad(set_to_none=True)


def put_back(buffers: Iterable[torch.Tensor], before: Iterable[torch.Tensor]) -> None:
    """Restore `buffers` from the copies `before`."""
    with torch.no_grad():
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)


def remembered(kept: bytes, device: torch.device) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and RNG states, from the bytes that `keep_state` stored."""
    return _LOSS.unpack_from(kept)[0], unpacked(kept[_LOSS.size :], device)
