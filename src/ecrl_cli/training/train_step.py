"""One training step with data parallelism: forward, backward, update. `replicas.py` has fixed
replicas.

Stock DDP first builds its buckets in parameter order, then rebuilds them after its first iteration
in the order in which gradients arrived. A restarted process does its first iteration in the middle
of the run: with three or more ranks it would sum gradients in another order than an uninterrupted
run. So each process does one iteration on zeros before its first step: every real step then uses
the rebuilt buckets.

`FaultTolerantTrainStep` survives the death of peers: DDP over this rank alone, with an all-reduce
that survivors can abort or finish.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from ecrl_cli.checkpoint.capture.rng import capture_rng, packed, restore_rng, unpacked
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.tasks import TASKS
from ecrl_cli.data.loading import SampleBatch
from ecrl_cli.errors import ConfigError, plural
from ecrl_cli.models.optimization import autocast, begin_update
from ecrl_cli.records.events import DatasetRecord
from ecrl_cli.recovery.fault_tolerant_allreduce import FaultTolerantGroup, PeersLost, group_of_one
from ecrl_cli.training.control_client import HeartbeatWriter
from ecrl_cli.training.losses import classification

# the batch size does not change the order in which gradients arrive; BatchNorm needs two
_SAMPLES = 2
_NAMED = 3

Keep = Callable[[int, bytes], None]
# of a task: config/tasks.py
Loss = Callable[[torch.nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
Update = Callable[[torch.nn.Module, torch.optim.Optimizer], None]  # of a task, too
_LOSS = struct.Struct("<d")


@dataclass(frozen=True)
class WarmUp:
    """Settings of the warm-up iteration: the `shape` of one input, device, precision; dtypes, shape
    of a target, and the task's loss.
    """

    shape: tuple[int, ...]
    device: torch.device
    precision: AbstractContextManager[Any]
    find_unused_parameters: bool
    inputs: torch.dtype = torch.float32
    targets: torch.dtype = torch.int64
    target_shape: tuple[int, ...] = ()
    loss: Loss = lambda model, x, y: model(x).float().sum()

    @classmethod
    def of(cls, config: RunConfig, record: DatasetRecord, device: torch.device) -> WarmUp:
        settings = (
            tuple(record.shape),
            device,
            autocast(config.precision, device),
            config.ddp.find_unused_parameters,
        )
        dtypes = (getattr(torch, record.inputs), getattr(torch, record.targets))
        return cls(
            *settings, *dtypes, tuple(record.target_shape), TASKS.of(config.task.name).load()
        )

    def iterate(self, model: torch.nn.Module, samples: int = _SAMPLES) -> None:
        """One forward and backward pass on zeros."""
        x = torch.zeros(samples, *self.shape, dtype=self.inputs, device=self.device)
        y = torch.zeros(samples, *self.target_shape, dtype=self.targets, device=self.device)
        with self.precision:
            loss = self.loss(model, x, y)
        torch.autograd.backward(loss)


def wrap(model: torch.nn.Module, warm_up: WarmUp, **options: Any) -> DistributedDataParallel:
    """Wrap `model` in DDP (`options` are DDP's own) with its final buckets. Collective.

    Call it before the RNGs are seeded or restored: the warm-up iteration draws from them.
    Parameters, gradients and buffers stay as they were. With `ddp.find_unused_parameters` DDP never
    rebuilds its buckets, so no warm-up is done.
    """
    unused = warm_up.find_unused_parameters
    ddp = DistributedDataParallel(model, find_unused_parameters=unused, **options)
    if not unused:
        _iterate(ddp, warm_up)
    return ddp


def _iterate(ddp: DistributedDataParallel, warm_up: WarmUp) -> None:
    """One forward and backward pass. ConfigError if a parameter gets no gradient: DDP would fail at
    its next iteration.
    """
    model = ddp.module
    before = [buffer.clone() for buffer in model.buffers()]
    warm_up.iterate(ddp)
    missing = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    if missing:
        names = ", ".join(missing[:_NAMED]) + (
            f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        )
        fact = (
            f"is false, and {plural(len(missing), 'parameter takes', 'parameters take')} no part in"
            f" the loss ({names})"
        )
        raise ConfigError(
            "ddp.find_unused_parameters",
            fact,
            "set ddp.find_unused_parameters=true, or take them out of the model",
        )
    model.zero_grad(set_to_none=True)
    put_back(model.buffers(), before)


@dataclass(frozen=True)
class StepResult:
    """`loss`: the step's loss on this rank. `logged`: the mean loss of this rank's samples, or of
    each replica that it computed.
    """

    loss: float
    logged: float | tuple[float, ...]


@dataclass(frozen=True)
class TaskUpdate:
    """A task's own update, as the gradient scaler takes it: fp16's gradients are unscaled before
    `step`, which is left out where one overflowed.
    """

    update: Update
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def step(self) -> None:
        self.update(self.model, self.optimizer)

    @classmethod
    def of(
        cls, config: RunConfig, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> TaskUpdate | None:
        """None if the task has no update of its own. `model`: not wrapped."""
        update = TASKS.of(config.task.name).load_update()
        return cls(update, model, optimizer) if update else None


class TrainStep(Protocol):
    def run(self, batch: SampleBatch, global_step: int) -> StepResult:
        """Do the step `global_step` with this rank's samples. Collective."""


class InPlaceTrainStep(TrainStep, Protocol):
    """A step that survives the death of peers. One object for all attempts of its process;
    `interrupted`: the step that deaths aborted, else 0.
    """

    interrupted: int

    @property
    def scheduler(self) -> torch.optim.lr_scheduler.LRScheduler: ...
    @property
    def scaler(self) -> Any: ...
    def assign(
        self, peers: FaultTolerantGroup, heartbeat: HeartbeatWriter, store_rank_state: Keep
    ) -> None:
        """Join the group `peers`; `store_rank_state` stores bytes for a step where they survive
        this rank.
        """

    def keep_state(self, global_step: int, loss: float) -> None:
        """Store this rank's own state after `global_step`, if it has any, beside `loss`."""


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
    loss: Loss = classification
    own_update: TaskUpdate | None = None

    def run(self, batch: SampleBatch, global_step: int) -> StepResult:
        """Forward, backward (DDP averages the gradients), update."""
        x, y = batch.x.to(self.device), batch.y.to(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        # DDP broadcasts rank 0's buffers before the module's own forward pass
        self.heartbeat.wait()
        with self.autocast:
            loss = self.loss(self.model, x, y)
        self.heartbeat.phase("backward")
        self.scaler.scale(loss).backward()
        self.exchanged(global_step, loss)
        self.heartbeat.phase("update")
        begin_update(self.scheduler, global_step - 1)
        self.scaler.step(self.own_update or self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        own = float(loss.item())
        return StepResult(own, own)

    def exchanged(self, global_step: int, loss: torch.Tensor) -> None:
        """When this returns, every rank has the mean of all gradients; here DDP has already
        averaged them inside backward.
        """


@dataclass
class FaultTolerantTrainStep(DataParallelTrainStep):
    """`model`: not wrapped in DDP. The object is reused across attempts; `assign` does that for
    each.
    """

    warm_up: WarmUp = field(kw_only=True)
    interrupted: int = 0
    # called when a step is aborted, with each buffer's values before it, ahead of the rollback
    aborted: Callable[[dict[torch.Tensor, torch.Tensor]], None] = lambda before: None

    def __post_init__(self) -> None:
        self._bare = self.model
        self._buffers = [buffer for buffer in self._bare.buffers() if buffer.numel()]
        self._states: dict[str, torch.Tensor] = {}
        # DDP with its usual buckets over a group of one; no initial broadcast: all ranks build the
        # same weights, or receive them.
        self.model = wrap(
            self._bare,
            self.warm_up,
            process_group=group_of_one(),
            gradient_as_bucket_view=True,
            init_sync=False,
        )
        # other annotations than DDP's would be refused
        self.model.register_comm_hook(None, lambda state, bucket: self._peers.hook(bucket))
        self._bare.register_forward_pre_hook(lambda *given: self.heartbeat.work())

    def assign(
        self, peers: FaultTolerantGroup, heartbeat: HeartbeatWriter, store_rank_state: Keep
    ) -> None:
        """Join the group `peers`; `store_rank_state` stores bytes for a step where they survive
        this rank.
        """
        self._peers, self.heartbeat, self._keep, self.interrupted = (
            peers,
            heartbeat,
            store_rank_state,
            0,
        )

    def keep_state(self, global_step: int, loss: float) -> None:
        """Store this rank's own state after `global_step`, its loss and RNG states."""
        self._states = capture_rng(self.device)
        self._keep(global_step, _LOSS.pack(loss) + packed(self._states))

    def run(self, batch: SampleBatch, global_step: int) -> StepResult:
        """PeersLost if the step is aborted: this rank's state is then rolled back to before the
        step.
        """
        self.interrupted = global_step
        before = [buffer.clone() for buffer in self._buffers]
        try:
            self._peers.begin(global_step)
            result = super().run(batch, global_step)
        except PeersLost:
            self.aborted(dict(zip(self._buffers, before, strict=True)))
            self._roll_back(before)
            raise
        self.interrupted = 0
        return result

    def exchanged(self, global_step: int, loss: torch.Tensor) -> None:
        """Finish the all-reduce. The RNG states are stored first: nothing is drawn after the
        backward pass, so they are those after the step.
        """
        before = self._states
        self.keep_state(global_step, float(loss.item()))
        try:
            self._peers.finish(self._buffers)
        except PeersLost:
            self._states = before
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
