"""An event loop: runs a callback when its descriptor becomes readable. The supervisor waits nowhere else."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Collection
from typing import Protocol


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class EventLoop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._groups: dict[str, set[int]] = {}

    def add(self, source: HasFileno | int, callback: Callable[[], object]) -> None:
        self._selector.register(source, selectors.EVENT_READ, callback)

    def drop(self, source: HasFileno | int) -> None:
        self._selector.unregister(source)

    def set_group(self, name: str, fds: Collection[int], callback: Callable[[], object]) -> None:
        """Watch exactly `fds` under `name`, instead of those before."""
        now, before = set(fds), self._groups.get(name, set())
        for fd in before - now:
            self._selector.unregister(fd)
        for fd in now - before:
            self._selector.register(fd, selectors.EVENT_READ, callback)
        self._groups[name] = now

    def run_once(self, seconds: float | None = None) -> None:
        """Wait until something is readable, at most `seconds`, and call all its callbacks."""
        for key, _ in self._selector.select(seconds):
            key.data()

    def close(self) -> None:
        self._selector.close()
