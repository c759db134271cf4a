"""Which ranks are alive, and forming a process group among ranks that may die meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.heartbeat_table import HeartbeatTable

_MEMBERSHIP_LOOK_S = 0.0005

_LOOK_S = 0.001


class Membership(Protocol):
    """The surviving ranks of an attempt. `epoch` rises with each death."""

    @property
    def epoch(self) -> int: ...
    @property
    def alive(self) -> tuple[int, ...]:
        """The surviving ranks, ascending, as of `epoch` or later."""

    def wait_beyond(self, epoch: int, seconds: float) -> bool:
        """Wait at most `seconds` until the membership's epoch exceeds `epoch`; returns whether it
        does.
        """


class HeartbeatMembership:
    """Read from the heartbeat table: the supervisor, which sees processes die, writes it there."""

    def __init__(self, board: HeartbeatTable) -> None:
        self._heartbeats = board

    @property
    def epoch(self) -> int:
        return self._heartbeats.epoch

    @property
    def alive(self) -> tuple[int, ...]:
        return self._heartbeats.members

    def wait_beyond(self, epoch: int, seconds: float) -> bool:
        deadline = monotonic() + seconds
        while self._heartbeats.epoch <= epoch:
            if monotonic() >= deadline:
                return False
            # a death is reported within milliseconds, and there is nothing else to do meanwhile
            time.sleep(_MEMBERSHIP_LOOK_S)
        return True


class CollectiveFailed(Exception):
    """A collective that failed or cannot finish because a member has died."""


class GroupRendezvous:
    """Rendezvous of an attempt's ranks in `store`, under `prefix`."""

    def __init__(self, store: Any, prefix: str, timeout: timedelta) -> None:
        self._store, self._prefix, self._timeout = store, prefix, timeout

    def form(self, scope: str, rank: int, alive: tuple[int, ...], check: Callable[[], None]) -> Any:
        """Form the group of `alive` under the key prefix `scope`. `check` is polled meanwhile and
        raises to abort; CollectiveFailed if gloo fails.

        All ranks first announce themselves. Then a separate thread creates the group over its own
        store connection: waiting for a rank that died cannot be interrupted, and it would block the
        connection.
        """
        here = PrefixStore(scope, PrefixStore(self._prefix, self._store))
        here.set(f"here{rank}", "1")
        names = [f"here{each}" for each in alive]
        while not here.check(names):
            check()
            time.sleep(_LOOK_S)
        apart = PrefixStore(scope, PrefixStore(self._prefix, self._store.clone()))
        made: queue.SimpleQueue[Any] = queue.SimpleQueue()
        given = (apart, alive.index(rank), len(alive), self._timeout)
        threading.Thread(target=lambda: made.put(_outcome(given)), name="form", daemon=True).start()
        while True:
            try:
                group = made.get(timeout=0.02)
            except queue.Empty:
                check()
                continue
            if isinstance(group, RuntimeError):
                raise CollectiveFailed(str(group)) from group
            return group


def _outcome(given: tuple[Any, ...]) -> Any:
    try:
        return ProcessGroupGloo(*given)
    except RuntimeError as error:
        return error


def translate_gloo_error(begin: Callable[[], Any]) -> Any:
    """The result of `begin`; a RuntimeError from gloo becomes CollectiveFailed."""
    try:
        return begin()
    except RuntimeError as error:
        raise CollectiveFailed(str(error)) from error
