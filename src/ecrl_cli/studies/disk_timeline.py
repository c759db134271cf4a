"""`disk-timeline`: disk activity while checkpoints are written. Published figure 6.

Per write mode one stretch of time with a checkpoint every few seconds; a thread samples the
device's counters throughout, and once more at each checkpoint's submission and acknowledgement.
`unsafe` is the control: it acknowledges data not yet on disk, and the study must notice that.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import synthetic_image, synthetic_plan
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.studies import DiskTimeline
from ecrl_cli.errors import EvidenceMissing
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.metrics.disk import (
    Disk,
    DiskSampler,
    bursts,
    coarser,
    disk_of,
    rates,
    read_disk,
    split,
)
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.records.events import DiskLine
from ecrl_cli.studies.frame.result import Figure, Findings, ResultTable, Series
from ecrl_cli.studies.frame.store_fixture import write_mode
from ecrl_cli.studies.frame.study import Arm, Record, Study, StudyContext, Trial, TrialResults
from ecrl_cli.studies.frame.tables import item, items, table

_SYNCED = ("atomic_nodirsync", "atomic_dirsync")  # their saves return only with the bytes on disk


def _disk(context: StudyContext) -> Disk:
    return disk_of(context.scratch)


def _missing(context: StudyContext) -> str:
    try:
        context.shared(_disk)
    except EvidenceMissing as error:
        return f"{error.fact}; {error.remedy}"
    return ""


def _run(context: StudyContext, trial: Trial) -> dict[str, Any]:
    """One stretch; times in seconds since its first sample."""
    disk, config, lines = context.shared(_disk), context.keys, list[DiskLine]()
    plan, root = (
        synthetic_plan(config.model_bytes, config.optimizer_bytes),
        context.scratch / "stretch",
    )
    images = [
        synthetic_image(context.seed, step, plan) for step in range(1, config.checkpoints + 1)
    ]
    store = CheckpointStore(root, StoreConfig(mode=write_mode(trial.facts["mode"]), keep=2))
    try:
        store.claim(0)
        with DiskSampler(config.fine_s, lambda: read_disk(disk), lines.append) as sampler:
            saves = _stretch(config.every_s, disk, store, images)
        if sampler.trouble:
            raise sampler.trouble
    finally:
        store.close()
        shutil.rmtree(root, ignore_errors=True)
    return {"disk": disk.name, "payload": images[0].nbytes, **_since(lines, saves)}


def _stretch(
    every_s: float, disk: Disk, store: CheckpointStore, images: Sequence[CheckpointImage]
) -> list[tuple[DiskLine, DiskLine]]:
    """Save each image in the middle of its `every_s`; the counters at submission and
    acknowledgement.
    """
    pause, began, saves = threading.Event(), monotonic(), []
    for number, image in enumerate(images):
        pause.wait(max(0.0, began + (number + 0.5) * every_s - monotonic()))
        before = read_disk(disk)
        saved = store.save(image, 0)
        saves.append((before, read_disk(disk)))
        store.update_pointers_and_retire(saved, image)
    pause.wait(max(0.0, began + len(images) * every_s - monotonic()))
    return saves


def _since(lines: Sequence[DiskLine], saves: Sequence[tuple[DiskLine, DiskLine]]) -> dict[str, Any]:
    """Times and counters relative to the first line, for the record."""
    first = encode(lines[0])

    def counted(line: DiskLine) -> dict[str, Any]:
        return {key: value - first[key] for key, value in encode(line).items()}

    return {
        "samples": [counted(line) for line in lines],
        "saves": [{"submitted": counted(a), "acknowledged": counted(b)} for a, b in saves],
    }


class Stretch:
    """One mode's parsed record."""

    def __init__(self, record: Record, config: DiskTimeline) -> None:
        self.mode: str = record.facts["mode"]
        self.disk: str = record.found["disk"]
        self.payload: int = record.found["payload"]
        self.lines = [decode(DiskLine, line) for line in record.found["samples"]]
        self.saves = [
            (decode(DiskLine, save["submitted"]), decode(DiskLine, save["acknowledged"]))
            for save in record.found["saves"]
        ]
        self.intervals = {
            config.interval_s: rates(coarser(self.lines, config.interval_s)),
            config.fine_s: rates(coarser(self.lines, config.fine_s)),
        }
        self.finest = config.fine_s

    def written(self) -> list[int]:
        """Bytes that the device wrote during each save."""
        return [after.write_bytes - before.write_bytes for before, after in self.saves]

    def speeds(self) -> tuple[float, float]:
        """Bytes per second that the device wrote: the median over saves, and the median over
        intervals without one. Other writers' bursts would distort a mean.
        """
        saving = [
            written / (after.at - before.at)
            for written, (before, after) in zip(self.written(), self.saves, strict=True)
        ]
        return median(saving), median(
            [rate.written for rate in split(self.intervals[self.finest], self.spans())[1]] or [0.0]
        )

    def lags(self) -> list[float | None]:
        """Seconds from each submission until the device had written as many bytes as the payload;
        None: not within the stretch.
        """
        return [self._lag(before, after) for before, after in self.saves]

    def _lag(self, before: DiskLine, after: DiskLine) -> float | None:
        later = sorted(
            (line for line in (*self.lines, after) if line.at > before.at), key=lambda line: line.at
        )
        return next(
            (
                line.at - before.at
                for line in later
                if line.write_bytes - before.write_bytes >= self.payload
            ),
            None,
        )

    def spans(self) -> list[tuple[float, float]]:
        """For each save, when it was submitted and acknowledged."""
        return [(before.at, after.at) for before, after in self.saves]

    def figure(self) -> Figure:
        series = tuple(
            Series(
                f"every {interval_s:g} s",
                tuple(rate.tps for rate in found),
                tuple((rate.start + rate.end) / 2 for rate in found),
            )
            for interval_s, found in sorted(self.intervals.items())
        )
        marks = tuple(after.at for _, after in self.saves)
        title = f"{self.mode}: disk transfers, and a line where each checkpoint was acknowledged"
        name, y_label = f"transfers-{self.mode}", "transfers per second"
        return Figure(name, title, "lines", "seconds", y_label, series, marks=marks)


