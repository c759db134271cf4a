"""`study=disk-timeline` on a disk that is made up: it gets what is synced, when it is synced."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.studies import DiskTimeline
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.errors import EvidenceMissing
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.metrics.disk import Disk, split
from ecrl_cli.records.events import DiskLine
from ecrl_cli.records.layout import StudyLayout
from ecrl_cli.report.build import report
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.studies import disk_timeline
from ecrl_cli.studies.disk_timeline import Stretch
from ecrl_cli.studies.frame.runner import run_study
from ecrl_cli.studies.frame.study import Record

CONFIG = StudyConfig(DiskTimeline(checkpoints=2, every_s=0.05, interval_s=0.05, fine_s=0.01))


class MadeUpDisk:
    """Every synced file reaches it at its sync. `noise`: bytes that others write between any two
    looks.
    """

    def __init__(self) -> None:
        self.writes = self.bytes = self.noise = 0

    def read(self, disk: Disk) -> DiskLine:
        self.bytes += self.noise
        return DiskLine(monotonic(), 0.0, 0, self.writes, 0, self.bytes, 0)

    def fsync(self, fs: PosixFs, fd: int) -> None:
        self.writes += 1
        self.bytes += os.fstat(fd).st_size


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> MadeUpDisk:
    made = MadeUpDisk()
    monkeypatch.setattr(PosixFs, "fsync", lambda fs, fd: made.fsync(fs, fd))
    monkeypatch.setattr(disk_timeline, "disk_of", lambda folder: Disk("made-up"))
    monkeypatch.setattr(disk_timeline, "read_disk", made.read)
    return made


def result_of(folder: Path, code: int, config: StudyConfig = CONFIG) -> dict[str, Any]:
    assert run_study(config, folder, lambda line: None) == code
    found: dict[str, Any] = json.loads(StudyLayout(folder).result.read_text())
    return found


def failed(result: dict[str, Any]) -> set[str]:
    return {gate["name"] for gate in result["gates"] if not gate["passed"]}


def test_synced_checkpoints_line_up_and_unsynced_ones_do_not(
    tmp_path: Path, disk: MadeUpDisk
) -> None:
    result = result_of(tmp_path / "study", 0)
    saves = next(table for table in result["tables"] if table["name"] == "saves")["rows"]
    assert [row["mode"] for row in saves] == ["unsafe"] * 2 + ["atomic_nodirsync"] * 2 + [
        "atomic_dirsync"
    ] * 2
    for row in saves:
        assert (
            (row["written"] == 0 and row["lag"] is None)
            if row["mode"] == "unsafe"
            else row["written"] >= row["payload"] > 190_000
        )
        assert row["mode"] == "unsafe" or 0 < row["lag"] <= row["took"]
    figures = {figure["name"]: figure for figure in result["figures"]}
    assert all(len(figure["marks"]) == 2 for figure in figures.values()) and len(figures) == 4
    assert [series["label"] for series in figures["transfers-atomic_dirsync"]["series"]] == [
        "every 0.01 s",
        "every 0.05 s",
    ]
    assert (
        max(figures["transfers-atomic_dirsync"]["series"][0]["y"])
        > 0
        == max(figures["transfers-unsafe"]["series"][0]["y"])
    )


def test_its_report_has_its_figures(tmp_path: Path, disk: MadeUpDisk) -> None:
    config = StudyConfig(
        DiskTimeline(
            modes=("atomic_dirsync",), checkpoints=2, every_s=0.05, interval_s=0.05, fine_s=0.01
        )
    )
    result_of(tmp_path / "study", 0, config)
    made = report([tmp_path / "study"])
    assert made.exit_code == 0 and made.page.read_text().count("<figure") == 2
    assert "study.modes=[atomic_dirsync]" in made.page.read_text()


def test_a_sync_that_syncs_nothing_is_noticed(
    tmp_path: Path, disk: MadeUpDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PosixFs, "fsync", lambda fs, fd: None)
    assert failed(result_of(tmp_path / "study", 1)) == {
        f"{what}: {mode}" for what in ("on disk", "burst") for mode in CONFIG.study.modes[1:]
    }


def test_a_disk_too_busy_to_tell_anything_fails_the_study(tmp_path: Path, disk: MadeUpDisk) -> None:
    disk.noise = 10**9
    assert "seen: unsafe" in failed(result_of(tmp_path / "study", 1))


def test_without_a_disk_it_is_skipped_and_not_passed(
    tmp_path: Path, disk: MadeUpDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(folder: Path) -> Disk:
        raise EvidenceMissing("disk", "/x lies on tmpfs", "use a folder on a local disk")

    monkeypatch.setattr(disk_timeline, "disk_of", none)
    result = result_of(tmp_path / "study", 1)
    assert result["skips"] == [
        {"arm": "every mode", "reason": "/x lies on tmpfs; use a folder on a local disk"}
    ]
    assert failed(result) == {"trials"}


def counters(at: float, written: int) -> dict[str, Any]:
    return {
        "at": at,
        "time": at,
        "reads": 0,
        "writes": written // 100,
        "read_bytes": 0,
        "write_bytes": written,
        "busy_ms": 0,
    }


def test_intervals_and_lags_are_those_of_the_record() -> None:
    """A save from 1.2 to 1.3 s with 300 of 1000 bytes; the rest arrives by 3 s. 1 s and 0.5 s
    intervals.
    """
    samples = [counters(n / 2, written) for n, written in enumerate((0, 0, 0, 400, 400, 400, 1300))]
    found = {
        "disk": "sda",
        "payload": 1000,
        "samples": samples,
        "saves": [{"submitted": counters(1.2, 0), "acknowledged": counters(1.3, 300)}],
    }
    stretch = Stretch(Record("unsafe", {"mode": "unsafe"}, found, 3.0), DiskTimeline(fine_s=0.5))
    assert stretch.written() == [300] and stretch.lags() == [pytest.approx(1.8)]
    held, free = split(stretch.intervals[1.0], stretch.spans())
    assert [(rate.start, rate.tps, rate.written) for rate in held] == [(1.0, 4.0, 400.0)] and [
        rate.start for rate in free
    ] == [0.0, 2.0]
    held, free = split(stretch.intervals[0.5], stretch.spans())
    assert [(rate.start, rate.written) for rate in held] == [(1.0, 800.0)] and len(free) == 5
    assert stretch.speeds() == (pytest.approx(3000), 0.0)
