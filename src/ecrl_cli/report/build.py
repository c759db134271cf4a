"""Builds the report from run directories and studies; called by `ecrl report`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.errors import EvidenceMissing, StorageError
from ecrl_cli.report.formats import harmless, printable
from ecrl_cli.report.model.comparison import Comparison, compare
from ecrl_cli.report.model.inputs import destination, find_inputs, run_inputs
from ecrl_cli.report.model.picture import picture_files
from ecrl_cli.report.model.references import read_references
from ecrl_cli.report.model.replication import replication
from ecrl_cli.report.model.run_record import ON_FILE, Judging, read_runs
from ecrl_cli.report.model.study_record import StudyResult, read_studies
from ecrl_cli.report.model.sweep_diff import SweepDiff, read_sweep_diff
from ecrl_cli.report.render.markdown import (
    ALONE,
    AMONG_OTHERS,
    markdown,
    markdown_study,
    terminal,
    terminal_study,
)
from ecrl_cli.report.render.page import Figures, load_templates, render, sections
from ecrl_cli.report.render.publication import Publication
from ecrl_cli.report.render.sweep_diff import against_document, against_files, against_lines
from ecrl_cli.report.tables.checkpointers import checkpointers_table
from ecrl_cli.report.tables.records import CSV_FILES, as_document
from ecrl_cli.report.tables.renderers import csv_of
from ecrl_cli.report.tables.studies import csv_files, study_document
from ecrl_cli.report.tables.table import records_table
from ecrl_cli.report.text.study_summary import join_summaries, summarize_studies, worst_code
from ecrl_cli.report.text.summary import ReportSummary, summarize
from ecrl_cli.storage.files import write_whole
from ecrl_cli.storage.safe_read import refuse_links


@dataclass(frozen=True)
class ReportResult:
    """`page`: index.html. `text`: for a terminal. `exit_code`: 0, 1 (a gate failed, a study is
    incomplete) or 3 (a verdict or result is missing).

    `notes`: remarks on the runs, in sentences.
    """

    page: Path
    text: str
    exit_code: int
    notes: tuple[str, ...] = ()


def report(
    dirs: list[Path],
    out: Path | None = None,
    other: Path | None = None,
    judging: Judging = ON_FILE,
    *,
    every_run: bool = False,
) -> ReportResult:
    """Writes the report on `dirs` (run directories, studies and folders of them) into `out`,
    compared with the sweep `other` if given. `every_run`: its text has a row for each run.

    RunDirectoryError for a path that is neither run nor study; RecordError for a damaged study
    result; EvidenceMissing if there are no numbers; StorageError if `out` cannot be written.
    """
    folder, inputs = destination(dirs, out), find_inputs(dirs)
    studies = read_studies(inputs.studies)
    if out is None:
        refuse_links(folder.parent, [folder.name])
    if other:
        run_inputs([other])
    # verifies what is due: what is bad is refused before
    runs = read_runs(inputs.runs, judging, _load_drawing)
    comparison = compare(runs, read_references(runs))
    if not any(run.metrics for run in comparison.runs) and not any(
        study.result for study in studies
    ):
        raise _no_numbers(comparison, studies)
    diff = read_sweep_diff(comparison, dirs, other, judging) if other else None
    write_files(folder, contents(comparison, studies, diff), out is not None)
    page = folder / "index.html"
    lines = against_lines(diff) if diff else []
    lines += [
        line
        for study in studies
        for line in terminal_study(study, ALONE if len(studies) == 1 else AMONG_OTHERS)
    ]
    code = _exit_code(comparison, studies, diff)
    said = summarize(comparison).headline if comparison.runs else ""
    text = "\n".join(
        [
            *(printable(line) for line in lines),
            terminal(comparison, page, studies, headline=said, every_run=every_run),
        ]
    )
    return ReportResult(page, text, code, comparison.notes + (diff.theirs.notes if diff else ()))


def _load_drawing() -> None:
    """Imports what draws, which takes longer than all the rest."""
    from ecrl_cli.report.figures.export import load_libraries

    load_libraries()


def _exit_code(
    comparison: Comparison, studies: Sequence[StudyResult], diff: SweepDiff | None
) -> int:
    return worst_code(
        [
            comparison.exit_code,
            *([diff.theirs.exit_code] if diff else []),
            *(study.exit_code for study in studies),
        ]
    )


def _no_numbers(comparison: Comparison, studies: Sequence[StudyResult]) -> EvidenceMissing:
    if not comparison.runs:
        names = ", ".join(study.input.name for study in studies[:3])
        return EvidenceMissing(
            "report",
            f"no result.json in {names}",
            "the same `ecrl study` command goes on and writes it",
        )
    reasons = "; ".join(f"{run.name}: {run.reason}" for run in comparison.runs[:3])
    return EvidenceMissing(
        "report", f"no run has metrics ({reasons})", "let a run reach its end first"
    )


def contents(
    comparison: Comparison, studies: Sequence[StudyResult] = (), diff: SweepDiff | None = None
) -> dict[str, bytes]:
    """Every file of the report by its path in the folder; the page last, so that all its links
    exist.
    """
    from ecrl_cli.report.figures.runs import run_pictures
    from ecrl_cli.report.figures.studies import study_pictures

    published: Publication | None = (
        replication().publication(comparison.without_references) if comparison.runs else None
    )
    figures = Figures(
        run_pictures(comparison, load_templates),
        {study.ident: study_pictures(study) for study in studies},
    )
    summary = _summary(comparison, studies)
    files = picture_files(figures.every)
    if comparison.runs:
        files |= {name: csv_of(records_table(rows(comparison))) for name, rows in CSV_FILES.items()}
    if chosen_by := checkpointers_table(comparison, studies):
        files[chosen_by.file] = csv_of(chosen_by)
    files |= published.files if published else {}
    for study in studies:
        files |= csv_files(study)
    files |= against_files(diff) if diff else {}
    document = as_document(comparison, summary.headline, summary.sentences) | {
        "exit_code": _exit_code(comparison, studies, diff)
    }
    document |= {"studies": [study_document(study) for study in studies]} if studies else {}
    document |= {"against": against_document(diff)} if diff else {}
    files["report.json"] = (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()
    of_studies = [
        markdown_study(study, [picture.name for picture in figures.studies[study.ident]])
        for study in studies
    ]
    of_runs = markdown(comparison, summary, [picture.name for picture in figures.runs], studies)
    files["report.md"] = "\n".join([of_runs, *of_studies]).encode(errors="replace")
    files["index.html"] = render(
        comparison, studies, summary, figures, sections(comparison, published, diff)
    ).encode(errors="replace")
    return {
        name: harmless(data.decode()).encode() if name.endswith((".md", ".html")) else data
        for name, data in files.items()
    }


def _summary(comparison: Comparison, studies: Sequence[StudyResult]) -> ReportSummary:
    if not studies:
        return summarize(comparison)
    return (
        join_summaries(summarize(comparison), summarize_studies(studies))
        if comparison.runs
        else summarize_studies(studies)
    )


def write_files(folder: Path, files: dict[str, bytes], named: bool) -> None:
    """Writes `files` by their paths in `folder`. `named`: the user chose this folder, which may
    then be a symlink; symlinks inside it are refused always. StorageError if it cannot be written;
    an older report's page and JSON document, which would not fit the rest, are gone by then.
    """
    if not named:
        refuse_links(folder.parent, [folder.name])
    refuse_links(
        folder, sorted({Path(name).parts[0] for name in files if len(Path(name).parts) > 1})
    )
    try:
        for name in files:
            if name.endswith((".html", ".json")):
                (folder / name).unlink(missing_ok=True)
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data, durable=False)
    except OSError as error:
        raise StorageError.of("report", folder, error) from error
