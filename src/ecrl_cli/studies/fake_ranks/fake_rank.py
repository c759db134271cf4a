"""A torch-free rank in lockstep with the others that saves through the product's store; its script,
written by the study, says where it misbehaves.

Supervisor, heartbeat table, stack dumps and store are the real ones, so results about them do not
depend on the model trained.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog, save_and_record
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import synthetic_image, synthetic_plan
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.errors import Fenced
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.records.events import FinalState, RankLine
from ecrl_cli.records.journal import Journal, read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec, Hello, Progress
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.storage.files import write_json
from ecrl_cli.storage.fs_wrapper import HeartbeatFs
from ecrl_cli.training.control_client import Control, HeartbeatWriter, answer_stack_dumps
from ecrl_cli.training.rendezvous import Rendezvous

SCRIPT = "part.json"


@dataclass(frozen=True)
class FakeRankScript:
    """Seconds of each start phase, of a step's own work, of a save, and of the last save on a stop
    request. `faults`: misbehaviour by "ATTEMPT/RANK/STEP" (ATTEMPT may be `any`): freeze, grasp,
    spin, skip, raise, exitN, SIGNAME. `on_stop`: reaction to a stop request: yes, no, or alone
    (rank 0 does not coordinate). `side_thread`: a thread sends the rank's heartbeats.
    """

    start_s: float = 0.0
    step_s: float = 0.002
    save_s: float = 0.0
    last_save_s: float = 0.0
    faults: dict[str, str] = field(default_factory=dict)
    on_stop: str = "yes"
    side_thread: bool = False

    def fault(self, attempt: int, rank: int, step: int) -> str:
        return (
            self.faults.get(f"{attempt}/{rank}/{step}")
            or self.faults.get(f"any/{rank}/{step}")
            or ""
        )


def write_script(layout: RunLayout, script: FakeRankScript) -> None:
    write_json(layout.root / SCRIPT, encode(script))


def read_script(layout: RunLayout) -> FakeRankScript:
    return decode(FakeRankScript, read_json(layout.root / SCRIPT))


POLL_S = 0.0005
_STEP = struct.Struct("<Q")


def run_rank(run_dir: Path, attempt: int, rendezvous: Rendezvous, started: float) -> int:
    layout = RunLayout(run_dir)
    try:
        control = Control(
            layout,
            Hello(rendezvous.rank, os.getpid(), attempt, started, stacks=answer_stack_dumps()),
        )
        control.attach()
        with closing(control):
            return FakeRank(layout, attempt, rendezvous, control).play()
    except Fenced as error:
        return error.exit_code


class FakeRank:
    """One fake rank in one attempt."""

    def __init__(
        self, layout: RunLayout, attempt: int, rendezvous: Rendezvous, control: Control
    ) -> None:
        self.layout, self.attempt, self.rank, self.world_size = (
            layout,
            attempt,
            rendezvous.rank,
            rendezvous.world_size,
        )
        self.control, self.heartbeat, self.script = (
            control,
            HeartbeatWriter(control.heartbeats, rendezvous.rank),
            read_script(layout),
        )
        self.stored, self.logs = read_run_config(layout), layout.attempt(attempt)
        self.order = decode(AttemptSpec, read_json(self.logs.launch))
        self.step, self.until = self.order.resume_step, self.stored.config.target_steps
        self.journal = Journal(self.logs.rank(self.rank))
        self.exchange = FakeExchange(self.logs.folder / "exchange", self.rank, self.world_size)
        self.plan = synthetic_plan(4096, 2048)

    def play(self) -> int:
        for phase in ("importing", "rendezvous", "loading"):
            self.at(phase)
            time.sleep(self.script.start_s)
        if self.script.side_thread:
            threading.Thread(target=self.pretend, daemon=True).start()
        self.check_stop()
        with closing(
            CheckpointStore(
                self.layout.checkpoints, StoreConfig.of(self.stored.config, self.stored.run_id)
            )
        ) as store:
            store.fs = HeartbeatFs(store.fs, self.heartbeat.again)
            while self.step < self.until:
                self.do()
                self.check_stop()
                if self.step % self.stored.config.checkpoint.every == 0 or self.step == self.until:
                    self.save(store)
        return self.leave()

    def at(self, phase: str) -> None:
        self.heartbeat.phase(phase)
        if self.rank == 0:
            self.control.progress(Progress(self.step, phase, monotonic(), 0.5))

    def do(self) -> None:
        """Do a step: own work, the exchange, the log line."""
        step = self.step + 1
        self.heartbeat.step(step)
        if step == self.order.resume_step + 1:
            self.at("forward")
        self.misbehave(step)
        time.sleep(self.script.step_s)
        self.heartbeat.phase("backward")
        if self.script.fault(self.attempt, self.rank, step) != "skip":
            self.exchange.meet()
        self.heartbeat.phase("logging")
        self.step = step
        self.journal.append(
            RankLine(
                step,
                0,
                step - 1,
                self.rank,
                self.world_size,
                "",
                0,
                0.5,
                self.attempt,
                0.0,
                monotonic(),
                wall(),
            )
        )
        self.at_training()

    def at_training(self) -> None:
        if self.rank == 0:
            self.control.progress(Progress(self.step, "training", monotonic(), 0.5))

    def check_stop(self) -> None:
        last = self.heartbeat.stop_after(self.step)
        if self.script.on_stop == "alone" and self.rank == 0 and last is not None:
            last = self.step
        if self.script.on_stop != "no" and last is not None:
            self.until = min(self.until, last)

    def save(self, store: CheckpointStore) -> None:
        self.at("saving")
        if self.rank == 0:
            log = CheckpointLog(Journal(self.logs.checkpoints), self.layout, self.attempt)
            store.claim(self.attempt)
            image = synthetic_image(
                self.stored.config.seed, self.step, self.plan, self.stored.run_id, restorable=True
            )
            log.write("submitted", self.step, bytes=image.nbytes, inflight=1)
            time.sleep(
                self.script.last_save_s
                if self.until < self.stored.config.target_steps
                else self.script.save_s
            )
            save_and_record(store, image, self.attempt, log)
            log.close()
        self.exchange.meet()

    def leave(self) -> int:
        self.heartbeat.phase("flushing")
        if self.rank == 0 and self.step == self.stored.config.target_steps:
            write_json(
                self.logs.final,
                encode(
                    FinalState(self.step, self.attempt, monotonic(), wall(), "", "", "", "", 0.5)
                ),
            )
        return 0

    def misbehave(self, step: int) -> None:
        """Misbehave as the script has it for this step. A hang happens in the rank's own work,
        before the exchange.
        """
        fault = self.script.fault(self.attempt, self.rank, step)
        if fault == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault == "grasp":
            ctypes.PyDLL(None).sleep(3600)
        elif fault == "spin":
            _spin()
        elif fault == "raise":
            raise RuntimeError(f"planned, at step {step}")
        elif fault.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[fault])
        elif fault.startswith("exit"):
            os._exit(int(fault[4:]))

    def pretend(self) -> None:
        """Planted bug: a heartbeat that does not come from the training loop."""
        while True:
            time.sleep(0.05)
            self.heartbeat.again()


class FakeExchange:
    """A barrier in place of a collective: no rank passes its n-th before all have reached it. Uses
    a file mapped by all ranks of an attempt.
    """

    def __init__(self, path: Path, rank: int, world_size: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, world_size * _STEP.size)
        self._memory, self._rank, self._world_size = (
            mmap.mmap(fd, world_size * _STEP.size),
            rank,
            world_size,
        )
        os.close(fd)
        self._count = 0

    def meet(self) -> None:
        self._count += 1
        _STEP.pack_into(self._memory, self._rank * _STEP.size, self._count)
        while any(
            _STEP.unpack_from(self._memory, rank * _STEP.size)[0] < self._count
            for rank in range(self._world_size)
        ):
            time.sleep(POLL_S)


def _spin() -> NoReturn:
    while True:
        pass
