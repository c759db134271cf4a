"""Attempts that stand still, with ranks that play a part: found, named, their stacks kept, ended,
followed by the next one; and a stop with grace.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config.schema import CheckpointConfig, FailureConfig, SupervisionConfig
from ecrl_cli.errors import Hung, NoProgress, Stopped
from ecrl_cli.records.events import RankLine
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec, Hello, Progress
from ecrl_cli.supervision.attempts import stop_signals
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.console import SilentUI
from ecrl_cli.supervision.launch.zygote import ZygoteLauncher
from ecrl_cli.supervision.supervisor import supervise
from ecrl_cli.supervision.watch.graceful_stop import GracefulStop, must_not_launch
from ecrl_cli.supervision.watch.hang_detector import HangTimeouts
from ecrl_cli.supervision.watch.watchdog import AttemptWatchdog, WatchdogContext
from tests.contract.standin import MODULE, PYTHONPATH, StandinLauncher
from tests.unit.test_linux_processes import WAIT
from tests.unit.test_supervision_supervisor import CONFIG as WITHOUT_SAVES
from tests.unit.test_supervision_supervisor import DONE, prepared, recorded

LIMIT_S = 1.0
QUICK = SupervisionConfig(
    launcher="zygote", max_restarts=5, hang_timeout_s=LIMIT_S, start_timeout_s=LIMIT_S
)
CONFIG = replace(WITHOUT_SAVES, failure=FailureConfig(), supervision=QUICK)
SAVING = replace(CONFIG, checkpoint=CheckpointConfig(strategy="blocking"))


@pytest.fixture(scope="module")
def launcher() -> Iterator[StandinLauncher]:
    """Warm: a start of these ranks takes no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        real = ZygoteLauncher((MODULE,))
        with closing(StandinLauncher(real)) as made:
            real._living().warm((MODULE,), 60.0)
            yield made


class Notes(SilentUI):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def steps_of(layout: RunLayout, rank: int, attempt: int = 0) -> list[int]:
    return [
        line.global_step
        for line in read_journal(layout.attempt(attempt).rank(rank), RankLine).events
    ]


