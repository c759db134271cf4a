"""Sends signals to the victims of a failure: to the other processes first, to the injecting process last."""

from __future__ import annotations

import contextlib
import os
import signal

from ecrl_cli.failures.fault_kind import InjectionContext


def to_victims(scene: InjectionContext, number: int) -> None:
    """Sends `number` to the other victims, to their agent if the whole node is hit, then to this process."""
    others = [scene.peers[rank] for rank in scene.entry.others if rank in scene.peers]
    for pid in [*others, *([os.getppid()] if scene.entry.node else [])]:
        to_process(pid, number)
    os.kill(os.getpid(), number)


def to_process(pid: int, number: int) -> None:
    """Sends `number` to `pid` through a pidfd, which cannot hit a process that reused the pid; does nothing if it has exited."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def supervisor_pid() -> int:
    """The pid of the supervisor of this rank's attempt."""
    return int(os.environ["ECRL_SUPERVISOR"])
