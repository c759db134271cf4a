"""The loop around a running attempt hears everything, in whatever order it happens."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from ecrl_cli.config.schema import SupervisionConfig
from ecrl_cli.errors import Fenced
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec, Hello, Progress, RankError
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.launch.launcher import RankExit, RankExits
from ecrl_cli.supervision.watch.attempt_monitor import AttemptMonitor, AttemptResult
from ecrl_cli.supervision.watch.control_server import ControlServer
from ecrl_cli.supervision.watch.watchdog import WatchdogContext
from ecrl_cli.training.control_client import Control


class Scripted:
    """A running attempt that is over after so many looks."""

    def __init__(
        self,
        looks: int,
        first: RankExit | None = None,
        at_the_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.looks, self.first, self.at_the_end = looks, first, at_the_end
        self.introduced: list[tuple[int, int]] = []

    def watched(self) -> Collection[int]:
        return ()

    def introduce(self, rank: int, pid: int) -> None:
        self.introduced.append((rank, pid))

    def pids(self) -> dict[int, int]:
        return {}

    def check(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def kill(self) -> None: ...

    def reap(self) -> RankExits:
        self.at_the_end()
        return RankExits((), self.first, 1.0)


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    deep = tmp_path / ("d" * 120)  # longer than a Unix socket's path may be
    deep.mkdir()
    return RunLayout(deep)


@pytest.fixture
def listener(layout: RunLayout) -> Iterator[ControlServer]:
    made = ControlServer(layout)
    yield made
    made.close()


def watch(
    running: Scripted, listener: ControlServer, heard: list[Progress] | None = None
) -> AttemptResult:
    with StopSignals() as stop:
        return AttemptMonitor(running, 0, listener, stop).run(
            (heard if heard is not None else []).append
        )


def said(layout: RunLayout, rank: int, *troubles: RankError) -> Control:
    control = Control(layout, Hello(rank, 1000 + rank, 0, 0.0))
    for trouble in troubles:
        control.trouble(trouble)
    return control


def test_a_rank_introduces_itself_and_reports(layout: RunLayout, listener: ControlServer) -> None:
    running = Scripted(looks=2)
    heard: list[Progress] = []
    control = said(layout, 1)
    control.progress(Progress(7, "training", 0.0, 0.5))
    watch(running, listener, heard)
    control.close()
    assert running.introduced == [(1, 1001)]
    assert heard == [Progress(7, "training", 0.0, 0.5)]


def test_the_last_words_of_a_rank_are_heard_even_if_it_is_dead_before_anyone_looked(
    layout: RunLayout, listener: ControlServer
) -> None:
    last_words = RankError(0, "the disk is full", 5)
    running = Scripted(looks=0, at_the_end=lambda: said(layout, 0, last_words).close())
    assert watch(running, listener).rank_error == last_words


def test_of_several_explanations_the_incurable_counts_then_the_casualtys(
    layout: RunLayout, listener: ControlServer
) -> None:
    peer, casualty, input_error = (
        RankError(0, "connection lost", 1),
        RankError(1, "ValueError", 1),
        RankError(2, "no data set", 2),
    )
    first = RankExit(1, 1001, 1, None)

    def all_speak() -> None:
        for trouble in (peer, casualty, input_error):
            said(layout, trouble.rank, trouble).close()

    def two_speak() -> None:
        for trouble in (peer, casualty):
            said(layout, trouble.rank, trouble).close()

    assert watch(Scripted(0, first, all_speak), listener).rank_error == input_error
    assert watch(Scripted(0, first, two_speak), listener).rank_error == casualty
    survivor = Scripted(0, first, lambda: said(layout, peer.rank, peer).close())
    assert watch(survivor, listener).rank_error is None, (
        "a survivor only knows that its peer is gone"
    )


def test_a_line_that_a_death_cut_off_is_no_message(
    layout: RunLayout, listener: ControlServer
) -> None:
    running = Scripted(looks=3)
    heard: list[Progress] = []
    control = said(layout, 0)
    os.write(control._socket.fileno(), b'{"global_step": 7, "pha')
    control.close()
    watch(running, listener, heard)
    assert running.introduced == [(0, 1000)]
    assert heard == []


def test_without_a_supervisor_a_rank_does_not_train(layout: RunLayout) -> None:
    with pytest.raises(Fenced) as refused:
        Control(layout, Hello(0, 1, 0, 0.0))
    assert refused.value.exit_code == 9


def test_what_a_rank_notes_is_one_line_for_the_user(
    layout: RunLayout, listener: ControlServer
) -> None:
    """And no word of it can steer the terminal."""
    lines, board = list[str](), HeartbeatTable.create(1)
    context = WatchdogContext(
        board,
        SupervisionConfig(),
        AttemptSpec(0, 1, 0, None, 0, ()),
        layout.attempt(0),
        tell=lines.append,
    )
    control = said(layout, 0)
    control.notice(0, "copied: \x1b[2J")
    with StopSignals() as stop:
        AttemptMonitor(Scripted(looks=2), 0, listener, stop, context=context).run(
            lambda progress: None
        )
    control.close()
    board.close()
    assert len(lines) == 1 and lines[0].startswith("copied: ") and "\x1b" not in lines[0]
