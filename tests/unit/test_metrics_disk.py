"""The disk sampler: it finds the right device, loses nothing between two lines, ends when told, and
never stops what it watches.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ecrl_cli.config.identity import reference_id, run_id
from ecrl_cli.config.schema import RunConfig, SupervisionConfig
from ecrl_cli.errors import EvidenceMissing, Stopped
from ecrl_cli.metrics import disk as disks
from ecrl_cli.metrics.disk import (
    Bursts,
    Disk,
    DiskSampler,
    _plain,
    bursts,
    coarser,
    disk_of,
    rates,
    read_disk,
    sampled,
)
from ecrl_cli.records.events import DiskLine, SupervisorSession
from ecrl_cli.records.journal import line_of, read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.build import report
from ecrl_cli.report.model.timeline_view import disk_rates
from ecrl_cli.report.tables.disk import disk_table
from ecrl_cli.runs import run as runs
from ecrl_cli.runs.run_plan import plan_run
from tests.runs.builder import build_ref, config_of
from tests.unit.report_runs import WALL_0, Plan, Simulation, make_run


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up machine: `sysfs` with the devices of this folder and of a partition, counters of
    sda, sda1 and md0.
    """
    monkeypatch.setattr(disks, "_DEVICES", tmp_path / "sys")
    monkeypatch.setattr(disks, "_MOUNTS", tmp_path / "mounts")
    monkeypatch.setattr(
        disks.psutil,
        "disk_io_counters",
        lambda **_: dict.fromkeys(("sda", "sda1", "md0"), Counters()),
    )
    (tmp_path / "sys").mkdir()
    (tmp_path / "sda" / "sda1").mkdir(parents=True)
    (tmp_path / "sda" / "sda2").mkdir()
    mounted(tmp_path, "ext4", "/dev/sda1")
    return tmp_path


class Counters:
    read_count, write_count, read_bytes, write_bytes, busy_time = 1, 2, 512, 1024, 3


def mounted(machine: Path, kind: str, source: str) -> None:
    # as the kernel writes it
    point, source = (text.replace(" ", "\\040") for text in (str(machine), source))
    (machine / "mounts").write_text(
        f"1 0 8:1 / / rw - ext4 /dev/other rw\n2 1 0:9 / {point} rw shared:1 - {kind} {source} rw\n"
    )


def lies_on(machine: Path, device: str) -> None:
    number = machine.stat().st_dev
    (machine / "sys" / f"{os.major(number)}:{os.minor(number)}").symlink_to(machine / device)


def line(at: float, done: int = 0, shift: float = 0.0) -> DiskLine:
    """After `done` writes of 1 kB each."""
    return DiskLine(at, WALL_0 + at + shift, 0, done, 0, 1000 * done, 10 * done)


def test_the_device_is_the_one_the_folder_lies_on(machine: Path) -> None:
    lies_on(machine, "sda/sda1")
    assert disk_of(machine) == Disk("sda1")


def test_a_partition_without_counters_gives_its_disk_and_says_so(machine: Path) -> None:
    lies_on(machine, "sda/sda2")
    found = disk_of(machine)
    assert found.name == "sda" and "whole disk" in found.note


def test_a_file_system_with_an_invented_number_is_found_by_what_was_mounted(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(machine, "btrfs", str(machine / "node"))
    monkeypatch.setattr(
        disks,
        "_device_number",
        lambda source: os.makedev(8, 1) if source == str(machine / "node") else None,
    )
    (machine / "sys" / "8:1").symlink_to(machine / "sda" / "sda1")
    assert disk_of(machine) == Disk("sda1")


@pytest.mark.parametrize("kind", ["tmpfs", "overlay"])
def test_memory_is_no_disk(machine: Path, kind: str) -> None:
    mounted(machine, kind, kind)
    with pytest.raises(EvidenceMissing, match=f"lies on {kind}"):
        disk_of(machine)


def test_a_device_that_nothing_is_counted_for_is_said(machine: Path) -> None:
    (machine / "nvme0").mkdir()
    lies_on(machine, "nvme0")
    with pytest.raises(EvidenceMissing, match="the kernel counts nothing for nvme0"):
        disk_of(machine)


def test_a_source_that_is_no_device_or_not_there_has_no_number(machine: Path) -> None:
    for source in (str(machine / "nowhere"), "nowhere", str(machine / "mounts")):
        mounted(machine, "btrfs", source)
        with pytest.raises(EvidenceMissing, match="lies on btrfs, which is on no disk"):
            disk_of(machine)


def test_a_device_that_is_gone_is_said(machine: Path) -> None:
    assert read_disk(Disk("md0")).write_bytes == 1024
    with pytest.raises(EvidenceMissing, match="sdb is gone"):
        read_disk(Disk("sdb"))


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("/a\\040b", "/a b"),
        ("/a\\134b\\011c", "/a\\b\tc"),
        ("/a\\09b", "/a\\09b"),
        ("/plain", "/plain"),
    ],
)
def test_blanks_and_backslashes_of_a_mount_point_are_octal(written: str, plain: str) -> None:
    assert _plain(written) == plain


