"""Plain lines for logs, one bar on a terminal, no thread in either."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from ecrl_cli.records.events import Attempt, SupervisorRecord
from ecrl_cli.records.messages import AttemptSpec, Progress
from ecrl_cli.supervision.console import UI, LiveUI, PlainUI, _say, span

DIED = Attempt(0, 2, signal=9, rank=1, outcome="died", last_step=42)
RECORD = SupervisorRecord(1, "r", 100, "completed", 1, (DIED,), (), "target reached")


def live_a_run(ui: UI) -> None:
    ui.launched(AttemptSpec(0, 2, 0, None, 0, ()))
    for step in range(1, 43):
        ui.progress(Progress(step, "training", 0.0, 1 / step))
    ui.died(DIED, "rank 1 was killed by signal 9")
    ui.launched(AttemptSpec(1, 2, 40, None, 42, ()))
    for step in range(41, 101):
        ui.progress(Progress(step, "training", 0.0, 1 / step))
    ui.progress(Progress(100, "done", 0.0))
    ui.ended(RECORD)
    ui.close()


def test_plain_lines_tell_start_progress_failure_restart_and_end() -> None:
    said: list[str] = []
    live_a_run(PlainUI("cell", 100, said.append))
    assert said[0] == "cell: attempt 0: 2 ranks from the beginning, target step 100"
    assert "cell: attempt 0 ended at step 42: rank 1 was killed by signal 9" in said
    assert "cell: restart, attempt 1: 2 ranks from step 40, target step 100" in said
    assert said[-1] == "cell: completed after 1 restart: target reached"
    assert [line for line in said if "/100" in line][:2] == [
        "cell: step 10/100, loss 0.1000",
        "cell: step 20/100, loss 0.0500",
    ]
    assert len([line for line in said if "/100" in line]) == 10


def test_a_change_of_size_is_told_and_is_no_restart() -> None:
    said: list[str] = []
    text = io.StringIO()
    for ui in (
        PlainUI("cell", 100, said.append),
        LiveUI("cell", 100, Console(file=text, force_terminal=True, width=150)),
    ):
        ui.resized(Attempt(0, 2, outcome="resized", last_step=40))
        ui.launched(AttemptSpec(1, 1, 40, None, 40, ()))
        ui.died(DIED, "rank 0 was killed by signal 9")
        ui.launched(AttemptSpec(2, 1, 40, None, 42, ()))
        ui.close()
    assert said[0] == "cell: resized, attempt 1: 1 rank from step 40, target step 100"
    assert said[2] == "cell: restart, attempt 2: 1 rank from step 40, target step 100"
    shown = text.getvalue()
    assert (
        "launching" in shown
        and "restarting" in shown
        and "| 1 restart\n" in shown.replace(" \n", "\n")
    )
    assert (
        "0 restarts" in shown.partition("restarting")[0]
        and "1 restart" not in shown.partition("restarting")[0]
    )


def test_what_a_person_should_know_is_one_line() -> None:
    said: list[str] = []
    text = io.StringIO()
    for ui in (
        PlainUI("cell", 100, said.append),
        LiveUI("cell", 100, Console(file=text, force_terminal=True, width=150)),
    ):
        ui.note("rank 1 holds the others up")
        ui.close()
    assert said == ["cell: rank 1 holds the others up"]
    assert "cell: rank 1 holds the others up" in text.getvalue()


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_terminal_that_has_gone_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=150)
    ui = LiveUI("cell", 100, console)
    console.file = Gone()
    live_a_run(ui)
    monkeypatch.setattr("sys.stderr", Gone())
    live_a_run(PlainUI("cell", 100, _say))


def test_the_bar_shows_step_loss_goodput_restarts_and_state_without_a_thread() -> None:
    text = io.StringIO()
    before = threading.active_count()
    ui = LiveUI("cell", 100, Console(file=text, force_terminal=True, width=150))
    ui.launched(AttemptSpec(0, 2, 0, None, 0, ()))
    ui.progress(Progress(42, "saving", 0.0, 0.25))
    assert threading.active_count() == before
    ui.died(DIED, "rank 1 was killed by signal 9")
    ui.launched(AttemptSpec(1, 2, 40, None, 42, ()))
    ui.ended(RECORD)
    ui.close()
    shown = text.getvalue()
    for word in (
        "42/100",
        "loss 0.2500",
        "steps/s",
        "saving",
        "rank 1 was killed by signal 9",
        "restarting",
        "| 1 restart",
        "completed",
    ):
        assert word in shown


def test_the_bar_shows_time_elapsed_time_left_and_the_pace_of_now() -> None:
    """20 steps at two a second, a restart of a minute, then one step a second: the pace is this
    attempt's, what is left knows of the restart.
    """
    text, now = io.StringIO(), 100.0
    ui = LiveUI("cell", 100, Console(file=text, force_terminal=True, width=150), clock=lambda: now)
    ui.launched(AttemptSpec(0, 2, 0, None, 0, ()))
    now += 5.0
    for step in range(1, 21):
        now += 0.5
        ui.progress(Progress(step, "training", 0.0))
    assert "2.0 steps/s | 0:15 elapsed, 0:40 left | 0 restarts" in text.getvalue()
    ui.died(DIED, "rank 1 was killed by signal 9")
    now += 60.0
    ui.launched(AttemptSpec(1, 2, 10, None, 20, ()))
    # 69.5 s for 19 steps, 80 to come
    assert "- steps/s | 1:15 elapsed, 4:53 left | 1 restart" in text.getvalue()
    for step in range(11, 41):
        now += 1.0
        ui.progress(Progress(step, "training", 0.0))
    ui.close()
    assert "1.0 steps/s | 1:45 elapsed, 2:33 left | 1 restart" in text.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3599.7, "1:00:00"), (7325, "2:02:05")]
)
def test_spans_of_time(seconds: float, text: str) -> None:
    assert span(seconds) == text
