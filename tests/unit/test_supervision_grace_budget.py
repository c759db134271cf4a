"""The arithmetic of a stop: said once, as soon as the numbers are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecrl_cli.records.events import CheckpointLine, RankLine
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import Progress
from ecrl_cli.supervision.watch import graceful_stop
from ecrl_cli.supervision.watch.graceful_stop import GraceBudget, shortfall


def log(
    layout: RunLayout, attempt: int, steps: list[float], saves: list[tuple[str, float]]
) -> None:
    """Steps that took so many seconds; lines about checkpoints at so many seconds."""
    layout.attempt(attempt).folder.mkdir(parents=True, exist_ok=True)
    ranks, checkpoints = (
        Journal(layout.attempt(attempt).rank(0)),
        Journal(layout.attempt(attempt).checkpoints),
    )
    for step, seconds in enumerate(steps, 1):
        ranks.append(RankLine(step, 0, step - 1, 0, 2, "", 0, 0.5, attempt, seconds, 0.0, 0.0))
    for event, at in saves:
        checkpoints.append(
            CheckpointLine(
                event, 10, attempt, at, 0.0, snapshot_s=0.2 if event == "submitted" else 0.0
            )
        )
    ranks.close()
    checkpoints.close()


def test_a_grace_that_the_last_save_would_not_fit_into_is_said_once_with_its_numbers(
    tmp_path: Path,
) -> None:
    layout, said = RunLayout(tmp_path), list[str]()
    arithmetic = GraceBudget(layout, 5.0, said.append)
    arithmetic.check()
    log(layout, 0, [90.0, 0.3, 0.5], [("submitted", 100.0)])
    arithmetic.hear(Progress(10, "saving", 0.0))
    assert said == [], "no save has ended yet"
    log(layout, 0, [], [("committed", 108.0)])
    arithmetic.hear(Progress(11, "training", 0.0))
    assert said == []
    arithmetic.hear(Progress(20, "saving", 0.0))
    arithmetic.hear(Progress(30, "saving", 0.0))
    takes = "a step takes 0.5 s and a save 8.2 s"
    assert said == [
        f"supervision.grace_s=5 is too short: {takes}, SIGTERM would lose the last checkpoint;"
        " raise it to 9"
    ]


def test_a_resumed_run_knows_from_its_last_attempt_that_saved(tmp_path: Path) -> None:
    layout, said = RunLayout(tmp_path), list[str]()
    log(layout, 0, [1.0, 1.0], [("submitted", 100.0), ("committed", 108.0)])
    log(layout, 1, [1.0, 1.0], [("submitted", 200.0), ("failed", 201.0)])
    GraceBudget(layout, 5.0, said.append).check()
    assert len(said) == 1
    GraceBudget(layout, 0.0, said.append).check()
    assert len(said) == 1, "no grace is asked for"


def test_what_cannot_be_read_and_what_was_long_ago_is_not_looked_at_while_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, said, looked = RunLayout(tmp_path), list[str](), list[int]()

    def longest(layout: RunLayout, attempt: int) -> float:
        looked.append(attempt)
        return 1.0

    monkeypatch.setattr(graceful_stop, "longest_step_s", longest)
    log(layout, 0, [1.0, 1.0], [("submitted", 100.0), ("committed", 108.0)])
    log(layout, 1, [1.0, 1.0], [("submitted", 200.0)])
    arithmetic = GraceBudget(layout, 5.0, said.append)
    arithmetic.hear(Progress(10, "saving", 0.0))
    layout.attempt(1).checkpoints.write_text("no record\nat all\n")
    arithmetic.hear(Progress(20, "saving", 0.0))
    assert (said, looked) == ([], [])
    arithmetic.check()
    assert (len(said), looked) == (1, [0])


def test_a_grace_that_is_long_enough_is_not_spoken_of() -> None:
    assert shortfall(9.0, 0.5, 8.5) is None
    assert shortfall(9.0, 0.5, 8.6) is not None
