"""Builds a complete run directory as a supervisor, two ranks and a writer leave it, in milliseconds
and without torch.

The "training" is arithmetic: every rank's loss and every tensor is a function of the seed and the
step, so that what is done again comes out the same. Order, records, chains, checkpoints and digests
are the real ones.
"""

from __future__ import annotations

import hashlib
import struct
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest, parse
from ecrl_cli.checkpoint.format.hashing import tensor_digest
from ecrl_cli.checkpoint.format.image import CheckpointImage, CheckpointMeta, TensorSpec, plan_image
from ecrl_cli.checkpoint.format.manifest import components, components_of
from ecrl_cli.checkpoint.format.names import MODEL, OPTIMIZER, RNG, TRAIN
from ecrl_cli.checkpoint.format.train_document import (
    rng_digest,
    saved_state,
    tensor_digests,
    train_digest,
)
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.config.codec import encode
from ecrl_cli.config.elastic import next_change, owned, world_size_after
from ecrl_cli.config.identity import run_id
from ecrl_cli.config.legs import schedule_after, targets
from ecrl_cli.config.schema import (
    CheckpointConfig,
    DatasetConfig,
    ElasticConfig,
    FailureConfig,
    RunConfig,
    VariantConfig,
    WriteModeConfig,
)
from ecrl_cli.data.order import ResumableGlobalBatchSampler, ids_hash, position
from ecrl_cli.failures.fault_log import claim
from ecrl_cli.failures.plan import plan
from ecrl_cli.history.load import load
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.evaluations import Evaluation, evaluation_due
from ecrl_cli.records.events import (
    Attempt,
    CheckpointLine,
    DatasetRecord,
    FinalState,
    InjectedFault,
    PlannedFailure,
    RankLine,
    Rejected,
    ResumedFrom,
    Span,
    SupervisorRecord,
    SupervisorSession,
)
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.records.state_digests import RANK_COMPONENTS, RankState, RestoredState
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.attempts.supervisor_record import with_phases
from ecrl_cli.verify.train_state import learning_rate

SAMPLES, HELD_OUT = 80, 40
WALL = 1_790_000_000.0  # by which the wall clock is ahead of the monotonic one
BOOT = "boot"
CODE = "c" * 64
PARTS = {
    MODEL: [
        TensorSpec("parameters.bias", "torch.float32", (4,)),
        TensorSpec("parameters.scale", "torch.float32", (4,)),
        TensorSpec("parameters.weight", "torch.float32", (4, 3)),
        TensorSpec("buffers.running_mean", "torch.float32", (4,)),
    ],
    OPTIMIZER: [TensorSpec("optimizer.weight.momentum_buffer", "torch.float32", (4, 3))],
    RNG: [
        TensorSpec("rng.rank0.torch", "torch.uint8", (16,)),
        TensorSpec("rng.rank1.torch", "torch.uint8", (16,)),
    ],
}


def config_of(
    variant: str, kind: str = "none", steps: tuple[int, ...] = (), rank: int = 0
) -> RunConfig:
    """24 steps of 8 samples on two ranks, ten steps per epoch, a checkpoint every 6 steps, three of
    them kept. Recorded as by a version that does not have the state of each rank.
    """
    return RunConfig(
        seed=7,
        target_steps=24,
        global_batch=8,
        world_size=2,
        state_digests=False,
        dataset=DatasetConfig(name="fake", size=SAMPLES),
        checkpoint=CheckpointConfig(strategy="none" if variant == "clean" else "blocking", every=6),
        write_mode=WriteModeConfig(),
        failure=FailureConfig(kind=kind, steps=steps, rank=rank),
        variant=VariantConfig(name=variant, failures=bool(steps)),
    )


