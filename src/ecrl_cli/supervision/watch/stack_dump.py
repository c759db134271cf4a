"""Probes a rank's process: its state, and the stacks of its threads."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from ecrl_cli.linux import processes
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.layout import AttemptLayout
from ecrl_cli.records.messages import Hello
from ecrl_cli.training.stack_dump_handler import DUMP_SIGNAL

REPORTED_WITHIN_S = 2.0
LOOK_S = 0.02
_STOPPED = ("T", "t")


class RankProbe:
    """Holds the rank's pidfd and the memory file that receives its stacks, so that both can be read even after the rank has died."""

    def __init__(self, hello: Hello) -> None:
        self.rank, self.pid = hello.rank, hello.pid
        self._pidfd = processes.open_pidfd(hello.pid)
        self._memory: int | None = None
        if hello.stacks >= 0:
            with contextlib.suppress(OSError):
                self._memory = os.open(f"/proc/{hello.pid}/fd/{hello.stacks}", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def state(self) -> str:
        """The state letter as in proc(5): R, S, D, T, Z ...; empty if the process has gone."""
        return processes.state(self.pid)

    def send(self, number: int) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._pidfd, number)

    def wait_gone(self) -> None:
        if self._pidfd is not None:
            processes.wait_all([self._pidfd], REPORTED_WITHIN_S)

    def wait_for_stacks(self, deadline: float) -> bool:
        """Wait until its stacks are complete: they have stopped growing. False if they are not by `deadline`, or the rank has died before."""
        before = 0
        while self._memory is not None and self._pidfd is not None and monotonic() < deadline:
            dead = not processes.wait_all([self._pidfd], LOOK_S)
            size = os.fstat(self._memory).st_size
            if size and size == before:
                return True
            if dead:
                break
            before = size
        return False

    def facts(self) -> str:
        """What the kernel reports about the process, as lines: state, wchan, syscall."""
        lines = [f"rank {self.rank}, process {self.pid}, state {self.state or 'gone'}"]
        for name in ("wchan", "syscall"):
            with contextlib.suppress(OSError):
                lines.append(f"{name}: {Path(f'/proc/{self.pid}/{name}').read_text(encoding='utf-8').strip()}")
        return "\n".join(lines) + "\n"

    def stacks(self) -> str:
        if self._memory is None:
            return "no stacks: the rank did not say where it would write them\n"
        size = os.fstat(self._memory).st_size
        return os.pread(self._memory, size, 0).decode(errors="replace") or "no stacks: the rank did not answer\n"

    def close(self) -> None:
        for fd in (self._pidfd, self._memory):
            if fd is not None:
                os.close(fd)
        self._pidfd = self._memory = None


def dump_stacks(probes: Sequence[RankProbe], logs: AttemptLayout) -> None:
    """Ask every rank for its stacks and write them to the attempt's logs, with what the kernel reports.

    A stopped rank can answer only after SIGCONT, and must do nothing else then. So its peers are killed before it is continued, and it is
    killed as soon as it has answered.
    """
    facts = {probe.rank: probe.facts() for probe in probes}
    stopped = [probe for probe in probes if probe.state in _STOPPED]
    for probe in probes:
        probe.send(DUMP_SIGNAL)
    awake = [probe for probe in probes if probe not in stopped]
    deadline = monotonic() + REPORTED_WITHIN_S
    for probe in awake:
        probe.wait_for_stacks(deadline)
    if stopped:
        for probe in awake:
            probe.send(signal.SIGKILL)
        for probe in awake:
            probe.wait_gone()
    for probe in stopped:
        probe.send(signal.SIGCONT)
        probe.wait_for_stacks(monotonic() + REPORTED_WITHIN_S)
        probe.send(signal.SIGKILL)
        probe.wait_gone()
    for probe in probes:
        with contextlib.suppress(OSError):  # a full disk must not prevent the hung attempt from being ended
            logs.stacks(probe.rank).write_text(f"{facts[probe.rank]}\n{probe.stacks()}", encoding="utf-8")
