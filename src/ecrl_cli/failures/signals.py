"""Signals to the ranks that a failure takes: to the others first, to the process that injects it last."""

from __future__ import annotations

import contextlib
import os
import signal

from ecrl_cli.failures.fault_kind import InjectionContext


def to_victims(scene: InjectionContext, number: int) -> None:
    """Send `number` to the ranks that go with this one, to their agent where the whole node goes, then to this process."""
    others = [scene.peers[rank] for rank in scene.entry.others if rank in scene.peers]
    for pid in [*others, *([os.getppid()] if scene.entry.node else [])]:
        to_process(pid, number)
    os.kill(os.getpid(), number)


def to_process(pid: int, number: int) -> None:
    """Send `number` to `pid` through a pidfd, which cannot hit a process that took over the pid; nothing where it has gone."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def supervisor_pid() -> int:
    """The process that launched this rank's attempt."""
    return int(os.environ["ECRL_SUPERVISOR"])
