"""The training loop of one rank."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Protocol

from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.checkpoint.strategies.strategy import Strategy
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.data.loading import BatchLoader, SampleBatch
from ecrl_cli.data.order import ResumableGlobalBatchSampler, ids_hash
from ecrl_cli.errors import LossNotFinite
from ecrl_cli.failures.injector import Injector
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.records.evaluations import evaluation_due
from ecrl_cli.records.events import RankLine
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.span_clock import SpanClock
from ecrl_cli.records.state_digests import RANK_COMPONENTS
from ecrl_cli.training.control_client import HeartbeatWriter
from ecrl_cli.training.evaluation import Evaluator
from ecrl_cli.training.state_digests import DigestSchedule
from ecrl_cli.training.train_step import StepResult, TrainStep


class Reporter(Protocol):
    """Receives this rank's progress."""

    def __call__(self, global_step: int, phase: str, loss: float | None = None) -> None: ...


@dataclass
class TrainLoop:
    """One rank's training loop from `global_step` (already done) to the target, or to `until`, the
    step after which a change of world size or a graceful stop ends the attempt.
    """

    config: RunConfig
    attempt: int
    rank: int
    world_size: int
    train_step: TrainStep
    loader: BatchLoader
    sampler: ResumableGlobalBatchSampler
    train_state: TrainState
    strategy: Strategy
    injector: Injector
    heartbeat: HeartbeatWriter
    clock: SpanClock
    journal: Journal
    report: Reporter
    global_step: int
    line_chain: str
    loss: float  # the last step's
    until: int | None = None
    digests: DigestSchedule | None = None  # None: no digests of the state are logged
    state_digest: str = ""  # that of the last step, if one was logged after it
    evaluator: Evaluator | None = None  # None: quality is not measured
    stopping: bool = False  # whether `until` was agreed on because the run is to stop
    # whether the step that this attempt continues from is in memory only, so that a checkpoint due
    # at it is missing
    checkpoint_owed: bool = False

    @property
    def end(self) -> int:
        return self.config.target_steps if self.until is None else self.until

    def run(self) -> float:
        """Train to the end and wait for checkpoints in flight; returns the last loss. Raises if the
        last step's checkpoint was due and failed.
        """
        # faults planned at this boundary are still pending if the run was stopped before them
        if self.global_step:
            self.injector.at_boundary(self.global_step, self.flush)
        self.check_stop()
        if (
            self.evaluator is not None
            and self.global_step
            and self.evaluator.owed(self.global_step)
            and not self.stopping_here()
        ):
            # its time counts for the step that it follows
            self.clock.global_step = self.global_step
            self.evaluate(self.evaluator)
        if prepared := self.checkpoint_owed and self.checkpoint_due():
            # the save's time counts for the step that it saves
            self.clock.global_step = self.global_step
            self.strategy.prepare()
            self.save(snapshot_taken=True)
        while self.global_step < self.end:
            self.step()
            if self.digests is not None:
                self.digests.agree(self.train_state)
            self.check_stop()
            if not prepared:
                self.clock.switch("warm_up")
                self.strategy.prepare()
                prepared = True
            if (
                self.evaluator is not None
                and evaluation_due(self.config, self.global_step)
                and not self.stopping_here()
            ):
                self.evaluate(self.evaluator)
            if self.checkpoint_due():
                self.save()
            elif self.snapshot_due():
                self.snapshot_in_memory()
            self.injector.at_boundary(self.global_step, self.flush)
        self.report(self.global_step, "flushing", self.loss)
        self.flush()
        if self.until is not None or self.config.checkpoint.final:
            self.strategy.confirm(self.global_step)
        return self.loss

    def evaluate(self, evaluator: Evaluator) -> None:
        """Measure quality, before the checkpoint of the step: who resumes from that finds it on
        record, but for one that a stop left out.
        """
        self.report(self.global_step, "evaluating", self.loss)
        evaluator.evaluate(self.global_step)

    def stopping_here(self) -> bool:
        """Whether this is the step after which the run stops: its grace time is for the checkpoint,
        and the next attempt evaluates.
        """
        return self.stopping and self.global_step == self.until

    def save(self, *, snapshot_taken: bool = False) -> None:
        """Save a checkpoint. `snapshot_taken`: an earlier attempt did the step and it is in memory
        already, so no snapshot is taken.
        """
        self.report(self.global_step, "saving", self.loss)
        self.heartbeat.phase("saving")
        self.injector.before_save(self.global_step)
        if not snapshot_taken:
            self.strategy.snapshot(self.progress())
        self.strategy.save(self.progress())

    def snapshot_in_memory(self) -> None:
        self.injector.before_save(self.global_step)
        self.strategy.snapshot(self.progress())

    def flush(self) -> None:
        """Wait for all checkpoints in flight. In phase `flushing` a rank does not count as hung
        while the writer makes progress.
        """
        self.heartbeat.phase("flushing")
        self.strategy.flush()

    def check_stop(self) -> None:
        """If all ranks are to stop after a step, make it the last one of this attempt.

        Called between a step and its checkpoint: a rank that missed the request a step earlier sees
        it here, so that all save together.
        """
        last = self.heartbeat.stop_after(self.global_step)
        if last is not None and last < self.end:
            self.until, self.stopping = last, True

    def step(self) -> None:
        """One committed step: read this rank's shard, train, advance the cursor, log."""
        began = self.clock.switch("compute")
        self.clock.global_step = self.global_step + 1
        self.heartbeat.step(self.global_step + 1)
        self.injector.before_step(self.global_step + 1)
        epoch, cursor = self.sampler.epoch, self.sampler.cursor_step
        batch = self.loader.batch(epoch, self.sampler.shard(self.rank, self.world_size))
        result = self.train_step.run(batch, self.global_step + 1)
        self.loss = result.loss
        self.heartbeat.phase("logging")
        self.check_finite()
        self.global_step += 1
        self.sampler.advance()
        self.log(batch, epoch, cursor, began, result)
        self.report(self.global_step, "training", self.loss)

    def check_finite(self) -> None:
        """LossNotFinite before the step is logged or saved: no later attempt may resume from it."""
        if not math.isfinite(self.loss):
            fact = f"is {self.loss} at step {self.global_step + 1} on rank {self.rank}"
            raise LossNotFinite(
                "loss", fact, "if it comes back after a restart, lower optimizer.lr"
            )

    def log(
        self, batch: SampleBatch, epoch: int, cursor: int, began: float, result: StepResult
    ) -> None:
        """Write the step's log line. It is handed to the kernel before any barrier that precedes a
        capture.
        """
        now = monotonic()
        due = self.digests is not None and self.digests.due(self.global_step)
        digests = self.train_state.rank_digests(self.progress()) if due else None
        self.state_digest = digests.state if digests else ""
        digest_s, settings = monotonic() - now, self.train_state.step_settings()
        line = RankLine(
            global_step=self.global_step,
            epoch=epoch,
            cursor_step=cursor,
            rank=self.rank,
            world_size=self.world_size,
            sample_ids_hash=ids_hash(batch.ids),
            sample_ids_count=len(batch.ids),
            loss=result.logged,
            attempt=self.attempt,
            seconds=now - began,
            at=now,
            time=wall(),
            state_digest=digests.state if digests else None,
            inputs_hash=batch.inputs_hash,
            targets_hash=batch.targets_hash,
            components=(
                {name: getattr(digests.rank, name) for name in RANK_COMPONENTS} if digests else None
            ),
            lr=settings.lr,
            loss_scale=settings.loss_scale,
            growth_tracker=settings.growth_tracker,
        )
        if self.digests is not None:
            self.digests.measured(now - began, digest_s)
        written = self.journal.append(line)
        self.line_chain = hashlib.sha256(self.line_chain.encode() + written).hexdigest()

    def checkpoint_due(self) -> bool:
        last = self.global_step == self.end and (
            self.until is not None or self.config.checkpoint.final
        )
        last |= self.config.checkpoint.final and self.global_step in self.config.continued_at
        return last or self.global_step % self.config.checkpoint.every == 0

    def snapshot_due(self) -> bool:
        return (
            strategy_of(self.config).snapshots > 0
            and self.global_step % self.config.checkpoint.memory_every == 0
        )

    def progress(self) -> TrainPosition:
        """The run's position: the window that the next step consumes."""
        loss = self.loss if math.isfinite(self.loss) else None
        cursor = self.sampler
        return TrainPosition(
            self.global_step,
            cursor.epoch,
            cursor.cursor_step,
            self.config.seed,
            self.line_chain,
            loss,
            self.state_digest,
        )
