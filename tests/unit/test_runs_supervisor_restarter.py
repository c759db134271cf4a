"""The keeper starts a supervisor again exactly where a planned failure has ended the one before,
and in that failure's own way.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.codec import encode
from ecrl_cli.config.schema import CheckpointConfig, FailureConfig, RunConfig
from ecrl_cli.errors import EcrlError, Stopped, StorageError
from ecrl_cli.failures.plan import plan
from ecrl_cli.linux.pdeathsig import with_pdeathsig
from ecrl_cli.records.events import SupervisorRecord
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.runs import supervisor_restarter
from ecrl_cli.runs.run_plan import plan_run
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.attempts.stop_signals import StopSignals, held_back
from tests.conftest import comes_true

STOPPED = ["Stopped", "SIGTERM", "stopped; step 9 is durable", "go on", "stopped"]
READONLY = ["StorageError", "rank 0", "append: EROFS at x", "", "storage"]
DONE: dict[str, Any] = {"code": 0}
DIES: dict[str, Any] = {"code": -9, "fires": [0]}
STOPS: dict[str, Any] = {"code": 143, "fires": [1], "error": STOPPED}
SEALED: dict[str, Any] = {"code": 5, "fires": [2], "error": READONLY}


def config(*entries: str) -> RunConfig:
    return RunConfig(
        target_steps=100,
        checkpoint=CheckpointConfig(every=10),
        failure=FailureConfig("listed", entries=entries),
    )


PLAN = config("supervisor@9", "term@19", "readonly@29", "kill@39")


def kept(
    root: Path, monkeypatch: pytest.MonkeyPatch, *endings: dict[str, Any], status: str = "completed"
) -> tuple[SupervisorRecord, list[str]]:
    monkeypatch.setattr(supervisor_restarter, "MODULE", "tests.contract.standin_kept")
    layout, said = RunLayout(root), list[str]()
    (root / "supervisors.json").write_text(json.dumps(endings))
    write_json(layout.supervisor, encode(SupervisorRecord(1, "id", 100, status, 0, (), ())))
    return (
        supervisor_restarter.supervise_with_restarts(plan_run(PLAN, layout.root), said.append),
        said,
    )


def supervisors_started(root: Path) -> int:
    return len((root / "started").read_text())


def test_only_a_plan_that_ends_the_supervisor_wants_a_keeper() -> None:
    assert supervisor_restarter.wanted(plan(PLAN)) and all(
        supervisor_restarter.wanted(plan(config(entry)))
        for entry in ("term@9", "readonly@9", "supervisor@0.5s")
    )
    assert not supervisor_restarter.wanted(
        plan(config("kill@9", "corrupt@29", "stop@9"))
    ) and not supervisor_restarter.wanted(())


def test_each_planned_end_is_followed_by_another_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, said = kept(tmp_path, monkeypatch, DIES, STOPS, SEALED, DONE)
    assert record.terminal_status == "completed" and supervisors_started(tmp_path) == 4
    assert [
        kind
        for line in said
        for kind in ("supervisor", "term", "readonly")
        if f"planned failure {kind}" in line
    ] == [
        "supervisor",
        "term",
        "readonly",
    ]


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        ({"code": -9}, EcrlError),
        ({"code": -9, "fires": [1]}, EcrlError),
        ({"code": -9, "fires": [3]}, EcrlError),
        ({"code": 143, "error": STOPPED}, Stopped),
        ({"code": 143, "fires": [0], "error": STOPPED}, Stopped),
        ({"code": 5, "error": READONLY}, StorageError),
        ({"code": 1, "fires": [0]}, EcrlError),
    ],
    ids=[
        "killed by somebody else",
        "killed, another struck",
        "killed, a kill struck",
        "stopped",
        "stopped, another struck",
        "storage",
        "a defect",
    ],
)
def test_any_other_end_is_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: dict[str, Any], kind: type[EcrlError]
) -> None:
    with pytest.raises(kind) as caught:
        kept(tmp_path, monkeypatch, ending, DONE, status="running")
    assert supervisors_started(tmp_path) == 1 and type(caught.value) is kind


def test_what_struck_in_an_earlier_stay_starts_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EcrlError):
        kept(tmp_path, monkeypatch, DIES, {"code": -9}, DONE, status="running")
    assert supervisors_started(tmp_path) == 2


def test_a_signal_that_came_too_late_leaves_the_run_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _ = kept(tmp_path, monkeypatch, {"code": -15, "fires": [1]})
    assert record.terminal_status == "completed" and supervisors_started(tmp_path) == 1


def test_a_stop_is_passed_on_once_and_ends_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor waits for a SIGTERM that only the keeper gets, then ends as its planned
    failure would end it.
    """

    def stop() -> None:
        assert comes_true((tmp_path / "started").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(Stopped):
        kept(tmp_path, monkeypatch, STOPS | {"waits": True}, DONE)
    thread.join()
    assert supervisors_started(tmp_path) == 1


def test_a_stop_before_the_supervisor_can_hear_it_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the first instant of a stay."""

    def command(words: list[str]) -> list[str]:
        os.kill(os.getpid(), signal.SIGTERM)
        return with_pdeathsig(words)

    monkeypatch.setattr(supervisor_restarter, "with_pdeathsig", command)
    with pytest.raises(Stopped):
        kept(tmp_path, monkeypatch, STOPS | {"waits": True}, DONE)
    assert supervisors_started(tmp_path) == 1


def test_what_was_held_back_is_received_once_somebody_listens() -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    with held_back():
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        with StopSignals() as stop:
            assert stop.received() == [signal.SIGTERM]
    signal.signal(signal.SIGTERM, before)
