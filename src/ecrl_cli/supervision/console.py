"""The display of a run on the terminal: a live bar, or plain lines if standard error is not a
terminal, or nothing (tests).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import plural, visible
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.events import Attempt, SupervisorRecord
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import TENTHS, AttemptSpec, Progress
from ecrl_cli.records.survivor_records import SNAPSHOT, SURVIVED

RECENT_S = 10.0


class UI(Protocol):
    def launched(self, order: AttemptSpec) -> None:
        """An attempt is being launched."""

    def progress(self, progress: Progress) -> None:
        """Rank 0 has finished a step or entered another phase."""

    def state(self, state: str) -> None:
        """The supervisor's current activity."""

    def note(self, text: str) -> None:
        """One line of information for the user."""

    def died(self, attempt: Attempt, reason: str) -> None:
        """An attempt ended before the target."""

    def resized(self, attempt: Attempt) -> None:
        """An attempt ended as planned, for a change of the world size."""

    def ended(self, record: SupervisorRecord) -> None:
        """The run has ended, with any status. Only `close` is called after it."""

    def close(self) -> None:
        """Restore the terminal. May be called twice."""


class SilentUI:
    def launched(self, order: AttemptSpec) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def state(self, state: str) -> None: ...
    def note(self, text: str) -> None: ...
    def died(self, attempt: Attempt, reason: str) -> None: ...
    def resized(self, attempt: Attempt) -> None: ...
    def ended(self, record: SupervisorRecord) -> None: ...
    def close(self) -> None: ...


class PlainUI:
    """Lines for a file or a CI log: start, every tenth of the steps, each failure and restart, the
    end.
    """

    def __init__(self, name: str, target_steps: int, say: Callable[[str], None]) -> None:
        self._name, self._target, self._say = name, target_steps, say
        self._told = 0
        self._why = "restart, "

    def launched(self, order: AttemptSpec) -> None:
        where = f"from step {order.resume_step}" if order.resume_step else "from the beginning"
        if order.memory == SNAPSHOT:
            where += " in memory"
        elif order.continues is not None:
            self._why, where = "going on, ", f"after step {order.resume_step}"
        what = (
            f"attempt {order.attempt}"
            if order.attempt == 0
            else f"{self._why}attempt {order.attempt}"
        )
        self._why = "restart, "
        self._say(
            f"{self._name}: {what}: {plural(order.world_size, 'rank')} {where}, target step"
            f" {self._target}"
        )

    def progress(self, progress: Progress) -> None:
        tenth = progress.global_step * TENTHS // self._target
        if progress.phase == "training" and tenth > self._told:
            self._told = tenth
            self._say(
                f"{self._name}: step"
                f" {progress.global_step}/{self._target}{loss_text(progress.loss)}"
            )

    def state(self, state: str) -> None:
        """Not logged: too frequent."""

    def note(self, text: str) -> None:
        self._say(f"{self._name}: {text}")

    def died(self, attempt: Attempt, reason: str) -> None:
        self._say(
            f"{self._name}: attempt {attempt.attempt} ended at step"
            f" {attempt.last_step or attempt.resumed_from_step}: {reason}"
        )

    def resized(self, attempt: Attempt) -> None:
        self._why = "resized, "

    def ended(self, record: SupervisorRecord) -> None:
        self._say(
            f"{self._name}: {record.terminal_status} after {plural(record.restarts, 'restart')}:"
            f" {record.reason}"
        )

    def close(self) -> None: ...