@dataclass
class RunBuilder:
    """One run being recorded. `spoil`: by attempt, the step whose checkpoint is found damaged
    before that attempt's launch.
    """

    root: Path
    config: RunConfig
    spoil: dict[int, int] = field(default_factory=dict)
    # from that step on a resumed attempt computes other losses and tensors: a recovery bug
    bug_from: int = 0
    now: float = 1000.0
    # by rank, the digest of its buffers after its steps where it is not rank 0's
    own_buffers: dict[int, str] = field(default_factory=dict)
    # by attempt, the step after which it is told to stop
    stops: dict[int, int] = field(default_factory=dict)
    ahead: float = WALL
    boot: str = BOOT

    def __post_init__(self) -> None:
        # whether the state of each rank is recorded
        self.states = isinstance(self.config.state_digests, str)
        self.layout = RunLayout(self.root)
        self.layout.root.mkdir(parents=True)
        self.run_id = run_id(self.config)
        self.store = CheckpointStore(
            self.layout.checkpoints, StoreConfig.of(self.config, self.run_id)
        )
        self.chains: dict[int, list[str]] = {0: []}
        self.fired: set[int] = set()
        self.harmless: set[int] = set()  # entries that stay pending and strike nobody
        self.attempts: list[Attempt] = []
        self.sessions: list[SupervisorSession] = []

    @property
    def wall(self) -> float:
        """Now, on the wall clock."""
        return self.now + self.ahead

    @property
    def samples(self) -> int:
        """The size of the data set that is trained on."""
        return self.config.dataset.size - self.config.dataset.held_out

    def build(self) -> RunLayout:
        write_json(self.layout.failures, encode(plan(self.config)))
        write_run_config(self.layout, self.config)
        write_json(
            self.layout.dataset, encode(DatasetRecord("fake", self.samples, 10, (3, 32, 32)))
        )
        write_json(
            self.layout.environment,
            {
                "ecrl": "0.1.0",
                "packages": {"torch": "2.10.0"},
                "machine": "x86_64",
                "source_sha256": CODE if self.states else "5" * 64,
            },
        )
        while (
            self.attempts == []
            or self.attempts[-1].outcome != "completed"
            or max(a.last_step or 0 for a in self.attempts) < self.config.target_steps
        ):
            self.stay()
        deaths = sum(a.outcome == "died" for a in self.attempts)
        sessions = tuple(self.sessions)
        record = SupervisorRecord(
            1,
            self.run_id,
            self.config.target_steps,
            "completed",
            deaths,
            tuple(self.attempts),
            sessions,
            "target reached",
        )
        write_json(self.layout.supervisor, encode(record))
        write_json(
            self.layout.supervisor,
            encode(replace(record, attempts=with_phases(self.layout, record))),
        )
        self.store.close()
        write_json(self.layout.metrics, metrics_document(load(self.layout)))
        return self.layout

    def stay(self) -> None:
        """The supervisor from its start until a target is reached or it is told to stop."""
        began, wall, before = self.now, self.wall, len(self.attempts)
        while len(self.attempts) == before or self.attempts[-1].outcome not in (
            "completed",
            "stopped",
        ):
            self.attempts.append(self.attempt(len(self.attempts)))
        told = (15,) if self.attempts[-1].outcome == "stopped" else ()
        self.sessions.append(
            SupervisorSession(
                began,
                wall,
                self.boot,
                self.tick(0.05),
                told,
                0,
                CODE if self.states else "",
                self.wall,
            )
        )

    def attempt(self, number: int) -> Attempt:
        resumed, rejected = self.choose(number)
        saved = self.saved_in(resumed)  # now: a long attempt retires it
        self.tick(0.1)
        step, launched = (int(resumed.path[-8:]) if resumed else 0), self.now
        pending = tuple(entry for entry in plan(self.config) if entry.index not in self.fired)
        seen = max((a.last_step or 0 for a in self.attempts), default=0)
        armed = {
            entry.global_step: entry
            for entry in pending
            if entry.moment == "boundary" and entry.index not in self.harmless
        }
        worker = self.worker(number, step, armed)
        self.order(
            AttemptSpec(
                number,
                worker.ranks,
                step,
                resumed,
                seen,
                pending,
                worker.until,
                restored_digests=self.states,
            ),
            launched,
        )
        self.store.claim(number)
        fault, last = worker.live()
        ended = self.tick(0.2)
        victim, stopped = fault.rank if fault else None, self.stops.get(number) == last
        exit_code, signal = (
            (None, 15)
            if stopped
            else (0, None)
            if fault is None
            else (137, None)
            if fault.kind == "exit"
            else (None, 9)
        )
        return Attempt(
            attempt=number,
            world_size=worker.ranks,
            exit_code=exit_code,
            signal=signal,
            rank=victim,
            outcome=(
                "died"
                if fault
                else "resized"
                if worker.until
                else "stopped"
                if stopped
                else "completed"
            ),
            resumed_from_step=step,
            resumed_from=resumed,
            rejected=rejected,
            resumed_state=saved,
            first_step=step + 1 if last > step else None,
            last_step=last if last > step else None,
            launched_at=launched,
            ended_at=ended,
            session=len(self.sessions),
        )

    def journal(self, path: Path) -> Journal:
        """What a rank writes one of its logs with."""
        return Journal(path)

    @property
    def parts(self) -> dict[str, list[TensorSpec]]:
        """By part of a checkpoint, the tensors that it holds."""
        return PARTS

    def worker(self, number: int, step: int, armed: dict[int, PlannedFailure]) -> Worker:
        """All ranks of attempt `number`, which starts after `step`."""
        return Worker(self, number, step, armed)

    def choose(self, number: int) -> tuple[ResumedFrom | None, tuple[Rejected, ...]]:
        """What the supervisor does before a launch: the integrity check from the newest down, the
        refused ones set aside.
        """
        if self.config.checkpoint.strategy == "none" or number == 0:
            return None, ()
        if number in self.spoil:
            flip(self.layout.checkpoints / f"step_{self.spoil[number]:08d}" / MODEL)
        choice = self.store.newest_valid()
        for refused in choice.rejected:
            self.store.quarantine(self.layout.root / refused.path)
        report = choice.report
        if report is None or report.commit_sha256 is None:
            return None, choice.rejected
        return ResumedFrom(self.layout.relative(report.path), report.commit_sha256), choice.rejected

    def saved_in(self, resumed: ResumedFrom | None) -> dict[str, str]:
        """What the supervisor says that the checkpoint resumed from holds."""
        report = (
            self.store.verify(self.layout.root / resumed.path) if resumed and self.states else None
        )
        return (
            saved_state(tensor_digests(report.manifest), parse(report.train))
            if report and report.manifest
            else {}
        )

    def order(self, order: AttemptSpec, launched: float) -> None:
        """Write launch.json: with which the launch begins, or by an older version a few
        milliseconds before it.
        """
        dated = replace(
            order, at=launched - 0.005, time=launched - 0.005 + self.ahead, boot_id=self.boot
        )
        if self.states:
            dated = replace(dated, at=launched, time=launched + self.ahead, launched_at=launched)
        write_json(self.layout.attempt(order.attempt).launch, encode(dated))

    def spoil_train(self, step: int, document: dict[str, Any]) -> dict[str, Any]:
        """What train.json of `step` says instead of `document`."""
        return document

    def parted(self, step: int) -> str:
        """What made "training" go another way before `step`."""
        return ""

    def ranks_behind(self, step: int) -> int:
        return world_size_after(self.config, step)

    def tick(self, seconds: float) -> float:
        self.now += seconds
        return self.now


