"""The attempt loop with ranks that play a part: what it records, when it restarts, when and how it
stops.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.schema import (
    CheckpointConfig,
    ElasticConfig,
    FailureConfig,
    RunConfig,
    SupervisionConfig,
)
from ecrl_cli.errors import (
    EcrlError,
    InputError,
    NoProgress,
    NoValidCheckpoint,
    RunHeld,
    Stopped,
    StorageError,
)
from ecrl_cli.failures.fault_log import claim
from ecrl_cli.failures.plan import plan
from ecrl_cli.records.events import CheckpointLine, InjectedFault, SupervisorRecord
from ecrl_cli.records.journal import Journal, read_journal, read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec, Progress
from ecrl_cli.records.run_config import read_run_config, write_run_config
from ecrl_cli.supervision.console import SilentUI
from ecrl_cli.supervision.launch import torchrun
from ecrl_cli.supervision.launch.torchrun import TorchrunLauncher
from ecrl_cli.supervision.launch.zygote import ZygoteLauncher
from ecrl_cli.supervision.run_lock import run_lock
from ecrl_cli.supervision.supervisor import Supervisor, supervise
from tests.contract.standin import MODULE, PYTHONPATH, StandinLauncher, scripted

CONFIG = RunConfig(
    target_steps=100,
    checkpoint=CheckpointConfig(strategy="none"),
    failure=FailureConfig("kill", (40, 75), 1),
    supervision=SupervisionConfig(launcher="zygote", max_restarts=3),
)


@pytest.fixture(scope="module")
def launcher() -> Iterator[StandinLauncher]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        made = StandinLauncher(ZygoteLauncher((MODULE,)))
        yield made
        made.close()


def prepared(root: Path, *script: dict[int, str], config: RunConfig = CONFIG) -> RunLayout:
    layout = scripted(root / "run", *script)
    layout.failures.write_text(json.dumps(encode(plan(config))))
    write_run_config(layout, config)
    return layout


def recorded(layout: RunLayout) -> SupervisorRecord:
    return decode(SupervisorRecord, read_json(layout.supervisor))


DONE = {0: "100:done", 1: "0"}


def test_a_death_is_recorded_and_followed_by_the_next_attempt(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    layout = prepared(tmp_path, {0: "40:wait", 1: "kill"}, {0: "75:137"}, DONE)
    record = supervise(CONFIG, layout, SilentUI(), launcher)
    assert record == recorded(layout)
    assert (record.terminal_status, record.restarts) == ("completed", 2)
    facts = [(a.outcome, a.rank, a.exit_code, a.signal, a.last_step) for a in record.attempts]
    assert facts == [
        ("died", 1, None, 9, 40),
        ("died", 0, 137, None, 75),
        ("completed", None, 0, None, 100),
    ]
    (session,) = record.sessions
    times = [t for a in record.attempts for t in (a.launched_at, a.ended_at)]
    assert [session.started_at, *times, session.ended_at] == sorted(
        [session.started_at, *times, session.ended_at]
    )  # type: ignore[type-var]


def test_an_attempt_is_told_what_has_not_fired_and_how_far_any_came(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    layout = prepared(tmp_path, {0: "40:137"}, DONE)
    claim(layout, InjectedFault(0, "kill", 1, 40, 0, 0.0, 0.0))
    supervise(CONFIG, layout, SilentUI(), launcher)
    told = decode(AttemptSpec, read_json(layout.attempt(1).launch))
    assert (told.attempt, told.max_step_seen, told.resume_step) == (1, 40, 0)
    assert [entry.index for entry in told.pending] == [1]


def test_an_attempt_that_ends_where_the_size_changes_is_no_death(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    """These ranks save nothing, so that each attempt comes to the same change again: at last that
    is a storm, and never a restart.
    """
    config = replace(CONFIG, failure=FailureConfig(), elastic=ElasticConfig(schedule={40: 1}))
    layout = prepared(tmp_path, {0: "40:0", 1: "40:0"}, config=config)
    with pytest.raises(NoProgress, match=r"restart storm.*a planned change of the world size"):
        supervise(config, layout, SilentUI(), launcher)
    record = recorded(layout)
    assert [(a.outcome, a.world_size, a.exit_code, a.last_step) for a in record.attempts] == [
        ("resized", 2, 0, 40)
    ] * 3
    assert record.restarts == 0
    assert decode(AttemptSpec, read_json(layout.attempt(0).launch)).until == 40


def test_ranks_that_end_well_elsewhere_or_badly_there_have_died(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    config = replace(CONFIG, failure=FailureConfig(), elastic=ElasticConfig(schedule={40: 1}))
    layout = prepared(
        tmp_path,
        {0: "39:0", 1: "39:0"},
        {0: "40:wait", 1: "kill"},
        {0: "45:0", 1: "45:0"},
        DONE,
        config=config,
    )
    record = supervise(config, layout, SilentUI(), launcher)
    assert [a.outcome for a in record.attempts] == ["died", "died", "died", "completed"]
    assert record.restarts == 3


@pytest.mark.parametrize(
    ("script", "error", "status", "words"),
    [
        (({0: "5:1"},), NoProgress, "gave_up", "restart storm"),
        (({0: "1"},), NoProgress, "gave_up", "restart storm"),
        (
            ({0: "10:1"}, {0: "20:1"}, {0: "30:1"}, {0: "40:1"}),
            NoProgress,
            "gave_up",
            "all 3 restarts are spent",
        ),
        (({0: "10:0", 1: "0"},), NoProgress, "gave_up", "before the target"),
        (({1: "trouble"},), InputError, "refused", "dataset"),
    ],
)
def test_it_stops_when_no_restart_would_help_and_says_why(
    launcher: StandinLauncher,
    tmp_path: Path,
    script: tuple[dict[int, str], ...],
    error: type[EcrlError],
    status: str,
    words: str,
) -> None:
    layout = prepared(tmp_path, *script)
    with pytest.raises(error, match=words) as raised:
        supervise(CONFIG, layout, SilentUI(), launcher)
    assert recorded(layout).terminal_status == status
    assert words in recorded(layout).reason
    assert raised.value.exit_code == error.exit_code


WORDS = "python: error while loading shared libraries: libc.so.6: cannot map"


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        (f"echo '{WORDS}' >&2; exit 127", f"the launcher ended with exit code 127: {WORDS}"),
        (
            "printf 'Traceback (most recent call last):\\n  File x\\nImportError: no room\\n';"
            " exit 1",
            "the launcher ended with exit code 1: ImportError: no room",
        ),
        ("echo nothing of this; kill -9 $$", "the launcher was killed by signal 9; SIGKILL"),
    ],
)
def test_an_attempt_that_ends_with_an_exit_code_is_told_with_what_it_printed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, told: str
) -> None:
    monkeypatch.setattr(torchrun, "agent_command", lambda *given: ["/bin/sh", "-c", fails])
    layout = prepared(tmp_path, {}, config=replace(CONFIG, failure=FailureConfig()))
    with pytest.raises(NoProgress, match=re.escape(f"; the last one: {told}")):
        supervise(CONFIG, layout, SilentUI(), TorchrunLauncher())


def test_the_limit_is_counted_across_killed_supervisors(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    layout = prepared(
        tmp_path, {0: "10:1"}, {0: "20:1"}, {0: "30:1"}, {0: "40:1"}, {0: "50:1"}, DONE
    )
    with pytest.raises(NoProgress):
        supervise(CONFIG, layout, SilentUI(), launcher)
    as_if_killed(layout)
    with pytest.raises(NoProgress, match="3 restarts"):
        supervise(CONFIG, layout, SilentUI(), launcher)
    assert len(recorded(layout).attempts) == 5
    assert supervise(CONFIG, layout, SilentUI(), launcher).terminal_status == "completed"


class StopAtFirstStep(SilentUI):
    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def progress(self, progress: Progress) -> None:
        for number in self.numbers:
            os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_is_on_record_and_goes_on(
    launcher: StandinLauncher, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    layout = prepared(tmp_path, {0: "7:wait"}, DONE)
    with pytest.raises(Stopped) as stopped:
        supervise(CONFIG, layout, StopAtFirstStep(number), launcher)
    assert stopped.value.exit_code == code
    record = recorded(layout)
    assert (record.terminal_status, record.attempts[0].outcome, record.attempts[0].last_step) == (
        "stopped",
        "stopped",
        7,
    )
    record = supervise(CONFIG, layout, SilentUI(), launcher)
    assert (record.terminal_status, record.restarts, len(record.sessions)) == ("completed", 0, 2)


def test_what_a_killed_supervisor_left_open_is_closed(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    layout = prepared(tmp_path, {0: "7:wait"}, DONE)
    with pytest.raises(Stopped):
        supervise(CONFIG, layout, StopAtFirstStep(signal.SIGINT), launcher)
    as_if_killed(layout)
    Journal(layout.attempt(0).checkpoints).append(
        CheckpointLine("submitted", 6, 0, 1.0, 1.0, bytes=10)
    )
    record = supervise(CONFIG, layout, SilentUI(), launcher)
    assert (
        record.attempts[0].outcome,
        record.attempts[0].last_step,
        record.sessions[0].ended_at,
    ) == ("died", 7, None)
    events = read_journal(layout.attempt(0).checkpoints, CheckpointLine).events
    assert [(line.event, line.global_step) for line in events] == [("submitted", 6), ("lost", 6)]


def test_a_line_cut_off_by_a_death_does_not_swallow_the_next(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    layout = prepared(tmp_path, {0: "7:wait"}, DONE)
    with pytest.raises(Stopped):
        supervise(CONFIG, layout, StopAtFirstStep(signal.SIGINT), launcher)
    as_if_killed(layout)
    journal = Journal(layout.attempt(0).checkpoints)
    line = journal.append(CheckpointLine("submitted", 6, 0, 1.0, 1.0))
    with layout.attempt(0).checkpoints.open("ab") as file:
        file.write(line[: len(line) // 2])
    supervise(CONFIG, layout, SilentUI(), launcher)
    events = read_journal(layout.attempt(0).checkpoints, CheckpointLine).events
    assert [line.event for line in events] == ["submitted", "lost"]


def test_acknowledged_checkpoints_of_which_none_is_valid_are_not_trained_over(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    layout = prepared(tmp_path, DONE)
    (layout.checkpoints / "step_00000050").mkdir(parents=True)
    layout.attempt(0).folder.mkdir(parents=True)
    Journal(layout.attempt(0).checkpoints).append(CheckpointLine("committed", 50, 0, 1.0, 1.0))
    with pytest.raises(NoValidCheckpoint, match="1 found, 0 valid"):
        supervise(CONFIG, layout, SilentUI(), launcher)
    assert (layout.checkpoints / "step_00000050").is_dir()
    assert recorded(layout).terminal_status == "gave_up"


def test_a_debris_that_nobody_acknowledged_is_set_aside_and_named(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    layout = prepared(tmp_path, DONE)
    (layout.checkpoints / "step_00000050").mkdir(parents=True)
    record = supervise(CONFIG, layout, SilentUI(), launcher)
    (rejected,) = record.attempts[0].rejected
    assert rejected.path == "checkpoints/step_00000050"
    assert [path.name[:10] for path in layout.checkpoints.iterdir() if path.name != ".attempt"] == [
        ".rejected_"
    ]


def test_a_held_run_directory_is_left_alone(launcher: StandinLauncher, tmp_path: Path) -> None:
    layout = prepared(tmp_path, DONE)
    with run_lock(layout), pytest.raises(RunHeld):
        supervise(CONFIG, layout, SilentUI(), launcher)
    assert not layout.supervisor.exists()


@pytest.mark.parametrize("gone", ["removed", "moved", "emptied"])
def test_a_run_directory_that_goes_in_mid_run_ends_it_with_the_line_that_says_so(
    gone: str, launcher: StandinLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = prepared(tmp_path, {0: "10:wait", 1: "wait"})

    class Removing(SilentUI):
        def progress(self, progress: Progress) -> None:
            if gone == "moved":
                layout.root.rename(tmp_path / "elsewhere")
            elif gone == "removed":
                # the ranks may write a file meanwhile
                shutil.rmtree(layout.root, ignore_errors=True)
            else:
                for each in layout.root.iterdir():
                    shutil.rmtree(each) if each.is_dir() else each.unlink()

    with pytest.raises(
        StorageError,
        match=(
            "is gone: the run directory was removed or moved while the run was training; put it"
            " back"
        ),
    ):
        supervise(CONFIG, layout, Removing(), launcher)


def test_a_run_that_reached_its_target_is_not_trained_again(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    layout = prepared(tmp_path, DONE)
    supervise(CONFIG, layout, SilentUI(), launcher)
    as_if_killed(layout)
    record = supervise(CONFIG, layout, SilentUI(), launcher)
    assert (record.terminal_status, [a.outcome for a in record.attempts]) == (
        "completed",
        ["completed"],
    )


def test_a_death_after_the_final_record_takes_nothing_back(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    record = supervise(CONFIG, prepared(tmp_path, {0: "100:late"}), SilentUI(), launcher)
    assert (record.terminal_status, [(a.outcome, a.signal) for a in record.attempts]) == (
        "completed",
        [("completed", 9)],
    )


def test_a_stop_that_came_too_late_for_the_run_is_passed_on(
    launcher: StandinLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Supervisor._close_attempt
    monkeypatch.setattr(
        Supervisor,
        "_close_attempt",
        lambda *given: (signal.raise_signal(signal.SIGINT), close(*given)),
    )
    layout = prepared(tmp_path, DONE)
    with pytest.raises(KeyboardInterrupt):
        supervise(CONFIG, layout, SilentUI(), launcher)
    assert recorded(layout).terminal_status == "completed"


def test_books_that_two_supervisors_left_open_are_closed(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    layout = prepared(tmp_path, {0: "7:137"}, DONE)
    layout.attempt(0).folder.mkdir(parents=True)
    supervise(CONFIG, layout, SilentUI(), launcher)
    # the attempt is on record as died
    Journal(layout.attempt(0).checkpoints).append(CheckpointLine("submitted", 6, 0, 1.0, 1.0))
    supervise(CONFIG, layout, SilentUI(), launcher)
    events = read_journal(layout.attempt(0).checkpoints, CheckpointLine).events
    assert [(line.event, line.global_step) for line in events] == [("submitted", 6), ("lost", 6)]


class DebrisAtFirstStep(StopAtFirstStep):
    """A killed save without atomic installation leaves a folder under the final name."""

    def __init__(self, layout: RunLayout) -> None:
        super().__init__(signal.SIGINT)
        self.layout = layout

    def progress(self, progress: Progress) -> None:
        (self.layout.checkpoints / "step_00000020").mkdir(parents=True, exist_ok=True)
        super().progress(progress)


def test_only_what_was_acknowledged_is_called_durable(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    layout = prepared(tmp_path, {0: "7:wait"})
    with pytest.raises(Stopped, match="nothing was saved yet"):
        supervise(CONFIG, layout, DebrisAtFirstStep(layout), launcher)


def test_a_run_goes_on_with_the_data_where_it_lies_now(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    layout = prepared(tmp_path, DONE)
    before = read_run_config(layout)
    moved = replace(CONFIG, dataset=replace(CONFIG.dataset, root="elsewhere"))
    supervise(moved, layout, SilentUI(), launcher)
    assert read_run_config(layout) == replace(
        before, config=replace(before.config, dataset=moved.dataset)
    )


def as_if_killed(layout: RunLayout) -> None:
    """What supervisor.json would say if the supervisor had been killed in its last attempt."""
    document = read_json(layout.supervisor)
    document["sessions"][-1]["ended_at"] = None
    document["terminal_status"] = "running"
    document["attempts"][-1] |= dict.fromkeys(
        ("ended_at", "exit_code", "signal", "rank", "first_step", "last_step")
    ) | {"outcome": "running"}
    layout.supervisor.write_text(json.dumps(document))
