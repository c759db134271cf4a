"""A run directory in another folder, and a storage that is slow on purpose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.cli import hydra_jobs
from ecrl_cli.cli.main import main
from ecrl_cli.config.build import build
from ecrl_cli.config.schema import RunConfig, StorageConfig
from ecrl_cli.errors import ConfigError, RunDirectoryError
from ecrl_cli.runs.run import RunContext, RunResult
from ecrl_cli.runs.run_dir import check_run_dir, link_run_dir, lost
from ecrl_cli.runs.run_plan import RunPlan, plan_run
from ecrl_cli.storage import fs_wrapper
from ecrl_cli.storage.fs import CREATE
from ecrl_cli.verify.verify_run import verify_run
from tests.runs.builder import RunBuilder, config_of


def in_folder(folder: Path, run_dir: Path) -> RunPlan:
    return plan_run(RunConfig(storage=StorageConfig("tmpfs", str(folder))), run_dir)


def test_the_run_lies_in_the_folder_and_is_found_where_it_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    run = tmp_path / "sweep" / "run"
    link_run_dir(in_folder(tmp_path / "memory", run))
    assert run.is_symlink() and run.resolve().parent == tmp_path / "memory"
    (run / "config.json").write_text("{}")
    link_run_dir(in_folder(tmp_path / "memory", run))
    assert [item.name for item in run.iterdir()] == ["config.json"]


def test_two_sweeps_with_the_same_run_do_not_share_it(tmp_path: Path) -> None:
    for sweep in ("one", "two"):
        link_run_dir(in_folder(tmp_path, tmp_path / sweep / "run"))
    assert (tmp_path / "one" / "run").resolve() != (tmp_path / "two" / "run").resolve()


def test_what_a_lost_link_left_is_not_taken_over(tmp_path: Path) -> None:
    run = tmp_path / "sweep" / "run"
    link_run_dir(in_folder(tmp_path, run))
    (run / "config.json").write_text("{}")
    run.unlink()
    with pytest.raises(RunDirectoryError, match="no run directory links to it"):
        link_run_dir(in_folder(tmp_path, run))
    assert not run.exists()


def test_what_a_reboot_took_from_memory_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    run = tmp_path / "sweep" / "run"
    planned = in_folder(tmp_path / "memory", run)
    link_run_dir(planned)
    run.resolve().rmdir()
    assert lost(planned)
    link_run_dir(planned)
    assert run.is_dir() and not lost(planned)
    run.resolve().rmdir()
    run.unlink()
    run.symlink_to(tmp_path / "somewhere else")
    assert not lost(planned)
    with pytest.raises(RunDirectoryError, match="is not the link"):
        link_run_dir(planned)


def test_a_folder_that_was_made_before_it_could_be_put_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(RunDirectoryError, match="is not the link"):
        link_run_dir(in_folder(tmp_path, tmp_path / "run"))


def test_a_link_that_somebody_planted_is_not_followed(tmp_path: Path) -> None:
    memory, victim = tmp_path / "memory", tmp_path / "victim"
    memory.mkdir()
    victim.mkdir()
    run = tmp_path / "sweep" / "run"
    link_run_dir(in_folder(memory, run))
    place = run.resolve()
    place.rmdir()
    run.unlink()
    place.symlink_to(victim)
    with pytest.raises(RunDirectoryError):
        link_run_dir(in_folder(memory, run))
    assert not run.exists()


def test_a_run_alone_lies_in_the_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(planned: RunPlan, context: RunContext) -> RunResult:
        return RunResult(0, "completed", str(planned.layout.root.resolve()))

    (tmp_path / "memory").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hydra_jobs, "run", run)
    assert (
        main(["train", "storage=tmpfs", f"storage.folder={tmp_path / 'memory'}", "run_dir=run"])
        == 0
    )
    assert (tmp_path / "run").resolve().parent == tmp_path / "memory"


def test_a_disk_is_left_alone(tmp_path: Path) -> None:
    link_run_dir(plan_run(RunConfig(), tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("folder", ["memory", "/nowhere/at/all"])
def test_a_folder_that_is_none_is_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match=r"storage\.folder"):
        build({"storage": {"name": "tmpfs", "folder": folder}})


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_throttled_storage_takes_the_time_that_its_bandwidth_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(fs_wrapper, "time", clock)
    store = CheckpointStore(tmp_path, StoreConfig(bytes_per_s=2**20))
    fd = store.fs.open(tmp_path / "file", CREATE)
    data = memoryview(bytes(3 * 2**20))
    while data:
        data = data[store.fs.write(fd, data) :]
    assert clock.now == 103.0
    clock.now += 50.0  # bandwidth that was not used is gone
    store.fs.write(fd, b"x" * 2**19)
    assert clock.now == 153.5
    store.fs.close(fd)
    assert (tmp_path / "file").stat().st_size == 3 * 2**20 + 2**19


def test_a_run_that_lies_elsewhere_is_judged_among_its_neighbours_here(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    for name, launched in (("one", 1000.0), ("two", 2000.0)):
        RunBuilder(tmp_path / name / "ref", config_of("ref"), now=launched).build().root.rename(
            tmp_path / f"elsewhere-{name}"
        )
    sweep.mkdir()
    (tmp_path / "elsewhere-two").rename(sweep / "reference")
    (sweep / "run").symlink_to(tmp_path / "elsewhere-one")
    verdict = verify_run(sweep / "run", None)
    assert (verdict.run, verdict.reference) == ("run", "reference")


@pytest.mark.parametrize("target", [12, 48])
def test_the_target_of_a_run_is_not_changed_and_the_line_says_why(
    tmp_path: Path, target: int
) -> None:
    """Neither lowered, nor raised before it was reached: each step's learning rate follows from
    it.
    """
    run = RunBuilder(tmp_path / "ref", config_of("ref")).build()
    run.supervisor.write_text(run.supervisor.read_text().replace('"completed"', '"stopped"'))
    run.root.chmod(0o755)
    with pytest.raises(RunDirectoryError) as refused:
        check_run_dir(plan_run(replace(config_of("ref"), target_steps=target), run.root))
    assert (
        f"(target_steps 24 there and {target} here); a run keeps its target until it has reached it"
        in refused.value.line()
    )
