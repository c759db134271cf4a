"""checkpoint.on_error: after a failed save training goes on, or stops with the error that names the
call, and no restart is spent on it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.strategies.strategy import Strategy
from ecrl_cli.checkpoint.writer.client import WriterClient, WriterGone
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.schema import CheckpointConfig, RunConfig
from ecrl_cli.errors import StorageError
from ecrl_cli.linux.unix_socket import listen
from ecrl_cli.records.events import Attempt
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import RankError
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.supervision.attempts.restart_policy import decide
from tests.unit.checkpoint_support import writer_process
from tests.unit.test_checkpoint_train_state import Run, config, lines, strategy_of


@contextmanager
def training(root: Path, settings: RunConfig) -> Iterator[tuple[Run, Strategy]]:
    """One rank with step 1 saved, and the background writer where the strategy has one."""
    run = Run()
    write_run_config(RunLayout(root), settings)
    with writer_process(RunLayout(root)):
        run.train(1)
        strategy = strategy_of(run, root, settings)
        strategy.save(run.progress())
        strategy.flush()
        run.train(1)
        yield run, strategy
        strategy.close()


@contextmanager
def lost(root: Path) -> Iterator[None]:
    """While the folder of the checkpoints is not there, every save is refused."""
    folder = RunLayout(root).checkpoints
    folder.rename(root / "away")
    yield
    (root / "away").rename(folder)


def ends(root: Path) -> list[tuple[str, int]]:
    return [
        (line.event, line.global_step)
        for line in lines(root)
        if line.event in ("committed", "failed")
    ]


def test_blocking_stops_at_once(tmp_path: Path) -> None:
    with training(tmp_path, config("blocking", on_error="stop")) as (run, strategy), lost(tmp_path):
        with pytest.raises(
            StorageError,
            match=(
                r"step 2 was not saved \(open: ENOENT at .*checkpoints.*; checkpoint.on_error=stop"
            ),
        ) as caught:
            strategy.save(run.progress())
        assert caught.value.exit_code == 5
    assert ends(tmp_path) == [("committed", 1), ("failed", 2)]


@pytest.mark.parametrize("moment", ["next save", "flush"])
def test_overlapped_stops_at_the_next_save_or_flush(tmp_path: Path, moment: str) -> None:
    with training(tmp_path, config("overlapped", on_error="stop")) as (run, strategy):
        with lost(tmp_path):
            strategy.save(run.progress())
            strategy._client.wait_idle()  # type: ignore[attr-defined]  # the writer has said how it ended
        run.train(1)
        with pytest.raises(
            StorageError, match=r"step 2 was not saved \(open: ENOENT at .*checkpoint.on_error=stop"
        ):
            strategy.flush() if moment == "flush" else strategy.save(run.progress())
    assert ends(tmp_path) == [("committed", 1), ("failed", 2)]


def test_overlapped_stops_where_there_is_no_writer_to_save(tmp_path: Path) -> None:
    run = Run()
    run.train(1)
    strategy = strategy_of(run, tmp_path, config("overlapped", on_error="stop"))
    with pytest.raises(StorageError, match=r"step 1 was not saved.*there is no background writer"):
        strategy.save(run.progress())
    strategy.close()


def test_a_writer_that_is_lost_at_once_leaves_no_connection_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost_at_once(*_: object) -> None:
        raise WriterGone("the background writer has ended")

    monkeypatch.setattr(WriterClient, "open", lost_at_once)
    run = Run()
    run.train(1)
    RunLayout(tmp_path).logs.mkdir()
    with listen(RunLayout(tmp_path).writer):
        strategy = strategy_of(run, tmp_path, config("overlapped"))
        strategy.save(run.progress())
        assert "writer-client" not in [thread.name for thread in threading.enumerate()]
        strategy.close()
    assert ends(tmp_path) == [("failed", 1)]


def test_a_failure_that_was_told_is_not_forgotten_with_the_writer_that_told_it(
    tmp_path: Path,
) -> None:
    with training(tmp_path, config("overlapped", on_error="stop")) as (run, strategy):
        with lost(tmp_path):
            strategy.save(run.progress())
            strategy._client.wait_idle()  # type: ignore[attr-defined]
        strategy._drop()  # type: ignore[attr-defined]
        with pytest.raises(StorageError, match="step 2 was not saved"):
            strategy.flush()


@pytest.mark.parametrize("strategy_name", ["blocking", "overlapped"])
def test_by_default_training_goes_on_and_the_next_save_works(
    tmp_path: Path, strategy_name: str
) -> None:
    with training(tmp_path, config(strategy_name)) as (run, strategy):
        with lost(tmp_path):
            strategy.save(run.progress())
            strategy.flush()
        run.train(1)
        strategy.save(run.progress())
        strategy.flush()
        strategy.confirm(3)
    assert ends(tmp_path) == [("committed", 1), ("failed", 2), ("committed", 3)]


def test_no_restart_is_spent_on_it() -> None:
    attempt = Attempt(attempt=0, world_size=1, exit_code=5, rank=0, outcome="died", last_step=7)
    decision = decide(
        (attempt,),
        20,
        RankError(0, "E-storage checkpoint: step 7 was not saved (write: ENOSPC at x)", 5),
    )
    assert not decision.restart and decision.exit_code == 5
    assert decision.error is not None and "write: ENOSPC at x" in decision.error.line()


def test_the_configuration_of_an_older_run_says_continue() -> None:
    older = encode(CheckpointConfig())
    del older["on_error"]
    assert decode(CheckpointConfig, older) == replace(CheckpointConfig(), on_error="continue")


def test_a_failure_that_a_writer_told_before_it_died_is_heard_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies while the last save is waited for: on_error=stop holds, and the step counts as lost
    to a writer that a restart brings back.
    """
    with training(tmp_path, config("overlapped", on_error="stop")) as (_, strategy):
        client = strategy._client  # type: ignore[attr-defined]

        def dies() -> None:
            client._failure = "step 2 was not saved (open: ENOSPC at checkpoints)"
            raise WriterGone("the writer is gone")

        monkeypatch.setattr(client, "wait_idle", dies)
        with pytest.raises(
            StorageError,
            match=r"step 2 was not saved \(open: ENOSPC at checkpoints\); checkpoint.on_error=stop",
        ):
            strategy.flush()
        assert strategy._client is None  # type: ignore[attr-defined]