def test_of_two_file_systems_at_one_point_the_last_mounted_is_seen(machine: Path) -> None:
    lies_on(machine, "sda/sda1")
    with (machine / "mounts").open("a") as mounts:
        mounts.write(
            f"3 2 0:9 / {machine} rw - xfs /dev/later rw\n4 1 0:9 / {machine}-beside rw - ext4"
            " /dev/beside rw\n5 1 8:1 / / rw - ext4 /dev/other rw\n"
        )
    assert disks._mount(machine) == ("xfs", "/dev/later")
    (machine / "mounts").write_text(f"2 1 0:9 / {machine}-beside rw - ext4 /dev/beside rw\n")
    assert disks._mount(machine) == ("an unknown file system", "")


def test_rates_are_differences_by_time() -> None:
    first, second = rates([line(10.0), line(10.5, 20), line(12.5, 24)])
    assert (first.start, first.end, first.tps, first.written, first.busy) == (
        10.0,
        10.5,
        40,
        40_000,
        0.4,
    )
    assert (second.tps, second.written) == (2, 2_000)


def test_nothing_done_is_a_rate_and_no_time_is_none() -> None:
    assert [
        (rate.tps, rate.written, rate.read, rate.busy) for rate in rates([line(1, 5), line(2, 5)])
    ] == [(0, 0, 0, 0)]
    assert (
        rates([line(1, 5), line(1, 6)])
        == rates([line(2, 5), line(1, 6)])
        == rates([line(1, 5)])
        == []
    )
    one, other = line(1, 5), dataclasses.replace(line(3, 5), reads=6, read_bytes=4096)
    assert [(rate.tps, rate.written, rate.read) for rate in rates([one, other])] == [(3, 0, 2048)]


def test_a_counter_that_went_back_begins_anew() -> None:
    assert [rate.tps for rate in rates([line(1, 5), line(2, 9), line(3, 0), line(4, 2)])] == [4, 2]


def test_reads_that_went_back_begin_anew_although_writes_did_not() -> None:
    lines = [
        dataclasses.replace(line(at, 5), reads=reads)
        for at, reads in ((1, 9), (2, 12), (3, 0), (4, 2))
    ]
    assert [rate.tps for rate in rates(lines)] == [3, 2]


def test_coarser_lines_hold_all_that_happened() -> None:
    fine = [line(100 + n / 10 + (0.002 if n % 3 else 0.0), n * n) for n in range(41)]
    coarse = coarser(fine, 1.0)
    assert [round(each.at - 100, 1) for each in coarse] == [0, 1, 2, 3, 4]
    assert sum(r.written * (r.end - r.start) for r in rates(coarse)) == pytest.approx(
        sum(r.written * (r.end - r.start) for r in rates(fine))
    )
    assert coarser(fine, 0.1) == fine and coarser([*fine, line(104.003, 1600)], 0.1) == fine


def test_the_sampler_reads_at_once_again_and_at_the_end() -> None:
    kept, enough = list[DiskLine](), threading.Event()

    def keep(found: DiskLine) -> None:
        kept.append(found)
        if len(kept) == 4:
            enough.set()

    with DiskSampler(0.001, lambda: line(len(kept)), keep) as sampler:
        assert enough.wait(120)
    there = len(kept)
    assert there >= 5 and sampler.trouble is None and not sampling()
    with DiskSampler(1e6, lambda: line(len(kept)), kept.append):
        pass
    assert len(kept) == there + 2


def sampling() -> bool:
    return any(thread.name == "disk" for thread in threading.enumerate())


@pytest.mark.parametrize(
    "trouble", [OSError(errno.ENOSPC, "no space"), EvidenceMissing("disk", "sdb is gone")]
)
def test_trouble_ends_the_sampling_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    def fail(disk: Disk) -> DiskLine:
        raise trouble

    monkeypatch.setattr(disks, "disk_of", lambda folder: Disk("sda"))
    monkeypatch.setattr(disks, "read_disk", fail)
    said: list[str] = []
    with sampled(tmp_path / "disk.jsonl", 0.001, said.append):
        reached = True
    assert reached and len(said) == 1 and "not recorded to the end" in said[0]


def test_where_there_is_no_disk_the_run_goes_on_and_says_so(machine: Path) -> None:
    mounted(machine, "tmpfs", "tmpfs")
    said: list[str] = []
    with sampled(machine / "disk.jsonl", 0.001, said.append):
        pass
    assert len(said) == 1 and "lies on tmpfs" in said[0] and not (machine / "disk.jsonl").exists()


