"""The report as plain text for a terminal, and as Markdown (report.md): runs, then studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ecrl_cli.errors import visible
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.report.formats import plural, printable, short
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.effects import effects, interactions
from ecrl_cli.report.model.study_record import StudyResult, headline
from ecrl_cli.report.tables.checkpointers import checkpointers_table
from ecrl_cli.report.tables.comparisons import brief, tables
from ecrl_cli.report.tables.disk import disk_table
from ecrl_cli.report.tables.effects import effects_table, interactions_table, slices_table
from ecrl_cli.report.tables.quality import quality_table
from ecrl_cli.report.tables.records import CSV_FILES
from ecrl_cli.report.tables.renderers import escaped, markdown_of, markdown_section, terminal_of
from ecrl_cli.report.tables.runs import brief_runs, recoveries_table
from ecrl_cli.report.tables.studies import shown_tables
from ecrl_cli.report.text.study_summary import circumstances, command, progress
from ecrl_cli.report.text.summary import ReportSummary, broken

ALONE, AMONG_OTHERS, IN_MARKDOWN = 24, 8, 60  # rows of a study's table


def terminal(comparison: Comparison, page: Path, studies: Sequence[StudyResult] = ()) -> str:
    """The runs of every suite, the arms compared, excluded runs, failed gates, and the page's path."""
    lines = [*broken(comparison), ""] if broken(comparison) else []
    for suite in comparison.suites:
        scale = f"; scale {comparison.scale([suite])}" if any(run.counted for run in comparison.runs if run.suite == suite) else ""
        lines += [f"{printable(suite) or 'no suite'} (goodput in committed steps per second{scale})", *terminal_of(brief_runs(comparison, suite))]
        lines += [f"  gate failed: {gate.name}: {short(printable(gate.message))}" for gate in comparison.gates[suite] if not gate.passed] + [""]
    for table in [*brief(comparison), quality_table(comparison), recoveries_table(comparison), checkpointers_table(comparison, studies)]:
        lines += [table.title, *terminal_of(table), ""] if table else []
    lines += [f"not compared: {run.name}: {run.reason}" for run in comparison.left_out]
    lines += [f"not judged: {run.name}: {run.verdict.why}" for run in comparison.runs if run.verdict.why]
    lines += [f"note: {note}" for note in comparison.notes]
    return "\n".join([printable(line) for line in [*lines, f"report: {visible(page)}"]])


def terminal_study(study: StudyResult, most: int = ALONE) -> list[str]:
    """One line on the study, its failed gates, its skips and the first `most` rows of its main table."""
    lines = [f"{study.name}: {progress(study)}"]
    lines += [f"  gate failed: {printable(gate.name)}: {short(printable(gate.message))}" for gate in study.failed]
    lines += [f"  skipped: {printable(skip.arm)}: {short(printable(skip.reason))}" for skip in (study.result.skips if study.result else ())]
    for table in shown_tables(study)[:1]:
        lines += terminal_of(table, most)
        lines += [f"  ... {plural(len(table.rows) - most, 'more row')} in {table.file}"] if len(table.rows) > most else []
    return [printable(line) for line in [*lines, ""]]


def markdown(comparison: Comparison, summary: ReportSummary, figures: Sequence[str], studies: Sequence[StudyResult] = ()) -> str:
    """The runs' part of report.md."""
    lines = [f"# {escaped(summary.headline)}", "", *statement_lines(summary), ""]
    for suite in comparison.suites:
        scale = f"Scale {escaped(comparison.scale([suite]) or 'unknown')}."
        lines += [f"## {escaped(suite)}", "", scale, "", *markdown_of(brief_runs(comparison, suite)), "", *gate_lines(comparison.gates[suite]), ""]
    if comparison.left_out:
        lines += ["## Not compared", "", *(f"- {escaped(run.name)}: {escaped(run.reason)}" for run in comparison.left_out), ""]
    if not comparison.runs:
        return "\n".join(lines)
    own = [table(comparison) for table in (quality_table, recoveries_table, disk_table)]
    every, two = effects(comparison), interactions(comparison)
    axes = [effects_table(comparison, every), slices_table(comparison, every), interactions_table(comparison, two)]
    for table in [*axes, checkpointers_table(comparison, studies), *own, *tables(comparison)]:
        lines += markdown_section(table) if table else []
    lines += ["## Figures", "", *(f"![{name}](figures/{name}.png)" for name in figures), ""]
    lines += ["Goodput is committed steps per second of wall time, from the supervisor's launch to the target."]
    lines += ["The published clock runs from rank 0's first line to its last: the first launch is free, restarts are charged."]
    lines += [f"All numbers: {', '.join(CSV_FILES)}, report.json.", ""]
    return "\n".join(lines)


def statement_lines(summary: ReportSummary) -> list[str]:
    """A list item per statement, its statistics as an item below it."""
    return [
        line for each in summary.statements for line in (f"- {escaped(each.text)}", *([f"  - {escaped(each.statistics)}"] if each.statistics else []))
    ]


def gate_lines(gates: Sequence[Gate]) -> list[str]:
    """A list item per quality gate."""
    return [f"- {'passed' if gate.passed else '**failed**'}: {escaped(gate.name)}: {escaped(gate.message)}" for gate in gates]


def markdown_study(study: StudyResult, figures: Sequence[str]) -> str:
    """The study's section of report.md."""
    lines = [f"## {escaped(study.name)}: {escaped(headline(study)[0])}", "", f"{escaped(progress(study))}.", ""]
    if study.result is None:
        return "\n".join(lines)
    lines += [f"- {escaped(note)}" for note in study.result.notes] + [""]
    lines += gate_lines(study.result.gates)
    lines += [f"- skipped: {escaped(skip.arm)}: {escaped(skip.reason)}" for skip in study.result.skips] + [""]
    for table in shown_tables(study):
        lines += ["#" + line if line.startswith("## ") else line for line in markdown_section(table, IN_MARKDOWN)]
    lines += [f"![{name}](figures/{name}.png)" for name in figures]
    again = command(study).replace("`", "'")
    return "\n".join([*lines, "", f"{escaped(circumstances(study))}.", "", f"    {printable(again)}", ""])
