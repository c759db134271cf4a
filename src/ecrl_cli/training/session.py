"""A rank's setup around the training loop: determinism, process group, data, model, state; and the
final record.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from ecrl_cli.checkpoint.capture.rng import seed_rank, seed_replica
from ecrl_cli.checkpoint.capture.train_state import Collectives, DefaultGroup, TrainState
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.strategies.strategy import Strategy, StrategyInputs, make_strategy
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.identity import run_id
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.config.tasks import TASKS
from ecrl_cli.data.datasets import build_dataset, held_out_of
from ecrl_cli.data.loading import BatchLoader, describe
from ecrl_cli.data.order import ResumableGlobalBatchSampler
from ecrl_cli.data.sample_set import SampleSet
from ecrl_cli.errors import ConfigError, plural
from ecrl_cli.failures.faulty_store import store_for
from ecrl_cli.failures.injector import Injector
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.models import build as build_model
from ecrl_cli.models.optimization import autocast, build_optimizer, build_scaler, build_scheduler
from ecrl_cli.records.events import DatasetRecord, FinalState
from ecrl_cli.records.journal import Journal, read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import TENTHS, AttemptSpec, Progress
from ecrl_cli.records.span_clock import SpanClock
from ecrl_cli.records.survivor_records import SNAPSHOT
from ecrl_cli.storage.files import write_json
from ecrl_cli.storage.fs_wrapper import HeartbeatFs
from ecrl_cli.training.control_client import Control, HeartbeatWriter
from ecrl_cli.training.evaluation import Evaluator
from ecrl_cli.training.rendezvous import Rendezvous
from ecrl_cli.training.replicas import ReplicaTrainStep
from ecrl_cli.training.restoring import record_restored, restore
from ecrl_cli.training.state_digests import DigestSchedule
from ecrl_cli.training.train_loop import TrainLoop
from ecrl_cli.training.train_step import (
    DataParallelTrainStep,
    InPlaceTrainStep,
    TaskUpdate,
    TrainStep,
    WarmUp,
    wrap,
)

REPORT_EVERY_S = 0.05


class RankSession:
    """One rank in one attempt, from rendezvous to final record."""

    def __init__(
        self,
        config: RunConfig,
        layout: RunLayout,
        order: AttemptSpec,
        rendezvous: Rendezvous,
        clock: SpanClock,
        control: Control,
    ) -> None:
        self.config, self.layout, self.order, self.rendezvous = config, layout, order, rendezvous
        self.clock, self.control = clock, control
        self.logs = layout.attempt(order.attempt)
        self.rank, self.world_size = rendezvous.rank, order.world_size
        self.heartbeat = HeartbeatWriter(control.heartbeats, self.rank)
        self.injector = Injector(layout, order.attempt, self.rank, order.pending)
        self.loop: TrainLoop | None = None
        self._reported_place, self._reported_at = ("", 0), 0.0

    def train(self) -> None:
        """Join the group, load, train to the end; at the target record the final state; leave."""
        self.device = self.set_up_device()
        self.clock.switch("rendezvous")
        self.heartbeat.phase("rendezvous")
        self.injector.at_start("rendezvous", self.order)
        self.peers = self.join()
        self.clock.switch("load")
        self.heartbeat.phase("loading")
        if self.injector.meets:
            self.injector.meet(
                [int(pid) for pid in self.peers.all_gather(torch.tensor([os.getpid()]))]
            )
        self.injector.at_start("load", self.order)
        self.report(self.order.resume_step, "loading")
        loop = self.loop = self.load()
        record_restored(loop.train_state, loop.progress(), self.layout, self.order)
        loss = loop.run()
        if loop.until is None:
            self.finish(loop, loss)
        self.leave(loop)

    def set_up_device(self) -> torch.device:
        return make_deterministic(self.config, self.rendezvous.local_rank)

    def join(self) -> Collectives:
        join_group(self.config, self.rendezvous, self.device)
        return DefaultGroup()

    def data(self) -> tuple[SampleSet, DatasetRecord]:
        dataset = build_dataset(self.config.dataset)
        return dataset, describe(dataset)

    def load(self) -> TrainLoop:
        """Build the training loop, restored from the state that the supervisor chose; the RNG comes
        last.
        """
        config = self.config
        dataset, record = self.data()
        self.agree_on(record)
        train_step, sampler, train_state = self.state(record)
        resumed = self.restore(train_state)
        self.injector.attach(train_state.model, train_state.optimizer, train_state)
        return TrainLoop(
            config=config,
            attempt=self.order.attempt,
            rank=self.rank,
            world_size=self.world_size,
            train_step=train_step,
            loader=BatchLoader(
                dataset, config.seed, config.dataset.augment, config.checkpoint.digest
            ),
            sampler=sampler,
            train_state=train_state,
            strategy=self.strategy(train_state),
            injector=self.injector,
            heartbeat=self.heartbeat,
            clock=self.clock,
            journal=Journal(self.logs.rank(self.rank)),
            report=self.report,
            global_step=self.order.resume_step,
            line_chain=resumed.line_chain,
            loss=float("nan") if resumed.loss is None else resumed.loss,
            until=self.order.until,
            digests=DigestSchedule(config, self.layout, self.order.resume_step, train_state),
            evaluator=self.evaluator(dataset, train_state) if config.evaluate.every else None,
            checkpoint_owed=self.order.memory == SNAPSHOT,  # chosen because no checkpoint is as new
        )

    def state(
        self, record: DatasetRecord
    ) -> tuple[TrainStep, ResumableGlobalBatchSampler, TrainState]:
        """Train step, sampler and state, initialised from the seed (to be restored, if the run
        resumes).
        """
        config = self.config
        model = self.model(record)
        optimizer = build_optimizer(config.optimizer, model.parameters())
        train_step = self.train_step(model, optimizer, record)
        replicas = config.elastic.replicas
        sampler = ResumableGlobalBatchSampler(
            record.size, config.global_batch, config.seed, replicas
        )
        parts = (model, optimizer, train_step.scheduler, train_step.scaler, sampler)
        train_state = TrainState(
            *parts, self.rank, self.world_size, self.peers, replicas > 0, config.checkpoint.digest
        )
        self.seed_generators()
        return train_step, sampler, train_state

    def seed_generators(self) -> None:
        """Seed this rank's streams, or with replicas the state between steps, which is the same on
        every rank.
        """
        replicas = self.config.elastic.replicas
        if replicas:
            seed_replica(self.config.seed, self.order.resume_step, replicas)
        else:
            seed_rank(self.config.seed, self.rank, self.order.resume_step)

    def model(self, record: DatasetRecord) -> torch.nn.Module:
        return build_model(self.config.model, record.classes, record.shape).to(self.device)

    def train_step(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, record: DatasetRecord
    ) -> DataParallelTrainStep | ReplicaTrainStep | InPlaceTrainStep:
        """A step with plain data parallelism, or with `elastic.replicas` fixed replicas."""
        config, device = self.config, self.device
        if config.elastic.replicas:
            return ReplicaTrainStep.of(config, model, optimizer, device, self.heartbeat).shared(
                self.rank, self.world_size
            )
        scheduler, scaler = (
            build_scheduler(config.optimizer, optimizer, config.target_steps, config.continued_at),
            build_scaler(config.precision, device),
        )
        ddp = wrap(
            model,
            WarmUp.of(config, record, device),
            device_ids=[device.index] if device.type == "cuda" else None,
        )
        # before it DDP waits for others
        model.register_forward_pre_hook(lambda *given: self.heartbeat.work())
        cast, loss = autocast(config.precision, device), TASKS.of(config.task.name).load()
        own_update = TaskUpdate.of(config, model, optimizer)
        return DataParallelTrainStep(
            ddp, optimizer, scheduler, scaler, device, cast, self.heartbeat, loss, own_update
        )

    def evaluator(self, dataset: SampleSet, train_state: TrainState) -> Evaluator:
        cast = autocast(self.config.precision, self.device)
        held_out = self.held_out(dataset)
        return Evaluator(
            self.config,
            self.layout,
            self.order.attempt,
            held_out,
            train_state,
            cast,
            self.heartbeat,
            self.clock,
        )

    def held_out(self, dataset: SampleSet) -> SampleSet:
        return held_out_of(dataset)

    def strategy(self, train_state: TrainState) -> Strategy:
        told = (self.heartbeat.again, lambda text: self.control.notice(self.rank, text))
        own = self.store() if strategy_of(self.config).writes_in_rank else None
        given = (
            self.config,
            train_state,
            self.layout,
            self.order.attempt,
            self.clock,
            own,
            self.control.snapshots,
        )
        return make_strategy(StrategyInputs(*given, *told))

    def store(self) -> CheckpointStore:
        """The store that this rank writes through; each file-system call writes a heartbeat."""
        store = store_for(
            self.layout.checkpoints,
            StoreConfig.of(self.config, run_id(self.config)),
            self.layout,
            self.order.pending,
        )
        store.fs = HeartbeatFs(store.fs, self.heartbeat.again)
        return store

    def restore(self, train_state: TrainState) -> TrainPosition:
        """Restore `train_state` if there is something to resume from; returns this rank's
        position.
        """
        return restore(train_state, self.config, self.layout, self.order, self.control.snapshots)

    def agree_on(self, record: DatasetRecord) -> None:
        """Write dataset.json once. ConfigError if the data set changed since: the batches would not
        match.
        """
        path = self.layout.dataset
        if not path.exists():
            if self.rank == 0:
                write_json(path, encode(record))
            return
        first = decode(DatasetRecord, read_json(path))
        if first != record:
            raise ConfigError(
                "dataset",
                f"this run began with {plural(first.size, 'sample')}, now there are {record.size}",
                "restore the data set or start a new run",
            )

    def report(self, global_step: int, phase: str, loss: float | None = None) -> None:
        """Report progress to the supervisor; only rank 0 does. Of steps in quick succession some
        are left out: each report wakes the supervisor, which shares the cores with the ranks. Every
        change of phase and every tenth of the run is reported.
        """
        if self.rank != 0:
            return
        now, place = monotonic(), (phase, global_step * TENTHS // self.config.target_steps)
        if place != self._reported_place or now - self._reported_at >= REPORT_EVERY_S:
            self._reported_place, self._reported_at = place, now
            self.control.progress(Progress(global_step, phase, now, loss))

    def finish(self, loop: TrainLoop, loss: float) -> None:
        """Stop the goodput clock, then write the final digests: only a run with this record reached
        its target.
        """
        at, time = self.clock.switch("idle"), wall()
        self.heartbeat.phase("done")
        digests, ranks = loop.train_state.digests(), loop.train_state.rank_states(loop.progress())
        if self.rank == 0:
            final = FinalState(
                global_step=loop.global_step,
                attempt=self.order.attempt,
                at=at,
                time=time,
                parameters_digest=digests.parameters,
                buffers_digest=digests.buffers,
                optimizer_digest=digests.optimizer,
                rng_digest=digests.rng,
                loss=loss,
                accuracy=final_accuracy(loop),
                ranks=ranks,
            )
            write_json(self.logs.final, encode(final))
        self.report(loop.global_step, "done", loss)

    def leave(self, loop: TrainLoop) -> None:
        """Everything is durable: close strategy and clock, then wait at the last barrier."""
        self.clock.switch("idle")
        loop.strategy.close()
        self.clock.close()
        # no rank exits while another may still send to it; the process then exits without
        # destroying the group
        self.peers.barrier()


def final_accuracy(loop: TrainLoop) -> float | None:
    """The accuracy at the target, if it was measured and the task has one."""
    evaluator = loop.evaluator
    if evaluator is None or evaluator.result is None or evaluator.result_step != loop.global_step:
        return None
    return evaluator.result.get("accuracy")


def make_deterministic(config: RunConfig, rank: int) -> torch.device:
    """Set threads, deterministic algorithms and the seed of the initial weights. Returns the device
    of local rank `rank`.

    ConfigError if CUDA is asked for and not available, or has too few devices.
    """
    torch.set_num_threads(config.threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(config.seed)
    use_cuda = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    if not use_cuda:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "device",
            f"CUDA is not available in this torch build ({torch.__version__})",
            "set device=cpu",
        )
    devices = torch.cuda.device_count()
    if rank >= devices and config.backend != "gloo":
        raise ConfigError(
            "world_size",
            f"rank {rank} has no CUDA device, {devices} visible",
            "lower world_size or set device=cpu",
        )
    torch.cuda.set_device(rank % devices)
    return torch.device("cuda", rank % devices)


def join_group(config: RunConfig, rendezvous: Rendezvous, device: torch.device) -> None:
    """Form the process group: NCCL for CUDA tensors with gloo for CPU tensors; gloo alone on the
    CPU or with backend=gloo.
    """
    if config.backend == "nccl" and device.type != "cuda":
        raise ConfigError("backend", "nccl needs CUDA, this rank has none", "leave it out")
    timeout = timedelta(seconds=config.supervision.collective_timeout_s)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" and config.backend != "gloo" else "gloo"
    address = rendezvous.store
    if address is None:
        dist.init_process_group(backend, timeout=timeout)
        return
    store = dist.TCPStore(address.host, address.port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
    scoped = PrefixStore(address.prefix, store)
    dist.init_process_group(
        backend,
        store=scoped,
        rank=rendezvous.rank,
        world_size=rendezvous.world_size,
        timeout=timeout,
    )
