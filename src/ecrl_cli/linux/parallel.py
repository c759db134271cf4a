"""A parallel map over forked processes: workers inherit the items and receive only indices."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

T = TypeVar("T")
R = TypeVar("R")
# items; with fewer, starting workers takes longer than it saves, unless there is something to do
# meanwhile
FEWEST = 3

_work: Callable[[int], Any] | None = None


def parallel_map(
    function: Callable[[T], R],
    things: Sequence[T],
    workers: int | None = None,
    done: Callable[[R], object] = lambda result: None,
    meanwhile: Callable[[], object] | None = None,
) -> list[R]:
    """`function` of each of `things`, in order; results are pickled. Its exceptions are raised
    here. `done` is called here with each result, and `meanwhile` once, while the workers work.
    """
    at_once = workers or os.cpu_count() or 1
    if at_once < 2 or len(things) < (1 if meanwhile else FEWEST) or _work is not None:
        if meanwhile:
            meanwhile()
        return _collected((function(thing) for thing in things), done)
    count = min(at_once, len(things))
    with _inherited(lambda number: function(things[number])), _pool(count) as pool:
        results = pool.map(
            _numbered, range(len(things)), chunksize=max(1, len(things) // (8 * count))
        )
        if meanwhile:
            meanwhile()  # after the fork, so that no worker inherits half of it
        return _collected(results, done)


def _collected(results: Iterable[R], done: Callable[[R], object]) -> list[R]:
    found: list[R] = []
    for result in results:
        found.append(result)
        done(result)
    return found


class _inherited:
    """While entered, forked workers inherit `work` through the global that `_numbered` reads."""

    def __init__(self, work: Callable[[int], Any]) -> None:
        self._new = work

    def __enter__(self) -> None:
        globals()["_work"] = self._new

    def __exit__(self, *_: object) -> None:
        globals()["_work"] = None


def _numbered(number: int) -> Any:
    assert _work is not None
    return _work(number)


def _pool(workers: int) -> ProcessPoolExecutor:
    # Imported here: a verdict on one run needs no worker, and these take a tenth of the time of its
    # start.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with warnings.catch_warnings():
        # Python warns about forking with threads; those of the numerical libraries are idle and
        # hold no lock that a worker needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork"))
