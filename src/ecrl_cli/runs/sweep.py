"""Many runs, one after the other, with a manifest that always says where the sweep stands."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from ecrl_cli.config.identity import run_id
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import RecordError
from ecrl_cli.records.layout import SweepLayout
from ecrl_cli.records.reading import read_whole
from ecrl_cli.runs.run import RunResult
from ecrl_cli.storage.files import write_whole

_STOPPED = (130, 143)


@dataclass(frozen=True)
class Row:
    """One line of manifest.csv. `status`: pending, running, completed, completed_prev, failed."""

    run: str
    run_id: str
    suite: str
    variant: str
    seed: str
    status: str = "pending"
    reason: str = ""


def row(name: str, config: RunConfig) -> Row:
    """The line of a run that has not been started."""
    suite = config.suite_name or f"{config.dataset.name}-{config.model.name}"
    return Row(name, run_id(config), suite, config.variant.name, str(config.seed))


class Manifest:
    """manifest.csv, written whole after every change. Runs of earlier sweeps in the same folder keep their lines."""

    def __init__(self, path: Path, rows: Sequence[Row]) -> None:
        self._path = path
        kept = {old.run: old for old in read_manifest(path)}
        self._rows = {**kept, **{new.run: new for new in rows}}
        self._write()

    def record(self, run: str, status: str, reason: str = "") -> None:
        """The run's new status, on disk when this returns."""
        self._rows[run] = replace(self._rows[run], status=status, reason=reason)
        self._write()

    def _write(self) -> None:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows([getattr(row, name) for name in _COLUMNS] for row in self._rows.values())
        write_whole(self._path, text.getvalue().encode())


_COLUMNS = tuple(field.name for field in fields(Row))


def read_manifest(path: Path) -> list[Row]:
    """The lines of manifest.csv, none where it is missing; RecordError where it is damaged."""
    if not path.exists():
        return []
    try:
        return [Row(**line) for line in csv.DictReader(io.StringIO(read_whole(path).decode()), strict=True)]
    except (csv.Error, TypeError, ValueError) as error:
        raise RecordError("manifest.csv", f"not a manifest ({error})", "restore the file or choose another run_dir") from error


def fair_order(configs: Mapping[str, RunConfig]) -> list[str]:
    """The names in the order in which the runs are fair to each other: what shares suite and seed stands together, and the arm that goes
    first moves on by one from group to group, so that the machine's drift hits all arms alike."""
    groups: dict[tuple[str, str, str, int], list[str]] = {}
    for name, config in configs.items():
        groups.setdefault((config.suite_name, config.dataset.name, config.model.name, config.seed), []).append(name)
    turned = (names[turn % len(names) :] + names[: turn % len(names)] for turn, names in enumerate(groups.values()))
    return [name for names in turned for name in names]


def sweep(layout: SweepLayout, configs: dict[str, RunConfig], start: Callable[[str], RunResult]) -> dict[str, RunResult]:
    """Start each run by name, in order, and record how it ended; a failed run does not end the sweep, Ctrl-C does."""
    manifest = Manifest(layout.manifest, [row(name, config) for name, config in configs.items()])
    results: dict[str, RunResult] = {}
    for name in configs:
        manifest.record(name, "running")
        results[name] = result = start(name)
        manifest.record(name, _status(result), "" if result.exit_code == 0 else result.reason)
        if result.exit_code in _STOPPED:
            break
    return results


def _status(result: RunResult) -> str:
    """A run that was stopped can be resumed: it is still to do."""
    if result.exit_code in _STOPPED:
        return "pending"
    if result.exit_code:
        return "failed"
    return "completed_prev" if result.status == "completed_prev" else "completed"


def exit_code(results: dict[str, RunResult]) -> int:
    """Zero if every run ended well, else the first that did not; a stop outranks all."""
    codes = [result.exit_code for result in results.values()]
    return next((code for code in codes if code in _STOPPED), next((code for code in codes if code), 0))
