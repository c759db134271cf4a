"""Samples the kernel's counters of the disk that holds a folder, in a background thread."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from types import TracebackType

import psutil

from ecrl_cli.errors import EcrlError, EvidenceMissing
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.records.events import DiskLine
from ecrl_cli.records.journal import Journal

LEAST_S = 0.005  # a shorter interval would mostly measure the sampler itself
_OCTAL = re.compile(r"\\([0-7]{3})")  # mountinfo escapes blanks and backslashes this way
_MOUNTS, _DEVICES = Path("/proc/self/mountinfo"), Path("/sys/dev/block")


@dataclass(frozen=True)
class Disk:
    """A block device by its kernel name; `note`: what its counters include beyond the folder's own
    file system.
    """

    name: str
    note: str = ""


@dataclass(frozen=True)
class DiskRate:
    """Rates over the interval between two samples. `tps`: transfers per second as in iostat;
    `written`, `read`: bytes per second; `busy`: share of time.
    """

    start: float
    end: float
    tps: float
    written: float
    read: float
    busy: float


def disk_of(folder: Path) -> Disk:
    """The device under `folder`; EvidenceMissing if its file system is on no device with kernel
    counters.
    """
    number, (kind, source) = folder.stat().st_dev, _mount(folder)
    named = _named(number) or _named(_device_number(source))
    counted = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    if named is None:
        raise EvidenceMissing(
            "disk",
            f"{folder} lies on {kind}, which is on no disk of this machine",
            "use a folder on a local disk",
        )
    if named.name in counted:
        return Disk(named.name)
    if named.parent.name in counted:
        return Disk(
            named.parent.name, f"{named.name} has no counters of its own: the whole disk is counted"
        )
    raise EvidenceMissing(
        "disk",
        f"the kernel counts nothing for {named.name}, on which {folder} lies",
        "use a folder on a local disk",
    )


def _mount(folder: Path) -> tuple[str, str]:
    """Type and source of the file system that holds `folder`: of the deepest mount point above it,
    the last mounted there.
    """
    here, best, found = folder.resolve(), -1, ("an unknown file system", "")
    for line in _MOUNTS.read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        point, (kind, source, *_) = _plain(before.split(" ")[4]), after.split(" ")
        if here.is_relative_to(point) and len(point) >= best:
            best, found = len(point), (kind, _plain(source))
    return found


def _plain(field: str) -> str:
    """A field of mountinfo, unescaped."""
    return _OCTAL.sub(lambda code: chr(int(code[1], 8)), field)


def _named(number: int | None) -> Path | None:
    """The device's folder in sysfs; its last path component is the device name, and its parent is
    the disk of a partition.
    """
    if number is None:
        return None
    link = _DEVICES / f"{os.major(number)}:{os.minor(number)}"
    return link.resolve() if link.exists() else None


def _device_number(source: str) -> int | None:
    """For a file system with an anonymous device number (btrfs): the number of the device it was
    mounted from.
    """
    try:
        return Path(source).stat().st_rdev if source.startswith("/") else None
    except OSError:
        return None


def read_disk(disk: Disk) -> DiskLine:
    """Read the counters now; EvidenceMissing if the device is gone."""
    counted = (psutil.disk_io_counters(perdisk=True, nowrap=False) or {}).get(disk.name)
    if counted is None:
        raise EvidenceMissing("disk", f"{disk.name} is gone", "")
    return DiskLine(
        monotonic(),
        wall(),
        counted.read_count,
        counted.write_count,
        counted.read_bytes,
        counted.write_bytes,
        int(getattr(counted, "busy_time", 0)),
    )


def rates(lines: Sequence[DiskLine]) -> list[DiskRate]:
    """The rates between consecutive samples; pairs in which a counter went back (reboot, device
    reattached) are skipped.
    """
    return [
        _rate(a, b)
        for a, b in pairwise(lines)
        if b.at > a.at and b.writes >= a.writes and b.reads >= a.reads
    ]


def _rate(a: DiskLine, b: DiskLine) -> DiskRate:
    took = b.at - a.at
    transfers = b.reads - a.reads + b.writes - a.writes
    written, read = (b.write_bytes - a.write_bytes) / took, (b.read_bytes - a.read_bytes) / took
    return DiskRate(
        a.at, b.at, transfers / took, written, read, (b.busy_ms - a.busy_ms) / 1e3 / took
    )


def coarser(lines: Sequence[DiskLine], interval_s: float) -> list[DiskLine]:
    """The first of `lines`, then the first of each further interval: counters are cumulative, so
    nothing is lost.

    Sampling times jitter: a line up to a twentieth of the interval early counts for the next
    interval.
    """
    kept, last = list[DiskLine](), -1
    for line in lines:
        number = int((line.at - lines[0].at) / interval_s + 0.05)
        if number > last:
            kept.append(line)
            last = number
    return kept


@dataclass(frozen=True)
class Bursts:
    """Whether checkpoints line up with bursts of disk activity. `held`: intervals in which one was
    being written; `free`: the others.

    Of each: their mean transfers per second and their median of bytes written per second. `above`:
    how many of the held wrote more than nine in ten of the free. `p`: of the one-sided Mann-Whitney
    test, whether the held write as much by chance. None where either has no interval.
    """

    held: int
    free: int
    tps_held: float | None = None
    tps_free: float | None = None
    written_held: float | None = None
    written_free: float | None = None
    above: int | None = None
    p: float | None = None


def split(
    found: Sequence[DiskRate], spans: Sequence[tuple[float, float]]
) -> tuple[list[DiskRate], list[DiskRate]]:
    """The intervals that overlap one of `spans` (start, end), and the others."""
    held, free = list[DiskRate](), list[DiskRate]()
    for rate in found:
        (
            held if any(start < rate.end and end > rate.start for start, end in spans) else free
        ).append(rate)
    return held, free


def bursts(found: Sequence[DiskRate], spans: Sequence[tuple[float, float]]) -> Bursts:
    """Compares the intervals that overlap one of `spans` with the others."""
    held, free = split(found, spans)
    if not held or not free:
        return Bursts(len(held), len(free))
    from scipy import stats  # import takes most of a second

    ours, theirs = [rate.written for rate in held], [rate.written for rate in free]
    bar = sorted(theirs)[int(0.9 * (len(theirs) - 1))]
    p = float(stats.mannwhitneyu(ours, theirs, alternative="greater").pvalue)
    tps_held, tps_free = fmean(rate.tps for rate in held), fmean(rate.tps for rate in free)
    return Bursts(
        len(held),
        len(free),
        tps_held,
        tps_free,
        median(ours),
        median(theirs),
        sum(value > bar for value in ours),
        p,
    )


class DiskSampler:
    """Passes a sample to `keep` at once, then every `interval_s` (at least LEAST_S), then once more
    at the end.

    `trouble`: the error that stopped it early.
    """

    def __init__(
        self, interval_s: float, read: Callable[[], DiskLine], keep: Callable[[DiskLine], object]
    ) -> None:
        self._interval_s, self._read, self._keep = max(interval_s, LEAST_S), read, keep
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
        self.trouble: EcrlError | OSError | None = None

    def __enter__(self) -> DiskSampler:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        """Missed ticks (machine suspended) are skipped, so that later ones keep their schedule."""
        began, tick = monotonic(), 1
        try:
            self._keep(self._read())
            while not self._stop.wait(max(0.0, began + tick * self._interval_s - monotonic())):
                self._keep(self._read())
                tick = max(tick, int((monotonic() - began) / self._interval_s)) + 1
            self._keep(self._read())
        except (EcrlError, OSError) as error:
            self.trouble = error


@contextmanager
def sampled(path: Path, interval_s: float, say: Callable[[str], None]) -> Iterator[None]:
    """Sample the disk that holds `path` into `path` while the context is open; 0 s: off. Errors are
    reported through `say`, not raised.
    """
    if not interval_s:
        yield
        return
    try:
        disk = disk_of(path.parent)
        journal = Journal(path)
    except (EcrlError, OSError) as error:
        say(f"disk activity is not recorded: {error}")
        yield
        return
    try:
        with DiskSampler(interval_s, lambda: read_disk(disk), journal.append) as sampler:
            yield
    finally:
        journal.close()
        if sampler.trouble:
            say(f"disk activity was not recorded to the end: {sampler.trouble}")
