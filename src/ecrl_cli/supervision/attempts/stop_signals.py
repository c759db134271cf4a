"""What asks a supervisor to stop, as something to read: the handlers do nothing, the loop sees a readable descriptor."""

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
    """While entered, a stop signal does not interrupt anything: it waits in `received`. Outside the main thread it does nothing.

    A process may begin life with them blocked (`held_back`): then what came before this was entered is received too.

    A terminal that is closed stops the run as SIGTERM does, unless the command was started to outlive it (nohup).

    One request may arrive several times: a wrapper passes on what a scheduler sends to everyone, and a terminal says twice that it closes. So
    nothing within ECHO_S of the first is the second, and SIGHUP never is.

    `obeyed`: set by whoever stops because of one; `pass_on`, once this has been left, raises one that nobody obeyed.
    `delivered`: how many this process really got, in whichever of these.
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
            numbers = [number for number in STOPPING if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, _count) for number in numbers}
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
            for number, handler in self._before.items():
                signal.signal(number, handler)
        self.received()
        self._mine.close()
        self._kernel.close()

    def pass_on(self) -> None:
        """Raise the first signal that was received, by the handler that was there before, unless it was obeyed."""
        if self._count and not self.obeyed:
            signal.raise_signal(self._count[0][0])

    def fileno(self) -> int:
        return self._mine.fileno()

    def received(self) -> list[int]:
        """Every stop signal since the beginning, in order."""
        with contextlib.suppress(BlockingIOError):
            self._count += [(number, monotonic()) for number in self._mine.recv(64) if number in STOPPING]
        return [number for number, _ in self._count]

    @property
    def first(self) -> int | None:
        """What asked first."""
        return next(iter(self.received()), None)

    @property
    def asked_at(self) -> float:
        """When the first one was seen, which must be there."""
        return self._count[0][1]

    def again(self) -> bool:
        """Whether there was a second request."""
        return any(number != signal.SIGHUP and at >= self.asked_at + ECHO_S for number, at in self._count)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Whatever is started meanwhile begins life with the stop signals blocked: they wait until it is ready for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _count(number: int, frame: FrameType | None) -> None:
    """A handler must be there for the wake-up descriptor to be written."""
    StopSignals.delivered += 1