def test_where_the_file_cannot_be_opened_the_run_goes_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "disk_of", lambda folder: Disk("sda"))
    (tmp_path / "disk.jsonl").mkdir()
    said: list[str] = []
    with sampled(tmp_path / "disk.jsonl", 0.001, said.append):
        reached = True
    assert (
        reached and len(said) == 1 and "disk activity is not recorded" in said[0] and not sampling()
    )


def test_how_often_the_disk_is_looked_at_makes_no_other_run() -> None:
    plain, watched = RunConfig(), RunConfig(supervision=SupervisionConfig(disk_interval_s=0.5))
    assert run_id(plain) == run_id(watched) and reference_id(plain) == reference_id(watched)


@pytest.mark.parametrize("interval_s", [0.0, 0.5])
@pytest.mark.parametrize("end", [None, Stopped("SIGINT", "stopped"), KeyboardInterrupt()])
def test_a_run_samples_while_it_is_supervised_if_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException | None, interval_s: float
) -> None:
    """However the supervisor ends: what it did is on record, and no thread is left."""
    during: list[bool] = []

    def supervise(*given: Any) -> Any:
        during.append(sampling())
        if end:
            raise end
        return runs.read_record(layout)

    layout = build_ref(tmp_path)
    quiet = {
        name: lambda *given: None
        for name in ("prepare", "check_run_dir", "warm", "make_ui", "write_metrics", "end_run")
    }
    for name, instead in {
        **quiet,
        "completed": lambda layout: False,
        "supervise": supervise,
    }.items():
        monkeypatch.setattr(runs, name, instead)
    monkeypatch.setattr(disks, "disk_of", lambda folder: Disk("sda"))
    monkeypatch.setattr(disks, "read_disk", lambda disk: line(1.0))
    config = config_of("ref")
    config = dataclasses.replace(
        config, supervision=dataclasses.replace(config.supervision, disk_interval_s=interval_s)
    )
    try:
        runs.run(plan_run(config, layout.root), runs.RunContext(lambda line: None, None))  # type: ignore[arg-type]
    except KeyboardInterrupt:
        assert end is not None
    assert during == [interval_s > 0] and not sampling()
    assert len(read_journal(layout.disk, DiskLine).events) == (2 if interval_s else 0)


def test_two_supervisors_are_on_one_clock_even_if_their_boots_overlap() -> None:
    """The second boot's monotonic clock is behind the first's by 100 s of wall time and more."""
    first, second = (
        [line(at, n) for n, at in enumerate((1000, 1005, 1010))],
        [line(at, 50 + n, shift=100.0) for n, at in enumerate((1004, 1008, 1012))],
    )
    sessions = [
        SupervisorSession(1000, WALL_0 + 1000, "a"),
        SupervisorSession(1004, WALL_0 + 1104, "b"),
    ]
    found = disk_rates([*first, line(2000, 99), *second], sessions, [(1000, 1010), (1004, 1012)])
    assert [(rate.start, rate.end, rate.tps) for rate in found] == [
        (0, 5, 0.2),
        (5, 10, 0.2),
        (10, 14, 0.25),
        (14, 18, 0.25),
    ]


@pytest.mark.usefixtures("undrawn")
def test_the_report_draws_it_under_the_runs_timeline(tmp_path: Path) -> None:
    """Torn lines, in the middle and at the end, cost only themselves."""
    plan = Plan("ref", kills=())
    saves = sum(
        each.event == "committed" for lines in Simulation(plan).saves.values() for each in lines
    )
    run = make_run(tmp_path / "run", plan)
    assert "transfers per second" not in report([run]).page.read_text(encoding="utf-8")
    inside = [line(1000 + n / 4, 3 * n) for n in range(17)]
    RunLayout(run).disk.write_bytes(
        b"".join(map(line_of, inside[:9]))
        + b'{"at":1\n'
        + b"".join(map(line_of, inside[9:]))
        + b'{"at":'
    )
    page = report([run]).page.read_text(encoding="utf-8")
    assert (
        "Disk: transfers per second, at most 12" in page
        and page.count('class="mark commit"') == saves
    )
    drawn = re.search(r'class="disk" points="([^"]*)"', page)
    assert drawn and len(drawn[1].split()) == 32 and drawn[1].startswith("0.0,0.0 ")


