"""What a run does around its supervisor."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.linux import clock
from ecrl_cli.runs import run as runs
from ecrl_cli.runs.run_plan import plan_run
from ecrl_cli.supervision.run_lock import run_lock
from tests.runs.builder import build_ref, config_of


class NoLaunchers:
    """Whoever asks for one is disappointed."""

    def of(self, config: Any, failures: Any) -> Any:
        raise RuntimeError


CONTEXT = runs.RunContext(lambda line: None, NoLaunchers())  # type: ignore[arg-type]


def test_a_run_that_was_completed_and_not_measured_is_measured(tmp_path: Path) -> None:
    layout = build_ref(tmp_path)
    before = layout.metrics.read_bytes()
    layout.metrics.unlink()
    result = runs.run(plan_run(config_of("ref"), layout.root), CONTEXT)
    assert (result.exit_code, result.status) == (0, "completed")
    assert layout.metrics.read_bytes() == before


def test_metrics_of_an_earlier_stop_do_not_pass_for_those_of_the_completed_run(
    tmp_path: Path,
) -> None:
    layout = build_ref(tmp_path)
    before = layout.metrics.read_bytes()
    layout.metrics.write_bytes(
        before.replace(b'"terminal_status": "completed"', b'"terminal_status": "stopped"')
    )
    runs.run(plan_run(config_of("ref"), layout.root), CONTEXT)
    assert layout.metrics.read_bytes() == before


@pytest.mark.parametrize(
    "damage", ['{"schema_version": 2}', "[]", '{"schema_version": 1, "foo": 2}', "{"]
)
def test_a_damaged_supervisors_record_is_bad_input(tmp_path: Path, damage: str) -> None:
    layout = build_ref(tmp_path)
    layout.supervisor.write_text(damage)
    result = runs.run(plan_run(config_of("ref"), layout.root), CONTEXT)
    assert result.exit_code == 2 and "supervisor.json" in result.reason


def test_a_run_that_has_finished_or_is_held_is_left_alone(tmp_path: Path) -> None:
    done = build_ref(tmp_path)
    planned = plan_run(config_of("ref"), done.root)
    assert runs.leaves_alone(planned)
    more = replace(planned.config, target_steps=36, continued_at=(24,))
    assert not runs.leaves_alone(replace(planned, config=more))
    begun = plan_run(config_of("ref"), tmp_path / "begun")
    begun.layout.root.mkdir()
    assert not runs.leaves_alone(begun)
    with run_lock(begun.layout):
        assert runs.leaves_alone(begun)


def test_a_damaged_log_is_found_before_the_training_that_would_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "prepare", lambda *given: None)
    monkeypatch.setattr(runs, "completed", lambda layout: False)
    layout = build_ref(tmp_path)
    log = layout.attempt(0).rank(0)
    log.write_bytes(b"xx" + log.read_bytes())
    result = runs.run(plan_run(config_of("ref"), layout.root), CONTEXT)
    assert result.exit_code == 2 and "rank0.jsonl" in result.reason


def test_a_held_run_directory_is_refused_before_anything_is_prepared_or_warmed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "check_run_dir", lambda planned: pytest.fail("it is looked at"))
    monkeypatch.setattr(runs, "prepare", lambda *given: pytest.fail("data is prepared"))
    layout = build_ref(tmp_path)
    layout.supervisor.unlink()
    with run_lock(layout):
        result = runs.run(plan_run(config_of("ref"), layout.root), CONTEXT)
    assert result.exit_code == 8 and f"held by pid {os.getpid()} on " in result.reason


def test_a_machine_without_proc_sys_is_refused_before_anything_is_prepared_or_warmed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "BOOT_ID", tmp_path / "boot_id")
    monkeypatch.setattr(runs, "prepare", lambda *given: pytest.fail("data is prepared"))
    result = runs.run(plan_run(config_of("ref"), tmp_path / "run"), CONTEXT)
    assert result.exit_code == 2 and not (tmp_path / "run").exists()
    assert re.search(r"machine: .*/boot_id cannot be read .*; mount /proc with", result.reason)


def test_nothing_is_shown_before_the_launcher_is_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    monkeypatch.setattr(runs, "prepare", lambda *given: None)
    monkeypatch.setattr(runs, "make_ui", lambda *given: shown.append(given))
    with pytest.raises(RuntimeError):
        runs.run(plan_run(config_of("ref"), tmp_path / "run"), CONTEXT)
    assert shown == []


def test_the_name_of_a_run_directory_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(runs, "sync_directory", synced.append)
    runs.init_run_dir(plan_run(config_of("ref"), tmp_path / "a" / "b"))
    assert set(synced) == {tmp_path / "a", tmp_path}
    shutil.rmtree(tmp_path / "a" / "b")
