"""Stop signals as a readable descriptor: the handlers only count, and the event loop reacts."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, ClassVar

from ecrl_cli.linux.clock import monotonic

ECHO_S = 1.0
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """While entered, stop signals interrupt nothing and are collected in `received`. Outside the
    main thread it does nothing.

    Signals blocked at process start (`held_back`) that arrived before it was entered are received
    too. SIGHUP (a closed terminal) stops the run like SIGTERM, unless it is ignored (nohup).

    One request may arrive as several signals: a wrapper forwards what a scheduler also sends to
    every process, and a closing terminal sends SIGHUP twice. So a signal within ECHO_S of the first
    does not count as a second request, and SIGHUP never does.

    `obeyed`: set by the code that stops because of a signal. `pass_on`: called after leaving,
    raises again a signal that was not obeyed.
    `delivered`: how many stop signals this process has received, over all instances.
    """

    delivered: ClassVar[int] = 0

    def __init__(self) -> None:
        self._mine, self._kernel = socket.socketpair()
        self._mine.setblocking(False)
        self._kernel.setblocking(False)
        self._before: dict[int, Any] = {}
        self._count: list[tuple[int, float]] = []
        self.obeyed = False

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._wakeup = signal.set_wakeup_fd(self._kernel.fileno(), warn_on_full_buffer=False)
            numbers = [
                number
                for number in STOPPING
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
            ]
            self._before = {number: signal.signal(number, _count) for number in numbers}
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
            for number, handler in self._before.items():
                signal.signal(number, handler)
        self.received()
        self._mine.close()
        self._kernel.close()

    def pass_on(self) -> None:
        """Raise the first received signal again, for the handler that was installed before, unless
        it was obeyed.
        """
        if self._count and not self.obeyed:
            signal.raise_signal(self._count[0][0])

    def fileno(self) -> int:
        return self._mine.fileno()

    def received(self) -> list[int]:
        """All stop signals since this was entered, in order."""
        with contextlib.suppress(BlockingIOError):
            self._count += [
                (number, monotonic()) for number in self._mine.recv(64) if number in STOPPING
            ]
        return [number for number, _ in self._count]

    @property
    def first(self) -> int | None:
        """The first stop signal; None if there was none."""
        return next(iter(self.received()), None)

    @property
    def asked_at(self) -> float:
        """When the first signal was seen (monotonic). There must be one."""
        return self._count[0][1]

    def again(self) -> bool:
        """Whether there was a second request."""
        return any(
            number != signal.SIGHUP and at >= self.asked_at + ECHO_S for number, at in self._count
        )


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Block the stop signals: processes started meanwhile begin with them blocked, and receive them
    once they are ready.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _count(number: int, frame: FrameType | None) -> None:
    """A handler must be installed for Python to write to the wake-up descriptor."""
    StopSignals.delivered += 1
