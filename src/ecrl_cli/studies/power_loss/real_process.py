"""A trial's processes: one saves until it is killed, one recovers; both are forked, monitored, and
given a deadline.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ecrl_cli.checkpoint.format.names import CRASH_POINTS
from ecrl_cli.config.checkpointers import (
    DCP,
    TORCH_CHECKPOINTING,
    TORCH_SAVE_DURABLE,
    TORCHSNAPSHOT,
)
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.errors import EcrlError, shown
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.pdeathsig import die_with_parent
from ecrl_cli.studies.frame.child import forked
from ecrl_cli.studies.frame.store_fixture import Payload
from ecrl_cli.studies.power_loss.subject_store import Mark, Recovered, StoreSubject, Subject

TORCH_SUBJECTS = (
    "torch.save",
    "torch.save-durable",
    TORCH_SAVE_DURABLE.subject,
    DCP.subject,
    TORCH_CHECKPOINTING.subject,
    TORCHSNAPSHOT.subject,
)
PHASES = (
    "saving",
    "acknowledged",
    *dict.fromkeys(point.partition(":")[0] for point in CRASH_POINTS),
)
OUTCOMES = (
    "new",
    "lost_ack",
    "lost_all",
    "empty_ok",
    "detected",
    "silent_wrong",
    "untyped",
    "hung",
)
LOST = ("lost_ack", "lost_all")
# the step, and the time, or instead of the time the length of the disk's log
_ACK = struct.Struct("=Qd")
_DEADLINE_S = 30.0


@dataclass(frozen=True)
class Who:
    """A subject: one of the write modes or TORCH_SUBJECTS; `variant`: a planted fault, SETTLED, or
    empty.
    """

    subject: str
    layout: str
    variant: str
    payload: Payload

    def made(self, folder: Path, mark: Mark = lambda _: None) -> Subject:
        if self.subject not in TORCH_SUBJECTS:
            return StoreSubject(folder, self.payload, self.subject, self.layout, self.variant, mark)
        # torch takes seconds to import; other subjects need not wait for it
        from ecrl_cli.studies.power_loss.subject_torch import subject

        return subject(self.subject, folder, self.payload)


@dataclass(frozen=True)
class Answer:
    """Recovery's result: what it recovered, or an outcome (`detected`, `untyped`, `hung`) and
    why.
    """

    outcome: str = ""
    recovered: Recovered | None = None
    error: str = ""


def outcome_of(answer: Answer, acknowledged: int | None, started: int) -> str:
    """The class of a recovery; `acknowledged`: the last acknowledged step, `started`: the last one
    started.
    """
    found = answer.recovered
    if found is None:
        return answer.outcome
    if found.step is None:
        return "empty_ok" if acknowledged is None else "lost_all"
    if not found.exact or not 1 <= found.step <= started:
        return "silent_wrong"
    return "new" if found.step >= (acknowledged or 0) else "lost_ack"


class Saver:
    """A process that saves step 1, 2, 3, ... (up to `steps`) into `folder` and reports acknowledged
    steps.
    """

    def __init__(
        self, who: Who, folder: Path, steps: int | None = None, log: int | None = None
    ) -> None:
        self._shared = mmap.mmap(-1, 4096)  # the phase in the first byte, then the text of an error
        self._pipe, write = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            die_with_parent(parent)
            os.close(self._pipe)
            _in_child(
                lambda: self._save(who.made(folder, self._mark), write, steps, log), self._report
            )
        os.close(write)
        self.acknowledged: list[tuple[int, float]] = []

    @property
    def phase(self) -> str:
        return PHASES[self._shared[0]]

    def wait_for_first(self) -> None:
        """Wait until one checkpoint is acknowledged. Raises EcrlError if the process ends
        before.
        """
        self._receive(_DEADLINE_S, until_end=False)
        if not self.acknowledged:
            raise EcrlError("power-loss", f"no checkpoint was saved: {self.stop()}", "report this")

    def wait_for_end(self) -> None:
        self._receive(_DEADLINE_S, until_end=True)

    def told(self, moment: float) -> int:
        """The last step acknowledged before `moment` of the monotonic clock; 0 if none."""
        return max((step for step, at in self.acknowledged if at < moment), default=0)

    def alive(self) -> bool:
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def stop(self) -> str:
        """Kill the process if it still runs; returns its error."""
        os.kill(self._pid, signal.SIGKILL)
        self._receive(_DEADLINE_S, until_end=True)
        os.waitpid(self._pid, 0)
        os.close(self._pipe)
        return shown(bytes(self._shared[1:]).rstrip(b"\0").decode(), 300)

    def _receive(self, seconds: float, *, until_end: bool) -> None:
        end = monotonic() + seconds
        while until_end or not self.acknowledged:
            ready, _, _ = select.select([self._pipe], [], [], max(0.0, end - monotonic()))
            data = os.read(self._pipe, _ACK.size) if ready else b""
            if len(data) < _ACK.size:
                return
            self.acknowledged.append(_ACK.unpack(data))

    def _save(self, subject: Subject, pipe: int, steps: int | None, log: int | None) -> None:
        def acknowledge(step: int) -> None:
            os.write(pipe, _ACK.pack(step, monotonic() if log is None else os.fstat(log).st_size))
            self._mark("acknowledged")

        subject.begin()
        for step in count(1) if steps is None else range(1, steps + 1):
            self._mark("saving")
            subject.save(step, acknowledge)

    def _mark(self, phase: str) -> None:
        self._shared[0] = PHASES.index(phase)

    def _report(self, text: str) -> None:
        data = text.encode()[-4000:]
        self._shared[1 : 1 + len(data)] = data


def recover(who: Who, folder: Path, *, go_on: bool = True) -> Answer:
    """The checkpoint that a fresh process recovers from `folder`; see `Subject.recover`."""

    def answer() -> object:
        try:
            return encode(Answer(recovered=who.made(folder).recover(go_on=go_on)))
        except EcrlError as error:
            return encode(Answer("detected", error=error.line()))
        except BaseException:
            return encode(Answer("untyped", error=traceback.format_exc()[-300:]))

    found, end = forked(answer, _DEADLINE_S)
    if end == "hung":
        return Answer("hung", error=f"no answer within {_DEADLINE_S:.0f} s")
    return Answer("untyped", error="the process died") if end else decode(Answer, found)


def _in_child(work: Callable[[], None], report: Callable[[str], None]) -> None:
    """Do the work of a forked process and exit; never returns into the parent's code."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        report(traceback.format_exc())
    finally:
        sys.stderr.flush()
        os._exit(code)
