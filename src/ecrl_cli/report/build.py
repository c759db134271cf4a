"""Builds the report from run directories and studies; called by `ecrl report`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ecrl_cli.errors import EvidenceMissing, StorageError
from ecrl_cli.report.figures.runs import run_pictures
from ecrl_cli.report.figures.studies import study_pictures
from ecrl_cli.report.formats import harmless, printable
from ecrl_cli.report.model.comparison import Comparison, compare
from ecrl_cli.report.model.inputs import destination, find_inputs
from ecrl_cli.report.model.replication import replication
from ecrl_cli.report.model.run_record import read_run
from ecrl_cli.report.model.study_record import StudyResult, read_studies
from ecrl_cli.report.model.sweep_diff import SweepDiff, read_sweep_diff
from ecrl_cli.report.parallel import parallel_map
from ecrl_cli.report.render.markdown import ALONE, AMONG_OTHERS, markdown, markdown_study, terminal, terminal_study
from ecrl_cli.report.render.page import Figures, render, sections
from ecrl_cli.report.render.sweep_diff import against_document, against_files, against_lines
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
    """`page`: index.html. `text`: for a terminal. `exit_code`: 0, 1 (a gate failed, a study is incomplete) or 3 (a verdict or result is missing).

    `notes`: remarks on the runs, in sentences.
    """

    page: Path
    text: str
    exit_code: int
    notes: tuple[str, ...] = ()


def report(dirs: list[Path], out: Path | None = None, other: Path | None = None, judge_anew: bool = False) -> ReportResult:
    """Writes the report on `dirs` (run directories, studies and folders of them) into `out`, compared with the sweep `other` if given.
    `judge_anew`: every run is verified again, and verdicts on file are ignored.

    RunDirectoryError for a path that is neither run nor study; RecordError for a damaged study result; EvidenceMissing if there are no
    numbers; StorageError if `out` cannot be written.
    """
    there = find_inputs(dirs)
    shown = compare(parallel_map(partial(read_run, judge_anew=judge_anew), there.runs))
    studies = read_studies(there.studies)
    if not any(run.metrics for run in shown.runs) and not any(study.result for study in studies):
        raise _nothing(shown, studies)
    beside = read_sweep_diff(shown, dirs, other, judge_anew) if other else None
    folder = destination(dirs, out)
    _write(folder, contents(shown, studies, beside), out is not None)
    page = folder / "index.html"
    lines = against_lines(beside) if beside else []
    lines += [line for study in studies for line in terminal_study(study, ALONE if len(studies) == 1 else AMONG_OTHERS)]
    code = _code(shown, studies, beside)
    text = "\n".join([*(printable(line) for line in lines), terminal(shown, page)])
    return ReportResult(page, text, code, shown.notes + (beside.theirs.notes if beside else ()))


def _code(shown: Comparison, studies: Sequence[StudyResult], beside: SweepDiff | None) -> int:
    return worst_code([shown.exit_code, *([beside.theirs.exit_code] if beside else []), *(study.exit_code for study in studies)])


def _nothing(shown: Comparison, studies: Sequence[StudyResult]) -> EvidenceMissing:
    if not shown.runs:
        names = ", ".join(study.input.name for study in studies[:3])
        return EvidenceMissing("report", f"no result.json in {names}", "the same `ecrl study` command goes on and writes it")
    reasons = "; ".join(f"{run.name}: {run.reason}" for run in shown.runs[:3])
    return EvidenceMissing("report", f"no run has metrics ({reasons})", "let a run reach its end first")


def contents(shown: Comparison, studies: Sequence[StudyResult] = (), beside: SweepDiff | None = None) -> dict[str, bytes]:
    """Every file of the report by its path in the folder; the page last, so that all its links exist."""
    published = replication().publication(shown) if shown.runs else None
    drawn = Figures(run_pictures(shown), {study.ident: study_pictures(study) for study in studies})
    summary = _said(shown, studies)
    files = {f"figures/{picture.name}.{kind}": data for picture in drawn.every for kind, data in (("png", picture.png), ("pdf", picture.pdf))}
    if shown.runs:
        files |= {name: csv_of(records_table(rows(shown))) for name, rows in CSV_FILES.items()}
    files |= published.files if published else {}
    for study in studies:
        files |= csv_files(study)
    files |= against_files(beside) if beside else {}
    document = as_document(shown, summary.headline, summary.sentences) | {"exit_code": _code(shown, studies, beside)}
    document |= {"studies": [study_document(study) for study in studies]} if studies else {}
    document |= {"against": against_document(beside)} if beside else {}
    files["report.json"] = (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()
    sections_markdown = [markdown_study(study, [picture.name for picture in drawn.studies[study.ident]]) for study in studies]
    files["report.md"] = "\n".join([markdown(shown, summary, [picture.name for picture in drawn.runs]), *sections_markdown]).encode(errors="replace")
    files["index.html"] = render(shown, studies, summary, drawn, sections(shown, published, beside)).encode(errors="replace")
    return {name: harmless(data.decode()).encode() if name.endswith((".md", ".html")) else data for name, data in files.items()}


def _said(shown: Comparison, studies: Sequence[StudyResult]) -> ReportSummary:
    if not studies:
        return summarize(shown)
    return join_summaries(summarize(shown), summarize_studies(studies)) if shown.runs else summarize_studies(studies)


def _write(folder: Path, files: dict[str, bytes], named: bool) -> None:
    """`named`: the user chose this folder, which may then be a symlink; symlinks inside it are refused always."""
    if not named:
        refuse_links(folder.parent, [folder.name])
    refuse_links(folder, sorted({Path(name).parts[0] for name in files if len(Path(name).parts) > 1}))
    try:
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data, durable=False)
    except OSError as error:
        raise StorageError.of("report", folder, error) from error
