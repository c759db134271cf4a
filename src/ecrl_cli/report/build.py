"""From run directories to the report: what `ecrl report` calls."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.errors import EvidenceMissing, StorageError
from ecrl_cli.report.answer import answer
from ecrl_cli.report.comparison import Comparison, compare
from ecrl_cli.report.evidence import read_run
from ecrl_cli.report.figures import pictures
from ecrl_cli.report.find import destination, places
from ecrl_cli.report.page import render
from ecrl_cli.report.tables import as_csv, as_document, run_rows, summary_rows
from ecrl_cli.report.text import markdown, terminal
from ecrl_cli.storage.files import write_whole


@dataclass(frozen=True)
class ReportResult:
    """`page`: index.html. `text`: the goodput table for a terminal. `exit_code`: 0, 1 (a gate failed) or 3 (only verdicts are missing or unknown)."""

    page: Path
    text: str
    exit_code: int

    @property
    def exit_ok(self) -> bool:
        return self.exit_code == 0


def report(dirs: list[Path], out: Path | None = None) -> ReportResult:
    """Write the report on `dirs` (run directories or sweep folders) into `out`.

    RunDirectoryError where one of them is neither; EvidenceMissing where no run left metrics; StorageError where `out` refuses.
    """
    shown = compare([read_run(place) for place in places(dirs)])
    if not any(run.metrics for run in shown.runs):
        reasons = "; ".join(f"{run.name}: {run.reason}" for run in shown.runs[:3])
        raise EvidenceMissing("report", f"no run has metrics ({reasons})", "let a run reach its end first")
    folder = destination(dirs, out)
    files = contents(shown)
    _write(folder, files)
    page = folder / "index.html"
    return ReportResult(page, terminal(shown, page), shown.exit_code)


def contents(shown: Comparison) -> dict[str, bytes]:
    """Every file of the report by its path in the folder; the page last, so that a page never lacks what it links to."""
    said, drawn = answer(shown), pictures(shown)
    files = {f"figures/{picture.name}.{kind}": data for picture in drawn for kind, data in (("png", picture.png), ("pdf", picture.pdf))}
    files |= {"runs.csv": as_csv(run_rows(shown)), "summary.csv": as_csv(summary_rows(shown))}
    files["report.json"] = (json.dumps(as_document(shown, said.headline, said.sentences), indent=2, allow_nan=False) + "\n").encode()
    files["report.md"] = markdown(shown, said, [picture.name for picture in drawn]).encode()
    return files | {"index.html": render(shown, said, drawn).encode()}


def _write(folder: Path, files: dict[str, bytes]) -> None:
    try:
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data, durable=False)
    except OSError as error:
        raise StorageError.of("report", folder, error) from error