class LiveUI:
    """A live progress bar, redrawn at most ten times a second for progress. It has no refresh
    thread, so that forks stay safe.

    Below it: steps per second of the last RECENT_S of this attempt, time elapsed, and time left at
    the pace since the first step, restarts included.
    """

    def __init__(
        self,
        name: str,
        target_steps: int,
        console: Console,
        above: Callable[[], RenderableType] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name, self._target, self._above, self._clock = (
            visible(name).replace("[", "\\["),
            target_steps,
            above,
            clock,
        )
        # 40 columns for the text after the bar
        self._width = max(6, min(30, console.width - len(name) - 40))
        self._started = self._drawn = clock()
        # when a step of this attempt ended, and which
        self._recent: deque[tuple[float, int]] = deque()
        self._paced: tuple[float, int] | None = None  # the same of the run's first
        self._step, self._loss, self._restarts, self._state = 0, "", 0, "starting"
        self._highest = self._no_restarts = 0  # _no_restarts: attempts that do not follow a restart
        # In a sweep the table above is drawn again with the next run's bar, so this bar is erased
        # at its end.
        transient = above is not None
        self._live = Live(
            self._picture(),
            console=console,
            auto_refresh=False,
            transient=transient,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def launched(self, order: AttemptSpec) -> None:
        self._restarts, self._step = order.attempt - self._no_restarts, order.resume_step
        self._recent.clear()
        self.state(
            "going on"
            if order.continues is not None
            else "launching"
            if self._restarts == 0
            else "restarting"
        )

    def progress(self, progress: Progress) -> None:
        self._step, self._loss = progress.global_step, loss_text(progress.loss) or self._loss
        self._highest = max(self._highest, progress.global_step)
        changed = progress.phase != self._state
        self._state = progress.phase
        now = self._clock()
        if self._step and (not self._recent or self._step > self._recent[-1][1]):
            self._recent.append((now, self._step))
            self._paced = self._paced or (now, self._step)
        while len(self._recent) > 2 and now - self._recent[1][0] > RECENT_S:
            self._recent.popleft()
        if changed or now - self._drawn > 0.1:
            self._draw()

    def state(self, state: str) -> None:
        self._state = state
        self._draw()

    def note(self, text: str) -> None:
        with suppress(OSError):
            self._live.console.print(
                visible(f"{self._name}: {text}"), style="yellow", highlight=False, markup=False
            )

    def died(self, attempt: Attempt, reason: str) -> None:
        self.note(f"attempt {attempt.attempt}: {reason}")
        self._no_restarts += attempt.outcome == SURVIVED
        self.state("dead")

    def resized(self, attempt: Attempt) -> None:
        self._no_restarts += 1
        self.state("resizing")

    def ended(self, record: SupervisorRecord) -> None:
        self._restarts = record.restarts
        self.state(record.terminal_status)

    def close(self) -> None:
        with suppress(OSError):
            self._live.stop()

    def _draw(self) -> None:
        self._drawn = self._clock()
        with suppress(OSError):  # a closed terminal must not end the run
            self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        return self._bar() if self._above is None else Group(self._above(), self._bar())

    def _bar(self) -> RenderableType:
        row = Table.grid(padding=(0, 1))
        row.add_row(
            self._name,
            ProgressBar(total=self._target, completed=self._step, width=self._width),
            f"{self._step}/{self._target}{self._loss} | {self._state}",
        )
        now = self._clock()
        (began, low), (ended, high) = (
            (self._recent[0], self._recent[-1]) if self._recent else ((0.0, 0), (0.0, 0))
        )
        pace = f"{(high - low) / (ended - began):.1f}" if ended > began else "-"
        left = ""
        if self._paced and self._highest > self._paced[1]:
            spent = (now - self._paced[0]) / (self._highest - self._paced[1])
            left = f", {span(spent * (self._target - self._highest))} left"
        return Group(
            row,
            Text(
                f"  {pace} steps/s | {span(now - self._started)} elapsed{left} |"
                f" {plural(self._restarts, 'restart')}"
            ),
        )


def span(seconds: float) -> str:
    """`0:05`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
        if minutes >= 60
        else f"{minutes}:{rest:02d}"
    )


def loss_text(loss: float | None) -> str:
    return "" if loss is None else f", loss {loss:.4f}"


def make_ui(
    config: RunConfig, layout: RunLayout, above: Callable[[], RenderableType] | None = None
) -> UI:
    """A live bar (below what `above` renders) if standard error is a terminal, else plain lines on
    it. Standard output is for results.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        return LiveUI(layout.root.name, config.target_steps, console, above)
    return PlainUI(layout.root.name, config.target_steps, _say)


def _say(line: str) -> None:
    with suppress(OSError):
        sys.stderr.write(visible(line) + "\n")
        sys.stderr.flush()
