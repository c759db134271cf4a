"""Finds the run directories and studies named on the command line, and the report's folder."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ecrl_cli.errors import ConfigError, EvidenceMissing, RecordError, RunDirectoryError
from ecrl_cli.records.layout import RunLayout, StudyLayout, SweepLayout
from ecrl_cli.records.safe_read import read_whole


@dataclass(frozen=True)
class RunInput:
    """A run to report on: its folder, its name, and its row in the sweep's manifest."""

    layout: RunLayout
    name: str
    manifest_row: dict[str, str]


@dataclass(frozen=True)
class StudyInput:
    """A study to report on."""

    layout: StudyLayout
    name: str


@dataclass(frozen=True)
class Inputs:
    """The runs and studies in the given folders, without duplicates, in order."""

    runs: tuple[RunInput, ...]
    studies: tuple[StudyInput, ...]


def is_run(folder: Path) -> bool:
    layout = RunLayout(folder)
    return layout.config.exists() or layout.supervisor.exists() or layout.metrics.exists()


def is_study(folder: Path) -> bool:
    layout = StudyLayout(folder)
    return layout.study.exists() or layout.result.exists()


def find_inputs(dirs: list[Path]) -> Inputs:
    """Every run and study in `dirs`; RunDirectoryError for a folder with neither."""
    studies = [
        StudyInput(StudyLayout(path), path.resolve().name)
        for folder in dirs
        for path in _studies(folder)
    ]
    unique = {place.layout.root.resolve(): place for place in studies}
    runs = [folder for folder in dirs if not _studies(folder) or _has_runs(folder)]
    return Inputs(tuple(run_inputs(runs)) if runs or not unique else (), tuple(unique.values()))


def run_inputs(dirs: list[Path]) -> list[RunInput]:
    """Every run in `dirs`, without duplicates, in order; RunDirectoryError for a folder that is
    neither a run nor a sweep.
    """
    listed = [place for folder in dirs for place in _places(folder)]
    unique = {place.layout.root.resolve(): place for place in listed}
    if not unique:
        raise EvidenceMissing(
            "report",
            "no run in " + ", ".join(map(str, dirs)),
            "name a run directory or a sweep folder of ecrl train",
        )
    found = list(unique.values())
    names = names_apart([(place.name, place.layout.root) for place in found])
    return [replace(place, name=name) for place, name in zip(found, names, strict=True)]


def _studies(folder: Path) -> list[Path]:
    """`folder` itself if it is a study, else the studies in it."""
    if is_study(folder):
        return [folder]
    return (
        sorted(item for item in folder.iterdir() if item.is_dir() and is_study(item))
        if folder.is_dir()
        else []
    )


def _has_runs(folder: Path) -> bool:
    return not is_study(folder) and (
        SweepLayout(folder).manifest.exists()
        or any(item.is_dir() and is_run(item) for item in folder.iterdir())
    )


def _places(folder: Path) -> list[RunInput]:
    if not folder.is_dir():
        raise RunDirectoryError(
            str(folder), "is no folder", "name a run directory, a study or a folder of several"
        )
    if is_run(folder):
        return [RunInput(RunLayout(folder), folder.resolve().name, {})]
    sweep = SweepLayout(folder)
    listed = _manifest(sweep)
    named = {row["run"] for row in listed}
    unlisted = sorted(
        p.name for p in folder.iterdir() if p.is_dir() and p.name not in named and is_run(p)
    )
    if not (listed or unlisted or sweep.manifest.exists()):
        fact = "is neither a run directory nor a study nor a folder of them"
        raise RunDirectoryError(
            str(folder), fact, "name a folder that ecrl train or ecrl study wrote"
        )
    return [RunInput(sweep.run(row["run"]), row["run"], row) for row in listed] + [
        RunInput(sweep.run(name), name, {}) for name in unlisted
    ]


def _manifest(sweep: SweepLayout) -> list[dict[str, str]]:
    """The rows of manifest.csv that name a folder in the sweep."""
    if not sweep.manifest.exists():
        return []
    text = io.StringIO(read_whole(sweep.manifest).decode("utf-8", "replace"), newline="")
    try:
        rows = [
            {"run": "", **{str(key): value or "" for key, value in row.items()}}
            for row in csv.DictReader(text)
        ]
    except csv.Error as error:
        raise RecordError(
            "manifest.csv", f"not a manifest ({error})", "restore the file"
        ) from error
    return [
        row
        for row in rows
        if row["run"] not in ("", ".", "..")
        and row["run"].isprintable()
        and Path(row["run"]).name == row["run"]
    ]


def names_apart(found: Sequence[tuple[str, Path]]) -> list[str]:
    """A name for each of `found`, names and different folders: its own, after as many of the
    folders above it as tell it from the others.
    """
    names = [name for name, _ in found]
    above = [list(_named_so(name, folder).parent.parts) for name, folder in found]
    while twice := {name for name, count in Counter(names).items() if count > 1}:
        names = [
            f"{folders.pop()}/{name}" if name in twice else name
            for name, folders in zip(names, above, strict=True)
        ]
    return names


def _named_so(name: str, folder: Path) -> Path:
    """`folder` itself if that is its name, else the link to it that is: no two of either are
    alike.
    """
    itself = folder.resolve()
    return itself if itself.name == name else folder.absolute()


def destination(dirs: list[Path], out: Path | None) -> Path:
    """`out`, or report/ in the only folder given; ConfigError for several folders without `out`."""
    if out is not None:
        return out
    if len(dirs) == 1:
        return SweepLayout(dirs[0]).report
    raise ConfigError(
        "--out", f"{len(dirs)} folders and no place for their report", "add --out DIR"
    )
