"""A sweep that is started again, beside others, on another machine; and the board that says where
it stands.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from rich.console import Console

from ecrl_cli.config.schema import CheckpointConfig, RunConfig
from ecrl_cli.errors import RunHeld
from ecrl_cli.records.layout import RunLayout, SweepLayout
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.runs.environment import disagreements, environment
from ecrl_cli.runs.run import RunResult
from ecrl_cli.runs.run_plan import RunPlan, plan_run
from ecrl_cli.runs.sweep import SweepPlan, SweepProgress, read_manifest, sweep, todo
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.launch import launcher
from ecrl_cli.supervision.run_lock import run_lock
from tests.runs.builder import build_ref

GOOD = RunResult(0, "completed", "target reached")


def plans(layout: SweepLayout, *names: str) -> dict[str, RunPlan]:
    return {
        name: plan_run(RunConfig(seed=number, suite_name="s"), layout.run(name).root)
        for number, name in enumerate(names)
    }


def swept(
    layout: SweepLayout, do: SweepPlan, start: Callable[[str], RunResult] = lambda name: GOOD
) -> dict[str, RunResult]:
    return sweep(layout, do, start, SweepProgress(do, lambda line: None))


def statuses(layout: SweepLayout) -> dict[str, str]:
    return {row.run: row.status for row in read_manifest(layout.manifest)}


def test_only_what_is_missing_is_started_and_the_manifest_knows_it_from_the_first_moment(
    tmp_path: Path,
) -> None:
    layout, seen = SweepLayout(tmp_path / "all"), []
    build_ref(layout.root).root.rename(layout.root / "b")

    def start(name: str) -> RunResult:
        seen.append((name, statuses(layout)))
        return GOOD

    results = swept(layout, todo(plans(layout, "a", "b", "c"), {}), start)
    assert [name for name, _ in seen] == ["a", "c"]
    assert seen[0][1] == {"a": "running", "b": "completed_prev", "c": "pending"}
    assert list(results) == ["a", "b", "c"] and results["b"].status == "completed_prev"


def test_a_run_whose_records_are_damaged_is_started_and_says_so_itself(tmp_path: Path) -> None:
    layout = SweepLayout(tmp_path / "all")
    build_ref(layout.root).root.rename(layout.root / "a")
    layout.run("a").supervisor.write_text("{")
    assert todo(plans(layout, "a"), {}).finished == frozenset()


def test_what_a_killed_sweep_left_running_is_pending_for_the_next(tmp_path: Path) -> None:
    layout = SweepLayout(tmp_path)
    layout.manifest.write_text(
        "run,run_id,suite,variant,seed,status,reason\nold,1,s,ref,1,running,\nbad,2,s,ref,1,failed,why\n"
    )
    swept(layout, SweepPlan(plans(layout, "new")))
    assert statuses(layout) == {"old": "pending", "bad": "failed", "new": "completed"}


def test_two_sweeps_do_not_work_in_one_folder(tmp_path: Path) -> None:
    layout = SweepLayout(tmp_path)
    with run_lock(layout), pytest.raises(RunHeld):
        swept(layout, SweepPlan(plans(layout, "a")))
    assert not layout.manifest.exists()


def test_what_sets_a_run_apart_stays_in_the_manifest(tmp_path: Path) -> None:
    layout = SweepLayout(tmp_path)
    do = SweepPlan(
        plans(layout, "a", "b"),
        frozenset({"a"}),
        {"a": "mixed: kernel differs", "b": "mixed: cpu differs"},
    )
    swept(layout, do)
    with layout.manifest.open() as file:
        assert [(row["status"], row["reason"]) for row in csv.DictReader(file)] == [
            ("completed_prev", "mixed: kernel differs"),
            ("completed", "mixed: cpu differs"),
        ]


def begun(folder: Path, **changed: object) -> RunLayout:
    layout = RunLayout(folder)
    layout.root.mkdir(parents=True)
    write_json(layout.environment, environment(folder) | changed)
    layout.config.write_text("{}")
    return layout


def test_runs_of_this_code_and_machine_agree_whatever_document_was_committed_since(
    tmp_path: Path,
) -> None:
    layouts = {
        "same": begun(tmp_path / "same", git_revision="another"),
        "new": RunLayout(tmp_path / "new"),
    }
    assert disagreements(layouts) == {}


@pytest.mark.parametrize(("strategy", "stands"), [("blocking", True), ("torchsnapshot", False)])
def test_a_package_that_takes_no_part_in_a_run_does_not_keep_it_from_being_taken_up(
    tmp_path: Path, strategy: str, stands: bool
) -> None:
    """An extra was installed, a library for figures updated, since the run began."""
    packages = environment(tmp_path)["packages"] | {"torchsnapshot": "0.0.1", "scipy": "1.0"}
    layout = begun(tmp_path / "run", packages=packages)
    write_run_config(layout, RunConfig(checkpoint=CheckpointConfig(strategy)))
    assert ("torchsnapshot" not in disagreements({"run": layout}).get("run", "")) == stands
    assert "scipy" not in disagreements({"run": layout}).get("run", "")


def test_a_finished_sweep_says_that_nothing_is_left(tmp_path: Path) -> None:
    runs = {
        name: plan_run(RunConfig(seed=seed), tmp_path / name)
        for seed, name in enumerate(("a", "b"))
    }
    lines: list[str] = []
    do = SweepPlan(runs, frozenset(runs))
    found = sweep(
        SweepLayout(tmp_path), do, lambda name: pytest.fail(name), SweepProgress(do, lines.append)
    )
    assert (
        lines == ["sweep: 2 of 2 done, 0 failed"]
        and [result.status for result in found.values()] == ["completed_prev"] * 2
    )


def test_a_run_begun_under_other_kernels_is_another_machine_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    layouts = {"run": begun(tmp_path / "run")}
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert disagreements(layouts) == {
        "run": "math_kernels.ATEN_CPU_CAPABILITY None there and 'default' here"
    }


def test_a_warm_launcher_serves_no_run_under_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        launcher,
        "launcher_of",
        lambda config: mock.Mock(load=lambda: mock.Mock(make=lambda config: mock.Mock())),
    )
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    cache = launcher.LauncherCache()
    first = cache.of(RunConfig(), ())
    assert cache.of(RunConfig(), ()) is first
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert cache.of(RunConfig(), ()) is not first


def test_what_differs_is_named(tmp_path: Path) -> None:
    packages = environment(tmp_path)["packages"] | {"torch": "1.0"}
    layouts = {
        "code": begun(tmp_path / "code", source_sha256="0123"),
        "machine": begun(tmp_path / "machine", kernel="2.6", packages=packages),
        "older": begun(tmp_path / "older", source_sha256=None, git_revision="another"),
        "lost": begun(tmp_path / "lost"),
    }
    layouts["lost"].environment.unlink()
    found = disagreements(layouts)
    assert found["code"].startswith("source_sha256 '0123' there and ") and "," not in found["code"]
    assert (
        "packages.torch '1.0' there" in found["machine"]
        and "kernel '2.6' there" in found["machine"]
    )
    assert found["older"].startswith("git_revision 'another' there") and "missing" in found["lost"]


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def board_of(time: Time, *names: str, finished: str = "") -> SweepProgress:
    base = RunConfig(suite_name="first", target_steps=100, global_batch=8)
    made = {
        name: plan_run(replace(base, seed=n, suite_name="first" if n < 2 else "second"), Path(name))
        for n, name in enumerate(names)
    }
    return SweepProgress(SweepPlan(made, frozenset(finished)), lambda line: None, time)


def test_the_board_counts_and_tells_how_long_the_rest_takes() -> None:
    time = Time()
    board = board_of(time, "a", "b", "c", "d", finished="d")
    assert board.seconds_left() is None and "left" not in board.line()
    board.began("a")
    time.now = 10.0
    board.ended("a", "completed")
    assert (
        board.counts() == {"done": 2, "running": 0, "failed": 0, "left": 2}
        and board.seconds_left() == 20.0
    )
    board.began("b")
    time.now = 14.0
    assert (
        board.counts("first") == {"done": 1, "running": 1, "failed": 0, "left": 0}
        and board.seconds_left() == 16.0
    )
    board.ended("b", "failed")
    assert board.line() == "sweep: 2 of 4 done, 1 failed, about 10 s left"
    board.began("c")
    board.ended("c", "completed")
    assert board.line() == "sweep: 3 of 4 done, 1 failed"


def test_the_table_has_a_row_per_suite() -> None:
    console = Console(width=80, record=True, file=None)
    with console.capture() as said:
        console.print(board_of(Time(), "a", "b", "c").table())
    lines = said.get().splitlines()
    assert lines[0].strip() == "sweep: 0 of 3 done, 0 failed" and lines[1].split() == [
        "suite",
        "done",
        "running",
        "failed",
        "left",
    ]
    assert [line.split() for line in lines[2:]] == [["first", "2"], ["second", "1"]]


def test_the_digest_of_the_source_is_on_record(tmp_path: Path) -> None:
    recorded = json.loads(json.dumps(environment(tmp_path)))
    assert len(recorded["source_sha256"]) == 64
