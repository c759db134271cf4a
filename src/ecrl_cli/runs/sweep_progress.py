"""Progress of a sweep for people: runs done, running, failed and left per suite, and an estimate of the time left."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ecrl_cli.config.estimates import human_seconds, seconds
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.runs.sweep import SweepPlan

KINDS = ("done", "running", "failed", "left")
_KIND = {"completed": "done", "completed_prev": "done", "running": "running", "failed": "failed", "pending": "left"}


class Board:
    """Counts runs by status. The time left is the estimate for the remaining runs, scaled by how the finished runs compare with theirs."""

    def __init__(self, do: SweepPlan, now: Callable[[], float] = monotonic) -> None:
        self._configs, self._now = do.configs, now
        self._status = {name: "completed_prev" if name in do.finished else "pending" for name in do.configs}
        self._began = now()
        self._expected = self._spent = 0.0

    def began(self, name: str) -> None:
        self._status[name], self._began = "running", self._now()

    def ended(self, name: str, status: str) -> None:
        self._status[name] = status
        if status == "completed":
            self._spent += self._now() - self._began
            self._expected += _estimate(self._configs[name])

    def counts(self, suite: str | None = None) -> dict[str, int]:
        """Number of runs of each of KINDS, in one suite or in all."""
        states = [_KIND[s] for name, s in self._status.items() if suite in (None, self._configs[name].suite_name)]
        return {kind: states.count(kind) for kind in KINDS}

    def seconds_left(self) -> float | None:
        """Estimated seconds left; None until a first run has completed."""
        if not self._expected:
            return None
        ahead = sum(_estimate(self._configs[name]) for name, s in self._status.items() if s in ("pending", "running"))
        return max(0.0, ahead * self._spent / self._expected - self._since())

    def line(self) -> str:
        """`sweep: 12 of 72 done, 1 failed, about 9 min left`."""
        counts, left = self.counts(), self.seconds_left()
        rest = "" if left is None or counts["done"] + counts["failed"] == len(self._configs) else f", about {human_seconds(left)} left"
        return f"sweep: {counts['done']} of {len(self._configs)} done, {counts['failed']} failed{rest}"

    def table(self) -> RenderableType:
        """The line, and a table with one row per suite."""
        made = Table("suite", *KINDS, box=None, pad_edge=False)
        for suite in dict.fromkeys(config.suite_name for config in self._configs.values()):
            made.add_row(suite or "(no suite)", *_cells(self.counts(suite)))
        return Group(Text(self.line(), style="bold"), made)

    def _since(self) -> float:
        return self._now() - self._began if "running" in self._status.values() else 0.0


class LoggedSweepProgress(Board):
    """Also prints a line after each run, for logs."""

    def __init__(self, do: SweepPlan, say: Callable[[str], None]) -> None:
        super().__init__(do)
        self._say = say

    def ended(self, name: str, status: str) -> None:
        super().ended(name, status)
        self._say(self.line())


def _cells(counts: Mapping[str, int]) -> list[str]:
    return [str(counts[kind]) if counts[kind] else "" for kind in KINDS]


def _estimate(config: RunConfig) -> float:
    return seconds(config, gpu=False)