def test_bursts_are_told_from_the_rest_by_a_rank_test() -> None:
    """Ten seconds: a checkpoint in the third and one in the eighth, each of which writes 50 kB; one
    in the rest and seconds' edges belong to none.
    """
    writes = [1, 2, 50, 1, 3, 1, 2, 50, 1, 2]
    found = rates([line(float(at), sum(writes[:at])) for at in range(11)])
    beside = bursts(found, [(2.0, 3.0), (7.2, 7.4)])
    assert (beside.held, beside.free, beside.above) == (2, 8, 2)
    assert (beside.tps_held, beside.tps_free) == (50.0, 13 / 8)
    assert (beside.written_held, beside.written_free) == (50_000.0, 1500.0)
    assert beside.p == pytest.approx(0.02, abs=0.005)  # 1 in 45 orders, were it not for the ties
    assert bursts(found, []) == Bursts(0, 10) and bursts(found, [(-1.0, 11.0)]) == Bursts(10, 0)


@pytest.mark.usefixtures("undrawn")
def test_the_report_has_a_table_of_the_runs_that_sampled_their_disk(tmp_path: Path) -> None:
    """A simulated save takes no time: it lies within one of the four intervals."""
    plan = Plan("ref", kills=())
    run = make_run(tmp_path / "run", plan)
    title = "Do checkpoints line up with bursts of disk activity?"
    made = report([run])
    assert title not in made.page.read_text(encoding="utf-8") and title not in (
        made.page.parent / "report.md"
    ).read_text(encoding="utf-8")
    saved = next(
        each.at
        for lines in Simulation(plan).saves.values()
        for each in lines
        if each.event == "committed"
    )
    at = [saved + offset for offset in (-0.5, -0.3, -0.1, 0.1, 0.3)]
    RunLayout(run).disk.write_bytes(
        b"".join(
            line_of(line(when, done)) for when, done in zip(at, (0, 1, 3, 40, 43), strict=True)
        )
    )
    made = report([run])
    assert title in made.page.read_text(encoding="utf-8")
    table = (made.page.parent / "report.md").read_text(encoding="utf-8").partition(title)[2]
    cells = [
        cell.strip()
        for cell in next(text for text in table.splitlines() if "| ref |" in text).split("|")[4:-1]
    ]
    assert cells == ["200 ms", "1", "3", "185", "10", "185 kB", "10 kB", "1", "0.25"]


def test_a_device_is_known_by_the_number_that_its_node_stands_for() -> None:
    """Not by that of the device on which the node lies. On Linux the null device is 1, 3."""
    assert disks._device_number("/dev/null") == os.makedev(1, 3)
    assert (
        disks._device_number("tmpfs") is None and disks._device_number("/dev/there is none") is None
    )


def test_ticks_that_a_suspended_machine_missed_are_skipped_and_later_ones_keep_their_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine is away from the first sample on, for ten intervals and a half."""
    now, waits = [100.0], list[float]()
    sampler = DiskSampler(1.0, lambda: line(now[0]), lambda _: None)

    class Stop:
        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            now[0] += seconds + (9.5 if len(waits) == 1 else 0.0)
            return len(waits) == 3

    monkeypatch.setattr(disks, "monotonic", lambda: now[0])
    monkeypatch.setattr(sampler, "_stop", Stop())
    sampler._run()
    assert waits == [1.0, 0.5, 1.0] and sampler.trouble is None


def test_the_end_waits_for_the_last_sample() -> None:
    """What is kept after the end would be written to a journal that is closed."""
    begun, finish, kept = threading.Event(), threading.Event(), list[DiskLine]()

    def keep(each: DiskLine) -> None:
        if len(kept) == 1:  # the last one
            begun.set()
            assert finish.wait(60)
        kept.append(each)

    sampler = DiskSampler(3600.0, lambda: line(1.0), keep)
    sampler.__enter__()
    ending = threading.Thread(target=sampler.__exit__, args=(None, None, None))
    ending.start()
    assert begun.wait(60)
    ending.join(0.3)
    assert ending.is_alive() and len(kept) == 1
    finish.set()
    ending.join(60)
    assert not ending.is_alive() and len(kept) == 2


def test_a_runs_disk_is_busy_with_a_checkpoint_from_its_submission_to_its_end() -> None:
    found = tuple(rates([line(float(at), done) for at, done in enumerate((0, 1, 9, 20, 22))]))
    view = SimpleNamespace(disk=found, writes=[SimpleNamespace(start=1.5, end=2.5)])
    runs = [
        SimpleNamespace(view=view, suite="suite", seed="7"),
        SimpleNamespace(view=None),
        SimpleNamespace(view=SimpleNamespace(disk=())),
    ]
    table = disk_table(cast("Any", SimpleNamespace(runs=runs, label=lambda run: "arm")))
    ((suite, _, seed, interval, *counted),) = table.rows
    assert (suite, seed, interval) == ("suite", "7", 1.0)
    assert counted == [2, 2, 9.5, 1.5, 9500.0, 1500.0, 2, pytest.approx(1 / 6)]
