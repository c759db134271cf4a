"""Session of a rank under in-place recovery: when peers die it leaves its attempt with its state in
memory and joins the next one.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import cast

import torch
import torch.distributed as dist

from ecrl_cli.checkpoint.capture.rng import restore_rng
from ecrl_cli.checkpoint.capture.train_state import (
    Sampler,
    Stateful,
    TrainState,
    pack_state,
    size_of,
    unpack_state,
)
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.checkpoint.store.checkpoint_log import submitted
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.data.datasets import build_dataset, held_out_of
from ecrl_cli.data.loading import describe
from ecrl_cli.data.order import ResumableGlobalBatchSampler, position
from ecrl_cli.data.sample_set import SampleSet
from ecrl_cli.errors import ConfigError, EcrlError
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.models import build as build_model
from ecrl_cli.models.optimization import autocast, build_optimizer, build_scaler, build_scheduler
from ecrl_cli.records.events import DatasetRecord
from ecrl_cli.records.journal import line_of
from ecrl_cli.records.layout import AttemptLayout
from ecrl_cli.records.messages import LeftAttempt
from ecrl_cli.records.survivor_records import (
    SURVIVORS,
    LostSamples,
    RedoneStep,
    SurvivorReport,
    lost,
)
from ecrl_cli.recovery.fault_tolerant_allreduce import FaultTolerantGroup, PeersLost
from ecrl_cli.recovery.group_rendezvous import HeartbeatMembership
from ecrl_cli.storage.files import write_whole
from ecrl_cli.training.control_client import HeartbeatWriter
from ecrl_cli.training.rendezvous import TcpStoreAddress
from ecrl_cli.training.session import RankSession, make_deterministic
from ecrl_cli.training.train_loop import TrainLoop
from ecrl_cli.training.train_step import (
    FaultTolerantTrainStep,
    InPlaceTrainStep,
    TaskUpdate,
    TrainStep,
    WarmUp,
    put_back,
    remembered,
)

Layers = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class InterruptedStep:
    """Outcome of the step in which peers died, as in a survivor report: what was redone, and the
    layers by bucket, and the digest of the state before a step that was dropped.
    """

    redone: tuple[RedoneStep, ...] = ()
    layers: Layers = ()
    state_before: str = ""


def layers_of(model: torch.nn.Module, buckets: dict[int, list[torch.Tensor]]) -> Layers:
    """The parameter names of each bucket, in bucket order."""
    names: dict[torch.Tensor, str] = {
        parameter: name for name, parameter in model.named_parameters()
    }
    return tuple(
        tuple(names[parameter] for parameter in buckets[index]) for index in sorted(buckets)
    )


def enter(
    logs: AttemptLayout,
    survivor_report: SurvivorReport,
    sampler: ResumableGlobalBatchSampler,
    world_size: int,
    cause: str,
) -> None:
    """Write the attempt's lost samples: what the update of the interrupted step lacks of its
    mini-batch. `cause`: the recovery's name.
    """
    lines = lost_samples(survivor_report.redone, survivor_report.layers, sampler, world_size, cause)
    if lines:
        write_whole(logs.lost_samples(survivor_report.rank), b"".join(map(line_of, lines)))


def lost_samples(
    redone: Sequence[RedoneStep],
    layers: Layers,
    sampler: ResumableGlobalBatchSampler,
    world_size: int,
    cause: str,
) -> list[LostSamples]:
    """One line for each dead rank: its samples have no influence from the first bucket that was
    reduced again without it.

    Of a step that was dropped, one line with all its samples.
    """
    lines = []
    for number, death in enumerate(redone):
        first = min(each.first for each in redone[number:])
        names = [name for bucket in layers[first:] for name in bucket]
        due = ResumableGlobalBatchSampler(sampler.size, sampler.global_batch, sampler.seed)
        due.epoch, due.cursor_step = position(death.global_step, due.steps_per_epoch)
        if not death.left:
            lines += lost(death.global_step, map(int, due.window()), names, death.lost, cause)
            continue
        for rank in death.lost:
            samples = [int(sample) for sample in due.shard(rank, world_size)]
            lines += lost(death.global_step, samples, names, (rank,), cause)
    return lines


@dataclass(frozen=True)
class WarmTrainer:
    """A train step that has run at least once, its sampler, and `train_state`, the state that it
    trains.
    """

    train_step: TrainStep
    sampler: ResumableGlobalBatchSampler
    train_state: TrainState


class CarriedState:
    """State that a process keeps from one attempt to the next. `loop`: the loop that it left, with
    its state; None: it has no state. `ready`: the trainer of an earlier attempt, or one that a
    spare has warmed up, to load a state into: building a new one takes longer than loading.
    """

    def __init__(self, address: TcpStoreAddress, timeout_s: float) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        # each abandoned group keeps its sockets open
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        timeout = timedelta(seconds=timeout_s)
        self.store = dist.TCPStore(address.host, address.port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
        self.loop: TrainLoop | None = None
        self.ready: WarmTrainer | None = None
        self.data: tuple[SampleSet, DatasetRecord] | None = None
        self.held_out: SampleSet | None = None


class InPlaceSession(RankSession):
    """One rank in one attempt. `kept`: what its process carries from attempt to attempt."""

    kept: CarriedState
    peers: FaultTolerantGroup
    # set once it holds the state that this attempt starts from
    train_state: TrainState | None = None

    def take_part(self, carried: CarriedState) -> LeftAttempt | None:
        """Run `train`; returns the message for the supervisor if the attempt ended because peers
        died, else None.
        """
        self.kept = carried
        if not self.carried_over:
            carried.loop = None
        try:
            self.train()
        except PeersLost:
            return self.leave_attempt()
        return None

    @property
    def loads(self) -> bool:
        """Whether all of the state comes from a checkpoint, a snapshot or another rank, and none
        from the seed.
        """
        return self.order.resume_from is not None or bool(self.order.memory)

    @property
    def carried_over(self) -> bool:
        """Whether this rank already has the state that the attempt starts from."""
        return self.order.memory == SURVIVORS and self.rank not in self.order.joined

    def set_up_device(self) -> torch.device:
        if not self.carried_over:
            # Checked on the rank, because it depends on the machine; all else is checked before the
            # launch.
            if self.config.device == "auto" and torch.cuda.is_available():
                raise ConfigError(
                    "device",
                    "ranks that outlive others work on the CPU only so far, and device=auto found"
                    " CUDA",
                    "set device=cpu",
                )
            return super().set_up_device()
        return torch.device("cpu")

    def join(self) -> FaultTolerantGroup:
        address, board = self.rendezvous.store, self.control.heartbeats
        assert address is not None and board is not None, (
            "live recovery is of the zygote's ranks alone"
        )
        recovery, timeout = (
            recovery_of(self.config),
            timedelta(seconds=self.config.supervision.collective_timeout_s),
        )
        if self.carried_over:
            self.train_state = self.reassigned_state()
        members, lossy = HeartbeatMembership(board), recovery.finishes_without
        self.peers = FaultTolerantGroup(
            self.kept.store, address.prefix, self.rank, members, timeout, lossy=lossy
        )
        self.peers.form(self.world_size)
        if self.train_state:
            self.train_state.peers = self.peers
        return self.peers

    def reassigned_state(self) -> TrainState:
        """This process's state, with the rank and world size of this attempt."""
        before = self.kept.loop
        assert before is not None
        shared_rng, digest = self.config.elastic.replicas > 0, self.config.checkpoint.digest
        return TrainState(
            *_parts(before.train_state),
            self.rank,
            self.world_size,
            shared_rng=shared_rng,
            digest=digest,
        )

    def data(self) -> tuple[SampleSet, DatasetRecord]:
        self.kept.data = self.kept.data or super().data()
        return self.kept.data

    def held_out(self, dataset: SampleSet) -> SampleSet:
        if self.kept.held_out is None:
            self.kept.held_out = super().held_out(dataset)
        return self.kept.held_out

    def state(
        self, record: DatasetRecord
    ) -> tuple[TrainStep, ResumableGlobalBatchSampler, TrainState]:
        ready = self.kept.ready
        if self.kept.loop is not None and self.train_state is not None:
            return self.kept.loop.train_step, self.kept.loop.sampler, self.train_state
        if ready is None or not self.loads:
            return super().state(record)
        self.seed_generators()
        shared_rng, digest = self.config.elastic.replicas > 0, self.config.checkpoint.digest
        train_state = TrainState(
            *_parts(ready.train_state), self.rank, self.world_size, self.peers, shared_rng, digest
        )
        return ready.train_step, ready.sampler, train_state

    def train_step(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, record: DatasetRecord
    ) -> InPlaceTrainStep:
        return self.in_place_step(
            self.config,
            model,
            optimizer,
            WarmUp.of(self.config, record, self.device),
            self.heartbeat,
        )

    @staticmethod
    def in_place_step(
        config: RunConfig,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        warm_up: WarmUp,
        heartbeat: HeartbeatWriter,
    ) -> InPlaceTrainStep:
        """The train step of a rank or of a spare, not yet assigned to a group."""
        device = warm_up.device
        scheduler, scaler = (
            build_scheduler(config.optimizer, optimizer, config.target_steps, config.continued_at),
            build_scaler(config.precision, device),
        )
        parts = (
            model,
            optimizer,
            scheduler,
            scaler,
            device,
            autocast(config.precision, device),
            heartbeat,
        )
        return FaultTolerantTrainStep(
            *parts, warm_up.loss, TaskUpdate.of(config, model, optimizer), warm_up=warm_up
        )

    def restore(self, train_state: TrainState) -> TrainPosition:
        if self.order.memory != SURVIVORS:
            return super().restore(train_state)
        rank_state = self.inherited()
        resumed = self.broadcast_state(train_state)
        if rank_state is None:
            return resumed
        loss, rng_states = remembered(rank_state, self.device)
        restore_rng(rng_states, self.device)
        return replace(resumed, loss=loss)

    def inherited(self) -> bytes | None:
        """The stored rank state (loss, RNG) of the rank that this new rank replaces, or None; read
        before any rank overwrites it.
        """
        origin, board = self.order.origins[self.rank], self.control.heartbeats
        if self.carried_over or origin < 0 or board is None:
            return None
        return board.load_rank_state(origin, self.order.resume_step)

    def broadcast_state(self, train_state: TrainState) -> TrainPosition:
        """The lowest rank that has the state broadcasts it to the ranks that joined. Returns this
        rank's position.
        """
        before, mine = self.kept.loop, None
        if before is not None:
            mine = replace(before.progress(), line_chain="")
        if not self.order.joined:
            assert mine is not None
            return mine
        source = min(set(range(self.world_size)) - {*self.order.joined})
        header, data = (
            pack_state(train_state, mine)
            if mine is not None and self.rank == source
            else (b"", torch.empty(0, dtype=torch.uint8))
        )
        length = int(self.peers.broadcast(torch.tensor([len(header)]), source))
        header = (
            self.received(
                torch.frombuffer(bytearray(header), dtype=torch.uint8) if header else None,
                length,
                source,
            )
            .numpy()
            .tobytes()
        )
        data = self.received(
            data if header and self.rank == source else None, size_of(header), source
        )
        return mine if mine is not None else unpack_state(train_state, header, data)

    def received(self, given: torch.Tensor | None, length: int, source: int) -> torch.Tensor:
        return self.peers.broadcast(
            torch.empty(length, dtype=torch.uint8) if given is None else given, source
        )

    def load(self) -> TrainLoop:
        loop, board = super().load(), self.control.heartbeats
        self.train_state = loop.train_state
        assert board is not None
        train_step = self.in_place(loop)
        train_step.assign(self.peers, self.heartbeat, partial(board.store_rank_state, self.rank))
        train_step.keep_state(loop.global_step, loop.loss)
        loop.checkpoint_owed |= (
            self.order.memory == SURVIVORS
            and loop.global_step > 0
            and not submitted(self.layout, self.order)
        )
        return loop

    def leave_attempt(self) -> LeftAttempt:
        """Close what belongs to this attempt, write the survivor report, keep the rest for the next
        attempt.

        EcrlError if recovery is from memory and this rank had no state yet.
        """
        self.injector.disarm()
        from_memory = recovery_of(self.config).from_memory
        if self.train_state is None and from_memory:
            raise EcrlError(
                "recovery",
                "a rank died before this one had a state to go on from",
                "the attempt begins anew",
                code="no_state",
            )
        resolved = self.resolve_interrupted_step() if self.train_state else InterruptedStep()
        step = self.loop.global_step if self.loop else self.order.resume_step
        if self.loop:
            self.loop.strategy.close()
            self.loop.journal.close()
            self.kept.loop, self.kept.ready = (
                self.loop,
                WarmTrainer(self.loop.train_step, self.loop.sampler, self.loop.train_state),
            )
        self.clock.switch("idle")
        self.clock.close()
        digest = self.train_state.state_digest() if self.train_state and from_memory else ""
        said = (
            step,
            self.order.attempt,
            self.rank,
            self.peers.alive,
            resolved.redone,
            resolved.layers,
            digest,
        )
        survivor_report = SurvivorReport(*said, monotonic(), wall(), resolved.state_before)
        write_whole(self.logs.survivor_report(self.rank), line_of(survivor_report))
        if self.loop and survivor_report.redone:
            enter(
                self.logs,
                survivor_report,
                self.loop.sampler,
                self.world_size,
                self.config.recovery.name,
            )
        return LeftAttempt(self.rank, os.getpid(), self.order.attempt, step, survivor_report.alive)

    def resolve_interrupted_step(self) -> InterruptedStep:
        """Finish or drop the step that peers' deaths interrupted; every survivor calls it once,
        before it leaves the attempt.

        Default: only reports the exchanges that were repeated. The step was finished without the
        dead ranks, or was rolled back and is repeated.
        """
        assert self.train_state
        redone = tuple(self.peers.redone)
        return InterruptedStep(
            redone, layers_of(self.train_state.model, self.peers.parameters) if redone else ()
        )

    @staticmethod
    def in_place(loop: TrainLoop) -> InPlaceTrainStep:
        """Its train step, which `in_place_step` made."""
        return cast(InPlaceTrainStep, loop.train_step)

    def leave(self, loop: TrainLoop) -> None:
        """Everything is done and recorded: a peer's death no longer matters."""
        with suppress(PeersLost):
            super().leave(loop)
            self.peers.leave()


