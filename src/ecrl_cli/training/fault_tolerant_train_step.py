"""The learner of a rank that may outlive others: DDP over this rank alone, and an exchange that can be given up or finished by who is left."""

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
    """`model` is the bare one. It serves attempt after attempt, each time from another `seat`."""

    warm_up: WarmUp = field(kw_only=True)

    def __post_init__(self) -> None:
        self._bare = self.model
        self._buffers = [buffer for buffer in self._bare.buffers() if buffer.numel()]
        self._states: dict[str, torch.Tensor] = {}
        # DDP with the buckets of every other run and nobody to talk to: all ranks build the same weights, or receive them.
        self.model = wrap(self._bare, self.warm_up, process_group=group_of_one(), gradient_as_bucket_view=True, init_sync=False)
        self.model.register_comm_hook(None, lambda state, bucket: self._peers.hook(bucket))  # other annotations than DDP's would be refused
        self._bare.register_forward_pre_hook(lambda *given: self.heartbeat.work())

    def seat(self, peers: FaultTolerantGroup, pulse: HeartbeatWriter, keep: Keep) -> None:
        """Take part among `peers`; `keep` puts what it is given where it outlives this rank."""
        self._peers, self.heartbeat, self._keep = peers, pulse, keep

    def keep_state(self, global_step: int, loss: float) -> None:
        """What this rank is behind `global_step` and no other knows: its last loss, and its generators."""
        self._states = capture_rng(self.device)
        self._keep(global_step, _LOSS.pack(loss) + packed(self._states))

    def run(self, batch: Batch, global_step: int) -> StepResult:
        """Bereaved where the step is given up: this rank is then what it was in front of it."""
        self._peers.begin(global_step)
        before = [buffer.clone() for buffer in self._buffers]
        try:
            return super().run(batch, global_step)
        except PeersLost:
            self._roll_back(before)
            raise

    def exchanged(self, global_step: int, loss: torch.Tensor) -> None:
        """Behind backward nothing more is drawn in this step: what its generators are now, they are behind the step."""
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
    """Make `buffers` what they were."""
    with torch.no_grad():
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)


def remembered(kept: bytes, device: torch.device) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and generators, from what `remember` kept."""
    return _LOSS.unpack_from(kept)[0], unpacked(kept[_LOSS.size :], device)