class Worker:
    """All ranks of one attempt, and the one who writes."""

    def __init__(
        self, run: RunBuilder, attempt: int, step: int, armed: dict[int, PlannedFailure]
    ) -> None:
        self.run, self.number, self.step, self.armed = run, attempt, step, armed
        self.first = step + 1
        self.logs = run.layout.attempt(attempt)
        self.ranks, self.until = run.ranks_behind(step), next_change(run.config, step)
        self.end = min(
            [
                run.stops.get(attempt, run.config.target_steps),
                *(end for end in targets(run.config) if end > step),
            ]
        )
        self.journals = [run.journal(self.logs.rank(rank)) for rank in range(self.ranks)]
        self.spans, self.checkpoints = (
            {rank: run.journal(self.logs.spans(rank)) for rank in range(self.ranks)},
            Journal(self.logs.checkpoints),
        )
        self.booking = set(range(self.ranks))  # those that have not died
        self.begun: float | None = None  # when a step began that somebody died in
        # one that has left keeps its place
        self.chain = run.chains[step] + [""] * (self.ranks - len(run.chains[step]))
        self.sampler = ResumableGlobalBatchSampler(
            run.samples, run.config.global_batch, run.config.seed, run.config.elastic.replicas
        )
        for _ in range(step):
            self.sampler.advance()
        self.loss: float | None = None
        self.measured: dict[str, float] = {}

    def live(self) -> tuple[InjectedFault | None, int]:
        """Work until the target or the fault; gives the fault and the last step."""
        self.run.tick(0.3)
        for category, seconds in (("import", 0.5), ("rendezvous", 0.1), ("load", 0.2)):
            self.spend(category, seconds, 0)
        if self.run.states and self.step:
            self.restored()
        fault = None
        while self.step < (self.until or self.end) and fault is None:
            self.one_step()
            if evaluation_due(self.run.config, self.step):
                self.evaluate()
            if self.run.config.checkpoint.strategy != "none" and (
                self.step % self.run.config.checkpoint.every == 0 or self.step == self.until
            ):
                self.checkpoint()
            fault = self.strike()
        if fault is None and self.until is None and self.step in targets(self.run.config):
            self.finish()
        self.close()
        return fault, self.step

    def close(self) -> None:
        for journal in (*self.journals, *self.spans.values(), self.checkpoints):
            journal.close()

    def one_step(self) -> None:
        epoch, cursor = self.sampler.epoch, self.sampler.cursor_step
        began, self.begun = self.run.now if self.begun is None else self.begun, None
        self.step += 1
        self.spend("compute", 0.02, self.step)
        for rank, journal in enumerate(self.journals):
            ids = self.sampler.shard(rank, self.ranks)
            line = RankLine(
                global_step=self.step,
                epoch=epoch,
                cursor_step=cursor,
                rank=rank,
                world_size=self.ranks,
                sample_ids_hash=ids_hash(ids),
                sample_ids_count=len(ids),
                loss=self.loss_of(rank),
                attempt=self.number,
                seconds=self.run.now - began,
                at=self.run.now,
                time=self.run.wall,
                inputs_hash=f"{self.run.config.checkpoint.digest}:{inputs_of(epoch, ids.tolist())}",
                **(self.state_of(rank) if self.run.states else {}),
            )
            written = journal.append(line)
            self.loss = line.loss if rank == 0 and isinstance(line.loss, float) else self.loss
            self.chain[rank] = hashlib.sha256(self.chain[rank].encode() + written).hexdigest()
        self.sampler.advance()
        self.spend("sync", 0.005, self.step)

    def state_of(self, rank: int) -> dict[str, Any]:
        """What the line says of the state after the step, which moves the cursor first."""
        self.sampler.advance()
        state, scaler = (
            self.rank_state(rank),
            (self.scaler() if self.run.config.precision == "fp16" else (None, None)),
        )
        before = position(self.step, self.sampler.steps_per_epoch)
        self.sampler.epoch, self.sampler.cursor_step = before
        found = {name: getattr(state, name) for name in RANK_COMPONENTS}
        whole = self.whole(state)
        rate = learning_rate(self.run.config, self.step)
        return {
            "components": found,
            "state_digest": whole,
            "lr": rate,
            "loss_scale": scaler[0],
            "growth_tracker": scaler[1],
        }

    def restored(self) -> None:
        """What each rank holds before its first step: what `image` held after the step before."""
        for rank in range(self.ranks):
            state = self.rank_state(rank)
            write_json(
                self.logs.restored(rank),
                encode(RestoredState(self.number, self.step, state, self.whole(state))),
            )

    def whole(self, state: RankState) -> str:
        """The digest over the tensors of parameters, buffers and optimizer; of something else where
        the rank has buffers of its own.
        """
        tensors = self.tensors()
        if state.buffers != components_of(tensors).buffers:
            return digest([state.parameters, state.buffers, state.optimizer])
        return digest(
            [[name, sha] for name, sha in sorted(tensors.items()) if not name.startswith("rng.")]
        )

    def tensors(self) -> dict[str, str]:
        return {
            spec.name: tensor_digest(spec.dtype, spec.shape, self.bytes_at(spec.name, spec.nbytes))
            for part in self.run.parts.values()
            for spec in part
        }

    def loss_of(self, rank: int) -> float | tuple[float, ...]:
        replicas = self.run.config.elastic.replicas
        if not replicas:
            return self.number_at("loss", rank, self.ranks)
        return tuple(
            self.number_at("loss", replica) for replica in owned(replicas, rank, self.ranks)
        )

    def number_at(self, *words: object) -> float:
        """What "training" gives at this step, which is another thing after a change of size unless
        there are replicas; wrong from `bug_from` on in an attempt that resumed.
        """
        buggy = self.number > 0 and 0 < self.run.bug_from <= self.step
        elastic = self.run.config.elastic
        changes = [
            change for change in elastic.schedule if change < self.step and not elastic.replicas
        ]
        bug = "bug" if buggy else ""
        seed = hashlib.sha256(
            f"{words} {self.step} {bug} {changes}{self.run.parted(self.step)}".encode()
        ).digest()
        return int.from_bytes(seed[:6], "big") / 2**48

    def bytes_at(self, name: str, count: int) -> bytes:
        return b"".join(struct.pack("<f", self.number_at(name, i)) for i in range(-(-count // 4)))[
            :count
        ]

    def checkpoint(self) -> None:
        """Copy, write, meet again: rank 0's seconds part by part, the others' as one wait. The
        step's own `sync` gathered the state.
        """
        began, image = self.run.now, self.image()
        self.run.tick(0.004)
        self.book(0, "snapshot", began)
        writing = self.run.now
        self.event("submitted", snapshot_s=0.004, bytes=image.nbytes, inflight=1)
        self.event("received")
        self.run.tick(0.03)
        saved = self.run.store.save(image, self.number)
        self.run.chains[self.step] = list(self.chain)
        times = {"write": 0.015, "hash": 0.005, "commit": 0.006}
        seconds: dict[str, Any] = {f"{name}_s": value for name, value in times.items()}
        where: dict[str, Any] = {
            "path": self.run.layout.relative(saved.path),
            "commit_sha256": saved.commit_sha256,
        }
        where |= {"saved_state": saved.state} if self.run.states else {}
        self.event("committed", bytes=saved.bytes, **where, **seconds)
        # the time in latest.json
        with patch("ecrl_cli.checkpoint.store.store.wall", lambda: self.run.wall):
            gone = self.run.store.update_pointers_and_retire(saved, image)
        for retired in gone:
            where = {
                "path": self.run.layout.relative(retired.path),
                "commit_sha256": retired.commit_sha256,
            }
            self.event("retired", step=retired.global_step, **where)
        self.book(0, "write_wait", writing)
        waiting = self.run.now
        self.run.tick(0.002)
        self.book(0, "sync", waiting)
        parts = {"snapshot": 0.004, **times, "settle": 0.004, "barrier": 0.002}
        self.event("released", stall_s=self.run.now - began, stall_parts=parts)
        for rank in self.booking - {0}:
            self.book(rank, "sync", began)

    def evaluate(self) -> None:
        """Rank 0 measures, the others wait for its gradients in their next step."""
        began = self.run.now
        self.run.tick(0.01)
        for rank in self.booking:
            self.book(rank, "evaluate" if rank == 0 else "sync", began)
        right = int(HELD_OUT * self.number_at("accuracy"))
        self.measured = {"accuracy": right / HELD_OUT, "loss": self.number_at("held-out loss")}
        line = Evaluation(
            self.step,
            self.number,
            HELD_OUT,
            self.measured,
            self.run.now - began,
            self.run.now,
            self.run.wall,
        )
        with closing(Journal(self.logs.evaluations)) as journal:
            journal.append(line)

    def image(self) -> CheckpointImage:
        layout = plan_image(self.run.parts)
        memory = bytearray(layout.nbytes)
        for offset, header in layout.headers:
            memory[offset : offset + len(header)] = header
        for place in layout.tensors:
            memory[place.offset : place.offset + place.spec.nbytes] = self.bytes_at(
                place.spec.name, place.spec.nbytes
            )
        document = self.run.spoil_train(self.step, self.train_state())
        own = {
            "epoch": self.sampler.epoch,
            "cursor_step": self.sampler.cursor_step,
            "seed": self.run.config.seed,
        }
        # what is wrong in it is wrong in the manifest too, or the store would refuse the two
        sampler = own | document["sampler"]
        stamp = CheckpointMeta(
            self.run.run_id,
            self.step,
            sampler["epoch"],
            sampler["cursor_step"],
            sampler["seed"],
            self.ranks,
        )
        document |= {
            "schema_version": 1,
            "world_size": self.ranks,
            "loss": self.loss,
            "line_chain": self.chain,
        }
        return CheckpointImage(
            stamp, memoryview(memory), layout.parts, {TRAIN: canonical_json(document)}
        )

    def train_state(self) -> dict[str, Any]:
        """What train.json says but for the records: the schedule and the hyperparameters of the
        configuration.
        """
        optimizer, (target, done) = (
            self.run.config.optimizer,
            schedule_after(self.run.config, self.step),
        )
        rate = learning_rate(self.run.config, self.step)
        group = {
            "lr": rate,
            "initial_lr": optimizer.lr,
            "momentum": optimizer.momentum,
            "weight_decay": optimizer.weight_decay,
            "params": ["weight"],
        }
        return {
            "global_step": self.step,
            "sampler": self.sampler.state_dict(),
            "scheduler": {
                "last_epoch": done,
                "T_max": target,
                "eta_min": optimizer.min_lr,
                "_last_lr": [rate],
            },
            "scaler": (
                dict(zip(("scale", "_growth_tracker"), self.scaler(), strict=True))
                if self.run.config.precision == "fp16"
                else {}
            ),
            "optimizer": {"param_groups": [group], "scalars": {}, "host_keys": []},
        }

    def scaler(self) -> tuple[float, int]:
        """Loss scale and growth tracker: no gradient ever overflows."""
        return 65536.0, self.step

    def rank_state(self, rank: int) -> RankState:
        """The digests of what `image` would hold, as this rank has it."""
        tensors = self.tensors()
        own = f"rng.rank{rank}."
        rng = {name.removeprefix(own): sha for name, sha in tensors.items() if name.startswith(own)}
        found = components_of(tensors)
        # restored: rank 0's
        buffers = (
            self.run.own_buffers.get(rank, found.buffers)
            if self.step >= self.first
            else found.buffers
        )
        return RankState(
            rank,
            found.parameters,
            buffers,
            found.optimizer,
            rng_digest(rng),
            train_digest(self.train_state()),
        )

    def strike(self) -> InjectedFault | None:
        entry = self.armed.get(self.step)
        if entry is None:
            return None
        # earlier versions did not say
        now, step = self.run.now, self.step if self.run.states else None
        fired = InjectedFault(
            entry.index,
            entry.kind,
            entry.rank,
            entry.global_step,
            self.number,
            now,
            self.run.wall,
            step,
        )
        assert claim(self.run.layout, fired)
        self.run.fired.add(entry.index)
        return fired

    def finish(self) -> None:
        digests = self.final_digests()
        loss = self.number_at("loss", 0, 0 if self.run.config.elastic.replicas else self.ranks)
        at = self.run.now
        write_json(
            self.logs.final,
            encode(
                FinalState(
                    self.step,
                    self.number,
                    at,
                    self.run.wall,
                    *digests,
                    loss,
                    self.measured.get("accuracy"),
                    self.rank_states(),
                )
            ),
        )
        self.spend("idle", 0.01, self.step)

    def rank_states(self) -> tuple[RankState, ...]:
        return tuple(map(self.rank_state, range(self.ranks))) if self.run.states else ()

    def final_digests(self) -> tuple[str, str, str, str]:
        store = self.run.store
        store = (
            store
            if self.run.config.checkpoint.strategy != "none"
            else CheckpointStore(self.run.root.parent / f".scratch_{self.run.root.name}")
        )
        if store is not self.run.store:
            store.claim(0)
            store.save(self.image(), 0)
        report = store.newest_valid().report
        assert (
            report is not None and report.manifest is not None and report.global_step == self.step
        )
        found = components(report.manifest)
        return found.parameters, found.buffers, found.optimizer, found.rng

    def spend(self, category: str, seconds: float, step: int) -> None:
        """All ranks alike."""
        start = self.run.now
        self.run.tick(seconds)
        for rank in sorted(self.booking):
            self.book(rank, category, start, step)

    def book(self, rank: int, category: str, start: float, step: int | None = None) -> None:
        """From `start` to now, for a rank that lives."""
        if rank in self.booking:
            self.spans[rank].append(
                Span(
                    category, start, self.run.now, self.number, self.step if step is None else step
                )
            )

    def event(self, event: str, step: int = 0, **values: object) -> None:
        at = (event, step or self.step, self.number, self.run.now, self.run.wall)
        self.checkpoints.append(CheckpointLine(*at, **values))  # type: ignore[arg-type]


def inputs_of(epoch: int, ids: list[int]) -> str:
    """A sum over the samples, as the real hash of the inputs is."""
    each = (hashlib.sha256(f"inputs {epoch} {name}".encode()).digest() for name in ids)
    return f"{sum(int.from_bytes(digest, 'big') for digest in each) % 2**256:064x}"


def flip(path: Path, offset: int = -5) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def build_ref(folder: Path) -> RunLayout:
    """The undisturbed run."""
    return RunBuilder(folder / "ref", config_of("ref")).build()


def build_clean(folder: Path) -> RunLayout:
    """Undisturbed and without checkpoints."""
    return RunBuilder(folder / "clean", config_of("clean")).build()


def build_blk(folder: Path, name: str = "blk", bug_from: int = 0) -> RunLayout:
    """Rank 1 is killed after steps 9 and 20: resumed from 6 and from 18, which are both off the
    boundary and both replayed.
    """
    return RunBuilder(
        folder / name, config_of("blk", "kill", (9, 20), 1), bug_from=bug_from
    ).build()


def build_elastic(folder: Path, name: str = "elastic", bug_from: int = 0) -> RunLayout:
    """2 -> 1 -> 2 ranks after steps 10 and 20, killed after steps 8 and 15: resumed from 6 and 12,
    resized twice.
    """
    config = replace(
        config_of("elastic", "kill", (8, 15)), elastic=ElasticConfig(schedule={10: 1, 20: 2})
    )
    return RunBuilder(folder / name, config, bug_from=bug_from).build()


def build_unstruck(folder: Path) -> RunLayout:
    """The changes of size of `build_elastic`, and no failures."""
    config = replace(config_of("unstruck"), elastic=ElasticConfig(schedule={10: 1, 20: 2}))
    return RunBuilder(folder / "unstruck", config).build()


def build_replicas(folder: Path, name: str = "replicas", bug_from: int = 0) -> RunLayout:
    """Four replicas on 3 -> 1 -> 4 ranks, the changes and the kills of `build_elastic`: rank 2 of 3
    owns two of them.
    """
    config = replace(
        config_of(name, "kill", (8, 15)),
        world_size=3,
        elastic=ElasticConfig(replicas=4, schedule={10: 1, 20: 4}),
    )
    return RunBuilder(folder / name, config, bug_from=bug_from).build()


def build_replicas_ref(folder: Path, world_size: int = 2) -> RunLayout:
    """Four replicas on the same ranks from the first step to the last, undisturbed."""
    config = replace(config_of("ref"), world_size=world_size, elastic=ElasticConfig(replicas=4))
    return RunBuilder(folder / "ref", config).build()


def build_refused(folder: Path) -> RunLayout:
    """As `build_blk`, but the checkpoint of step 18 is found damaged: set aside, resumed from 12,
    step 18 committed again.
    """
    return RunBuilder(
        folder / "refused", config_of("refused", "kill", (9, 20), 1), spoil={2: 18}
    ).build()
