"""How a group is formed among ranks that may die meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo

_LOOK_S = 0.001


class CollectiveFailed(Exception):
    """What will not come to its end: a member has died."""


class GroupRendezvous:
    """Where the ranks of an attempt meet: in `store`, under `prefix`."""

    def __init__(self, store: Any, prefix: str, timeout: timedelta) -> None:
        self._store, self._prefix, self._timeout = store, prefix, timeout

    def form(self, scope: str, rank: int, alive: tuple[int, ...], look: Callable[[], None]) -> Any:
        """The group of `alive`, made anew in `scope`; `look` is called again and again meanwhile, and raises where it is no use any more.

        Everyone says that it is there first; and the group is made beside, on a connection of its own, for neither a wait for one who has
        died on the way nor its hold on the connection comes to an end by itself.
        """
        here = PrefixStore(scope, PrefixStore(self._prefix, self._store))
        here.set(f"here{rank}", "1")
        names = [f"here{each}" for each in alive]
        while not here.check(names):
            look()
            time.sleep(_LOOK_S)
        apart = PrefixStore(scope, PrefixStore(self._prefix, self._store.clone()))
        made: queue.SimpleQueue[Any] = queue.SimpleQueue()
        given = (apart, alive.index(rank), len(alive), self._timeout)
        threading.Thread(target=lambda: made.put(_outcome(given)), name="form", daemon=True).start()
        while True:
            try:
                group = made.get(timeout=0.02)
            except queue.Empty:
                look()
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
    """What `begin` gives; Interrupted where gloo refuses."""
    try:
        return begin()
    except RuntimeError as error:
        raise CollectiveFailed(str(error)) from error