def _bursts(stretches: Sequence[Stretch]) -> ResultTable:
    columns = (
        item("mode", "write mode"),
        item("interval", "interval", "seconds"),
        *items("count", held="intervals with a checkpoint", free="others"),
        *items("number", tps_held="transfers/s with (mean)", tps_free="transfers/s without (mean)"),
        *items(
            "bytes",
            written_held="written/s with (median)",
            written_free="written/s without (median)",
        ),
        item("above", "busier than nine in ten others", "count"),
        item("p", "rank test p", "number"),
    )
    rows = [
        {"mode": stretch.mode, "interval": interval_s, **asdict(bursts(rates, stretch.spans()))}
        for stretch in stretches
        for interval_s, rates in stretch.intervals.items()
    ]
    note = (
        "Bursts by bytes written. Rank test: Mann-Whitney, one-sided: would intervals with a"
        " checkpoint be as busy by chance?"
    )
    title = "Do checkpoints line up with bursts of disk activity?"
    return table("bursts", title, columns, rows, note)


def _saves(stretches: Sequence[Stretch]) -> ResultTable:
    columns = (
        item("mode", "write mode"),
        item("checkpoint", "checkpoint", "count"),
        *items("seconds", at="submitted at", took="acknowledged after"),
        *items("bytes", payload="payload", written="written by then"),
        item("lag", "as much on disk after", "seconds"),
    )
    rows = [
        {
            "mode": stretch.mode,
            "checkpoint": number,
            "at": before.at,
            "took": after.at - before.at,
            "payload": stretch.payload,
            "written": written,
            "lag": lag,
        }
        for stretch in stretches
        for number, ((before, after), written, lag) in enumerate(
            zip(stretch.saves, stretch.written(), stretch.lags(), strict=True), start=1
        )
    ]
    note = (
        "Empty: not within the stretch; the kernel writes unsynced data when it likes, up to half a"
        " minute later."
    )
    return table("saves", "What the disk had when a save returned", columns, rows, note)


def _written(stretches: Sequence[Stretch]) -> Figure:
    """All modes on one time axis: they save at the same times of their stretches."""
    series = tuple(
        Series(
            s.mode,
            tuple(rate.written / 1e6 for rate in found),
            tuple((rate.start + rate.end) / 2 for rate in found),
        )
        for s, found in ((s, s.intervals[s.finest]) for s in stretches)
    )
    marks = tuple(before.at for before, _ in stretches[0].saves)
    title = "Bytes written, all modes, and a line where each checkpoint was submitted"
    return Figure("written", title, "lines", "seconds", "MB/s", series, marks=marks)


def _gates(stretches: Sequence[Stretch]) -> list[Gate]:
    """A synced save visibly has its bytes on disk when it returns, and an unsynced one does not;
    otherwise the measurement is blind.
    """
    gates = []
    for stretch in stretches:
        written = stretch.written()
        there = sum(value >= stretch.payload for value in written)
        if stretch.mode in _SYNCED:
            said = (
                f"in {there} of {len(written)} saves the disk wrote at least the payload before the"
                " save returned"
            )
            gates += [
                Gate(f"on disk: {stretch.mode}", there == len(written), said),
                _lined_up(stretch),
            ]
        else:
            said = (
                f"{len(written) - there} of {len(written)} saves returned before the disk wrote the"
                " payload; with none, the disk is too noisy"
            )
            gates.append(Gate(f"seen: {stretch.mode}", there < len(written), said))
    return gates


def _lined_up(stretch: Stretch) -> Gate:
    during, meanwhile = stretch.speeds()
    said = (
        f"the disk wrote {during / 1e6:.3g} MB/s during a save, {meanwhile / 1e6:.3g} MB/s in"
        f" {stretch.finest:g} s without one (medians)"
    )
    return Gate(f"burst: {stretch.mode}", during > meanwhile, said)


def _findings(results: TrialResults) -> Findings:
    stretches = [Stretch(record, results.keys) for record in results.records]
    note = results.context.shared(_disk).note
    notes = (
        (
            "Published (iostat at 1 s, macOS, APFS): every group of files lines up with a clear"
            " burst of disk activity; no numbers were given."
        ),
        (
            f"The counters are those of the whole device {stretches[0].disk}: what other programs"
            " did meanwhile is in them, too."
        ),
        *([note] if note else []),
    )
    figures = (*(stretch.figure() for stretch in stretches), _written(stretches))
    return Findings(
        (_bursts(stretches), _saves(stretches)), figures, tuple(_gates(stretches)), notes
    )


STUDY = Study(
    keys=DiskTimeline,
    description="What the disk does while checkpoints are written. Published Figure 6.",
    arms=(
        Arm(
            "every mode",
            lambda context: [Trial(mode, {"mode": mode}) for mode in context.keys.modes],
            _run,
            missing=_missing,
        ),
    ),
    findings=(_findings,),
    alone=True,
)
