"""Which run directories the words on the command line mean, and where the report goes."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.errors import ConfigError, EvidenceMissing, RunDirectoryError
from ecrl_cli.records.layout import RunLayout, SweepLayout


@dataclass(frozen=True)
class Place:
    """A run that the report must show: its folder, its name there, and what the sweep's manifest says of it."""

    layout: RunLayout
    name: str
    said: dict[str, str]


def is_run(folder: Path) -> bool:
    layout = RunLayout(folder)
    return layout.config.exists() or layout.supervisor.exists() or layout.metrics.exists()


def places(dirs: list[Path]) -> list[Place]:
    """Every run of `dirs`, once, in order; RunDirectoryError where one is neither a run nor a sweep."""
    found = [place for folder in dirs for place in _places(folder)]
    unique = {place.layout.root.resolve(): place for place in found}
    if not unique:
        raise EvidenceMissing("report", "no run in " + ", ".join(map(str, dirs)), "name a run directory or a sweep folder of ecrl train")
    return _named_apart(list(unique.values()))


def _places(folder: Path) -> list[Place]:
    if not folder.is_dir():
        raise RunDirectoryError(str(folder), "is no folder", "name a run directory or a sweep folder of ecrl train")
    if is_run(folder):
        return [Place(RunLayout(folder), folder.resolve().name, {})]
    sweep = SweepLayout(folder)
    listed = _manifest(sweep)
    named = {row["run"] for row in listed}
    unlisted = sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name not in named and is_run(p))
    if not (listed or unlisted or sweep.manifest.exists()):
        raise RunDirectoryError(str(folder), "is neither a run directory nor a sweep folder", "name a folder that ecrl train wrote")
    return [Place(sweep.run(row["run"]), row["run"], row) for row in listed] + [Place(sweep.run(name), name, {}) for name in unlisted]


def _manifest(sweep: SweepLayout) -> list[dict[str, str]]:
    """The rows of manifest.csv that name a folder of the sweep itself."""
    if not sweep.manifest.exists():
        return []
    with sweep.manifest.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [{str(key): value or "" for key, value in row.items()} for row in csv.DictReader(file)]
    return [row for row in rows if row.get("run") and Path(row["run"]).name == row["run"]]


def _named_apart(found: list[Place]) -> list[Place]:
    """Names that occur twice get their parent's name in front."""
    names = [place.name for place in found]
    twice = {name for name in names if names.count(name) > 1}
    return [Place(p.layout, f"{p.layout.root.resolve().parent.name}/{p.name}", p.said) if p.name in twice else p for p in found]


def destination(dirs: list[Path], out: Path | None) -> Path:
    """`out`, or report/ in the one folder given; several folders have no place of their own, so that theirs must be named."""
    if out is not None:
        return out
    if len(dirs) == 1:
        return SweepLayout(dirs[0]).report
    raise ConfigError("--out", f"{len(dirs)} folders and no place for their report", "add --out DIR")