def test_a_rank_that_stands_still_is_named_with_all_stacks_and_the_job_goes_on(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    """Stopped; asleep with Python's lock in its hand; busy with nothing. What they wait for tells
    of the others too.
    """
    layout = prepared(
        tmp_path,
        {0: "5:wait", 1: "5:freeze"},
        {0: "6:grasp", 1: "6:wait"},
        {0: "7:wait", 1: "7:spin"},
        {0: "8:freeze", 1: "8:freeze"},
        DONE,
        config=CONFIG,
    )
    record = supervise(CONFIG, layout, SilentUI(), launcher)
    assert (record.terminal_status, record.restarts) == ("completed", 4)
    blamed = [(1,), (0,), (1,), (0, 1)]
    for attempt, ranks in zip(record.attempts, blamed, strict=False):
        assert (attempt.outcome, attempt.exit_code, attempt.signal, attempt.rank) == (
            "hung",
            None,
            None,
            None,
        )
        assert attempt.hang is not None
        assert (attempt.hang.ranks, attempt.hang.global_step, attempt.hang.phase) == (
            ranks,
            6 + attempt.attempt,
            "forward",
        )
        assert LIMIT_S <= attempt.hang.waited_s < 3 * LIMIT_S, attempt.hang
        for rank in (0, 1):
            told = layout.attempt(attempt.attempt).stacks(rank).read_text()
            assert f"rank {rank}, process" in told
            assert ("in hang" in told) == (rank in ranks), told
            assert "in run_rank" in told
    assert [a.hang.text.split(" in ")[0] for a in record.attempts if a.hang] == [
        *("rank 1 is stopped", "rank 0 is", "rank 1 is", "ranks 0, 1 are stopped"),
    ]


def test_hangs_that_gain_nothing_end_the_run_as_hung(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    layout = prepared(tmp_path, {0: "5:wait", 1: "5:freeze"}, config=CONFIG)
    with pytest.raises(
        Hung, match=r"restart storm.*hung: rank 1 is stopped in forward of step 6"
    ) as hung:
        supervise(CONFIG, layout, SilentUI(), launcher)
    assert hung.value.exit_code == 6
    assert [a.outcome for a in recorded(layout).attempts] == ["hung"] * 3


def test_where_not_all_of_them_hung_it_is_no_progress(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    layout = prepared(
        tmp_path,
        {0: "5:wait", 1: "5:kill"},
        {0: "5:wait", 1: "5:freeze"},
        {0: "5:wait", 1: "kill"},
        config=CONFIG,
    )
    with pytest.raises(NoProgress) as ended:
        supervise(CONFIG, layout, SilentUI(), launcher)
    assert ended.value.exit_code == 7


class StopAtFirstProgress(Notes):
    """All `numbers` at once."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.numbers = numbers

    def progress(self, progress: Progress) -> None:
        for number in self.numbers:
            os.kill(os.getpid(), number)
        self.numbers = ()


def test_a_stop_is_heard_by_all_ranks_behind_the_same_step(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    # one request, as a terminal and a wrapper may bring it
    twice = (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)
    for case, (numbers, code) in enumerate(
        [((signal.SIGTERM,), 143), ((signal.SIGINT,), 130), ((signal.SIGHUP,), 143), (twice, 143)]
    ):
        (tmp_path / str(case)).mkdir()
        layout, ui = (
            prepared(tmp_path / str(case), {0: "7:obey stop", 1: "7:obey stop"}, config=SAVING),
            StopAtFirstProgress(*numbers),
        )
        with pytest.raises(Stopped) as stopped:
            supervise(SAVING, layout, ui, launcher)
        assert [note for note in ui.notes if "a last checkpoint is made" in note] == ui.notes[:1]
        assert stopped.value.exit_code == code
        (attempt,) = recorded(layout).attempts
        assert (attempt.outcome, attempt.exit_code, attempt.signal) == ("stopped", None, None)
        assert (
            steps_of(layout, 0)
            == steps_of(layout, 1)
            == list(range(1, (attempt.last_step or 0) + 1))
        )
        assert (attempt.last_step or 0) > 7


@pytest.mark.parametrize(
    ("script", "grace_s"),
    [
        ("7:wait", 0.2),  # when the time is over
        ("7:wait", 0.0),  # at once, because it is configured so
        ("wait", 3600.0),  # at once, because nothing was done that could be saved
    ],
)
def test_a_stop_that_nobody_obeys_is_still_one(
    launcher: StandinLauncher, tmp_path: Path, script: str, grace_s: float
) -> None:
    config = replace(
        SAVING,
        supervision=replace(QUICK, hang_timeout_s=3600.0, start_timeout_s=3600.0, grace_s=grace_s),
    )
    layout = prepared(tmp_path, {0: script}, config=config)
    with pytest.raises(Stopped) as stopped:
        supervise(config, layout, StopAtFirstProgress(signal.SIGTERM), launcher)
    assert stopped.value.exit_code == 143
    assert recorded(layout).attempts[0].outcome == "stopped"


class AskAgain(StopAtFirstProgress):
    """And once more as soon as the first request is being obeyed."""

    def note(self, text: str) -> None:
        super().note(text)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_second_stop_ends_a_graceful_stop_that_hangs(
    launcher: StandinLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that never come to the step that they were to stop after; neither the grace nor the
    hang's limit would end them.
    """
    monkeypatch.setattr(stop_signals, "ECHO_S", 1e-9)
    config = replace(
        SAVING,
        supervision=replace(QUICK, hang_timeout_s=3600.0, start_timeout_s=3600.0, grace_s=3600.0),
    )
    layout, ui = (
        prepared(tmp_path, {0: "7:wait", 1: "7:freeze"}, config=config),
        AskAgain(signal.SIGTERM),
    )
    with pytest.raises(Stopped) as stopped:
        supervise(config, layout, ui, launcher)
    assert len(ui.notes) == 1 and "asked again, the run ends at once" in ui.notes[0]
    assert stopped.value.exit_code == 143, "as the first one says"
    (attempt,) = recorded(layout).attempts
    assert (attempt.outcome, attempt.last_step, attempt.hang) == ("stopped", 7, None)


def asked(stop: StopSignals, *numbers: int) -> None:
    """As the kernel does it."""
    stop._kernel.send(bytes(numbers))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    time = [100.0]
    monkeypatch.setattr(stop_signals, "monotonic", lambda: time[0])
    return time


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_only_what_comes_later_and_from_no_terminal_that_closes_is_a_second_stop(
    again: int, now: list[float]
) -> None:
    said = list[str]()
    with closing(HeartbeatTable.create(1)) as board, StopSignals() as stop:
        board.write(0, 7, "forward")
        graceful_stop = GracefulStop(stop, board, 60.0, said.append)
        assert not graceful_stop.over(100.0)
        asked(stop, signal.SIGTERM, again)
        assert not graceful_stop.over(100.0)
        now[0] = 100.9
        asked(stop, again)
        assert not graceful_stop.over(100.9) and not graceful_stop.over(159.0)
        assert board.stop_asked and len(said) == 1
        now[0] = 159.0
        asked(stop, again)
        assert graceful_stop.over(159.0) == (again != signal.SIGHUP)
        assert graceful_stop.over(160.0)


def test_ranks_that_have_not_begun_are_waited_for_where_they_carry_what_is_nowhere_else(
    now: list[float],
) -> None:
    with closing(HeartbeatTable.create(1)) as board, StopSignals() as stop:
        asked(stop, signal.SIGTERM)
        assert GracefulStop(stop, board, 60.0).over(100.0) and not board.stop_asked
        assert not GracefulStop(stop, board, 60.0, carried=True).over(100.0) and board.stop_asked
        assert GracefulStop(stop, board, 0.0, carried=True).over(100.0), "there is no time for it"
        assert not GracefulStop(stop, board, 60.0, carried=True).over(159.0) and GracefulStop(
            stop, board, 60.0, carried=True
        ).over(160.0), "one grace for all"


def test_asked_twice_at_once_those_who_carry_what_is_nowhere_else_go_on_and_no_others(
    now: list[float],
) -> None:
    mute = replace(SAVING, supervision=replace(QUICK, grace_s=0.0))
    with StopSignals() as stop:
        assert not must_not_launch(stop, SAVING, carried=False)
        asked(stop, signal.SIGTERM, signal.SIGTERM)
        assert [
            must_not_launch(stop, config, carried=True) for config in (SAVING, CONFIG, mute)
        ] == [False, True, True]
        assert must_not_launch(stop, SAVING, carried=False)
        now[0] = 101.0
        asked(stop, signal.SIGTERM)
        assert must_not_launch(stop, SAVING, carried=True)


class FakeSidecar:
    """A writer that is a sleeping process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(WAIT)
        self.given_up = 0

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.process.pid,)

    def watched(self) -> tuple[int, ...]:
        return ()

    def check(self) -> bool:
        return False

    def give_up(self) -> None:
        self.given_up += 1
        self.close()
        self.process = subprocess.Popen(WAIT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def sidecar() -> Iterator[FakeSidecar]:
    with closing(FakeSidecar()) as made:
        yield made


class Watched:
    """A watchdog over ranks that step once a second of a fake clock."""

    def __init__(
        self,
        board: HeartbeatTable,
        layout: RunLayout,
        sidecar: FakeSidecar,
        supervision: SupervisionConfig = QUICK,
    ) -> None:
        self.board, self.said, self.now, self.step = (
            board,
            [],
            0.0,
            0,
        )  # type: tuple[HeartbeatTable, list[str], float, int]
        post = WatchdogContext(
            board,
            supervision,
            AttemptSpec(0, 2, 0, None, 0, ()),
            layout.attempt(0),
            tell=self.said.append,
        )
        self.watchdog = AttemptWatchdog(post, sidecar, 0.0)
        self.limit_s = 10.0  # ten times a step

    def passes(self, seconds: float, *, stepping: bool = True, slow: int | None = None) -> bool:
        """Whether a hang was seen."""
        end, every = self.now + seconds, HangTimeouts.of(QUICK).check_every_s
        while self.now < end:
            self.now += every
            if stepping and self.now >= self.step + 1:
                self.step += 1
                for rank in (0, 1):
                    self.board.write(rank, self.step, "update", 0.5 if rank == slow else 0.01)
            if self.watchdog.check(self.now):
                return True
        return False


def test_a_writer_that_stands_still_is_replaced_and_the_ranks_go_on(
    sidecar: FakeSidecar, tmp_path: Path
) -> None:
    with closing(HeartbeatTable.create(2)) as board:
        watched = Watched(board, RunLayout(tmp_path), sidecar)
        assert not watched.passes(30.0)
        assert sidecar.given_up == 0, "an idle one may be idle"
        os.kill(sidecar.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, sidecar.process.pid, os.WSTOPPED)
        assert not watched.passes(3 * watched.limit_s)
        assert sidecar.given_up == 1
        board.write(board.writer, 0, "saving")  # at work, and then not a piece more
        assert not watched.passes(1.5 * watched.limit_s)
        board.write(board.writer, 0, "done")
        assert sidecar.given_up == 2
        assert watched.said == [
            "the background writer is stopped: it is replaced, what it holds is lost",
            (
                "the background writer does not come on with its save: it is replaced, what it"
                " holds is lost"
            ),
        ]


def test_a_save_may_take_as_long_as_a_start_unless_whoever_makes_it_is_stopped(
    sidecar: FakeSidecar, tmp_path: Path
) -> None:
    with closing(HeartbeatTable.create(2)) as board, closing(FakeSidecar()) as rank:
        watched = Watched(
            board, RunLayout(tmp_path), sidecar, replace(QUICK, start_timeout_s=300.0)
        )
        watched.watchdog.add_rank(Hello(0, rank.process.pid, 0, 0.0))
        watched.passes(20.0)
        board.write(board.writer, 0, "saving")  # one call that takes its time
        assert not watched.passes(250.0) and sidecar.given_up == 0
        assert not watched.passes(100.0) and sidecar.given_up == 1
        board.write(board.writer, 0, "done")
        for phase in ("saving", "flushing", "done"):
            for number in (0, 1):
                board.write(number, watched.step, phase)
            assert not watched.passes(250.0, stepping=False)
        os.kill(sidecar.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, sidecar.process.pid, os.WSTOPPED)
        assert not watched.passes(15.0, stepping=False) and sidecar.given_up == 2
        os.kill(rank.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, rank.process.pid, os.WSTOPPED)
        assert watched.passes(15.0, stepping=False)
        watched.watchdog.close()


def test_ranks_that_wait_for_a_stopped_writer_do_not_hang(
    sidecar: FakeSidecar, tmp_path: Path
) -> None:
    with closing(HeartbeatTable.create(2)) as board:
        watched = Watched(board, RunLayout(tmp_path), sidecar)
        watched.passes(20.0)
        for rank in (0, 1):
            board.write(rank, watched.step, "saving")
        os.kill(sidecar.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, sidecar.process.pid, os.WSTOPPED)
        assert not watched.passes(1.5 * watched.limit_s, stepping=False)
        assert sidecar.given_up == 1
        assert watched.passes(3 * watched.limit_s, stepping=False), (
            "with a writer that lives they would"
        )


def test_a_straggler_is_told_of_in_one_line_and_kept_on_record(
    sidecar: FakeSidecar, tmp_path: Path
) -> None:
    with closing(HeartbeatTable.create(2)) as board:
        watched = Watched(board, RunLayout(tmp_path), sidecar)
        assert not watched.passes(20.0, slow=1)
        (one,) = watched.watchdog.stragglers
        assert (one.rank, one.own_s, one.others_s) == (1, 0.5, 0.01)
        assert len(watched.said) == 1
        assert watched.said[0].startswith(
            "rank 1 holds the others up: 500 ms of its own per step, they 10 ms"
        )