def warmed_up(config: RunConfig, address: TcpStoreAddress) -> CarriedState:
    """Everything that a spare prepares before it is needed: imports, data set, model, optimizer,
    and a first (slow) forward and backward pass.
    """
    carried = CarriedState(address, config.supervision.collective_timeout_s)
    device = make_deterministic(config, 0)
    dataset = build_dataset(config.dataset)
    record = describe(dataset)
    carried.data = (dataset, record)
    carried.held_out = held_out_of(dataset) if config.evaluate.every else None
    model = build_model(config.model, record.classes, record.shape)
    optimizer = build_optimizer(config.optimizer, model.parameters())
    warm_up = WarmUp.of(config, record, device)
    replicas = config.elastic.replicas
    warm_up_model(model, warm_up, config.global_batch // (replicas or config.world_size))
    session: type[InPlaceSession] = recovery_of(config).load_session()
    train_step = session.in_place_step(config, model, optimizer, warm_up, HeartbeatWriter(None, 0))
    sampler = ResumableGlobalBatchSampler(record.size, config.global_batch, config.seed, replicas)
    carried.ready = WarmTrainer(
        train_step,
        sampler,
        TrainState(model, optimizer, train_step.scheduler, train_step.scaler, sampler, 0, 1),
    )
    return carried


def warm_up_model(model: torch.nn.Module, warm_up: WarmUp, samples: int) -> None:
    """One forward and backward pass on zeros, to select kernels and allocate memory. Leaves `model`
    as it was.
    """
    before = [buffer.clone() for buffer in model.buffers()]
    warm_up.iterate(model, samples)
    model.zero_grad(set_to_none=True)
    put_back(model.buffers(), before)


def _parts(
    train_state: TrainState,
) -> tuple[torch.nn.Module, torch.optim.Optimizer, Stateful, Stateful | None, Sampler]:
    """Components without rank and peers."""
    return (
        train_state.model,
        train_state.optimizer,
        train_state.scheduler,
        train_state.scaler,
        train_state.sampler,
    )
