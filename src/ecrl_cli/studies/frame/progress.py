"""Progress of a study: a bar on a terminal, an occasional line elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from ecrl_cli.linux.clock import monotonic

_EVERY_S = 10.0


class Progress:
    """Counts trials; call `step` for each recorded one."""

    def __init__(self, name: str, total: int, done: int, say: Callable[[str], None]) -> None:
        self._name, self._total, self._done, self._say = name, total, done, say
        self._began = self._said = monotonic()
        self._bar: Bar | None = None
        if done:
            say(f"{name}: {done} of {total} trials are on record already")
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task(name, total=total, completed=done)
            self._bar.start()

    def step(self) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._task)
        elif monotonic() - self._said > _EVERY_S:
            self._said = monotonic()
            self._say(f"{self._name}: {self._done} of {self._total} trials, {self._said - self._began:.0f} s")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
