"""The report as plain text for a terminal, and as Markdown (report.md): runs, then studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ecrl_cli.errors import visible
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.report.formats import at_scale, in_brackets, plural, printable, short
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.effects import effects, interactions
from ecrl_cli.report.model.study_record import StudyResult
from ecrl_cli.report.model.study_record import headline as study_headline
from ecrl_cli.report.model.suite_gates import failed_gates
from ecrl_cli.report.tables.checkpointers import checkpointers_table
from ecrl_cli.report.tables.comparisons import brief, tables
from ecrl_cli.report.tables.disk import disk_table
from ecrl_cli.report.tables.effects import (
    effects_brief,
    effects_table,
    interactions_table,
    slices_table,
)
from ecrl_cli.report.tables.quality import quality_table
from ecrl_cli.report.tables.records import CSV_FILES
from ecrl_cli.report.tables.renderers import (
    cut_note,
    escaped,
    markdown_of,
    markdown_section,
    terminal_of,
)
from ecrl_cli.report.tables.runs import arms_brief, brief_runs, floor_lines, recoveries_table
from ecrl_cli.report.tables.studies import shown_tables
from ecrl_cli.report.tables.table import Table
from ecrl_cli.report.text.study_summary import circumstances, command, progress
from ecrl_cli.report.text.summary import ReportSummary, broken

MOST_LINES, FEW = 40, 5  # rows of a table of arms, runs that are left out
ARMS_TITLE = "Arms by suite: goodput in committed steps per second, with 95% intervals"
ALONE, AMONG_OTHERS, IN_MARKDOWN = 24, 8, 60  # rows of a study's table


def terminal(
    comparison: Comparison,
    page: Path,
    studies: Sequence[StudyResult] = (),
    *,
    headline: str = "",
    every_run: bool = False,
) -> str:
    """The headline, what broke, the arms by suite, the noise floor, the effects of the axes, failed
    gates, runs left out, and the page's path.
    `every_run`: then a row for each run too, and every table that fits.
    """
    lines = [f"{headline}.", ""] if headline else []
    lines += [*broken(comparison), ""] if broken(comparison) else []
    if comparison.arms:
        lines += [
            ARMS_TITLE + in_brackets(comparison.scale()),
            *_cut(arms_brief(comparison)),
            *(f"  {line}" for line in floor_lines(comparison)),
            "",
        ]
    axes = effects_brief(effects(comparison))
    lines += [axes.title, *_cut(axes), ""] if axes else []
    lines += _every_run(comparison, studies) if every_run else []
    lines += [
        f"gate failed: {suite}: {gate.name}: {short(printable(gate.message))}"
        for suite, gate in failed_gates(comparison.gates)
    ]
    lines += _few(
        [f"not compared: {run.name}: {run.reason}" for run in comparison.left_out], every_run
    )
    lines += _few(
        [
            f"not judged: {run.name}: {run.verdict.why}"
            for run in comparison.runs
            if run.verdict.why
        ],
        every_run,
    )
    lines += [f"note: {note}" for note in comparison.notes]
    return "\n".join([printable(line) for line in [*lines, f"report: {visible(page)}"]])


def _every_run(comparison: Comparison, studies: Sequence[StudyResult]) -> list[str]:
    lines: list[str] = []
    for suite in comparison.suites:
        scale = at_scale(comparison.scale([suite]), "; scale {}")
        lines += [
            f"{printable(suite) or 'no suite'} (goodput in committed steps per second{scale})",
            *terminal_of(brief_runs(comparison, suite)),
            "",
        ]
    for table in [
        *brief(comparison),
        quality_table(comparison),
        recoveries_table(comparison),
        checkpointers_table(comparison, studies),
    ]:
        lines += [table.title, *terminal_of(table), ""] if table else []
    return lines


def _cut(table: Table) -> list[str]:
    more = len(table.rows) - MOST_LINES
    return [
        *terminal_of(table, MOST_LINES),
        *([f"  ... {cut_note(table, MOST_LINES)}"] if more > 0 else []),
    ]


def _few(lines: list[str], every_run: bool) -> list[str]:
    """The first of many `lines`, all if every run was asked for."""
    return (
        lines
        if every_run
        else [
            *lines[:FEW],
            *(
                [f"... and {plural(len(lines) - FEW, 'more run')}: --runs"]
                if len(lines) > FEW
                else []
            ),
        ]
    )


def terminal_study(study: StudyResult, most: int = ALONE) -> list[str]:
    """One line on the study, its failed gates, its skips and the first `most` rows of its main
    table.
    """
    lines = [f"{study.name}: {progress(study)}"]
    lines += [
        f"  gate failed: {printable(gate.name)}: {short(printable(gate.message))}"
        for gate in study.failed
    ]
    lines += [
        f"  skipped: {printable(skip.arm)}: {short(printable(skip.reason))}"
        for skip in (study.result.skips if study.result else ())
    ]
    for table in shown_tables(study)[:1]:
        lines += terminal_of(table, most)
        lines += (
            [f"  ... {plural(len(table.rows) - most, 'more row')} in {table.file}"]
            if len(table.rows) > most
            else []
        )
    return [printable(line) for line in [*lines, ""]]


def markdown(
    comparison: Comparison,
    summary: ReportSummary,
    figures: Sequence[str],
    studies: Sequence[StudyResult] = (),
) -> str:
    """The runs' part of report.md."""
    lines = [f"# {escaped(summary.headline)}", "", *statement_lines(summary), ""]
    for suite in comparison.suites:
        scale = at_scale(comparison.scale([suite]), "Scale {}.")
        lines += [
            f"## {escaped(suite)}",
            "",
            *([escaped(scale), ""] if scale else []),
            *markdown_of(brief_runs(comparison, suite)),
            "",
            *gate_lines(comparison.gates[suite]),
            "",
        ]
    if comparison.left_out:
        lines += [
            "## Not compared",
            "",
            *(f"- {escaped(run.name)}: {escaped(run.reason)}" for run in comparison.left_out),
            "",
        ]
    if not comparison.runs:
        return "\n".join(lines)
    own = [table(comparison) for table in (quality_table, recoveries_table, disk_table)]
    every, two = effects(comparison), interactions(comparison)
    axes = [
        effects_table(comparison, every),
        slices_table(comparison, every),
        interactions_table(comparison, two),
    ]
    for table in [*axes, checkpointers_table(comparison, studies), *own, *tables(comparison)]:
        lines += markdown_section(table) if table else []
    lines += ["## Figures", "", *(f"![{name}](figures/{name}.png)" for name in figures), ""]
    lines += [
        "Goodput is committed steps per second of wall time, from the supervisor's launch to the"
        " target."
    ]
    lines += [
        "The published clock runs from rank 0's first line to its last: the first launch is free,"
        " restarts are charged."
    ]
    lines += [f"All numbers: {', '.join(CSV_FILES)}, report.json.", ""]
    return "\n".join(lines)


def statement_lines(summary: ReportSummary) -> list[str]:
    """A list item per statement, its statistics as an item below it."""
    return [
        line
        for each in summary.statements
        for line in (
            f"- {escaped(each.text)}",
            *([f"  - {escaped(each.statistics)}"] if each.statistics else []),
        )
    ]


def gate_lines(gates: Sequence[Gate]) -> list[str]:
    """A list item per quality gate."""
    return [
        f"- {'passed' if gate.passed else '**failed**'}: {escaped(gate.name)}:"
        f" {escaped(gate.message)}"
        for gate in gates
    ]


def markdown_study(study: StudyResult, figures: Sequence[str]) -> str:
    """The study's section of report.md."""
    lines = [
        f"## {escaped(study.name)}: {escaped(study_headline(study)[0])}",
        "",
        f"{escaped(progress(study))}.",
        "",
    ]
    if study.result is None:
        return "\n".join(lines)
    lines += [f"- {escaped(note)}" for note in study.result.notes] + [""]
    lines += gate_lines(study.result.gates)
    lines += [
        f"- skipped: {escaped(skip.arm)}: {escaped(skip.reason)}" for skip in study.result.skips
    ] + [""]
    for table in shown_tables(study):
        lines += [
            "#" + line if line.startswith("## ") else line
            for line in markdown_section(table, IN_MARKDOWN)
        ]
    lines += [f"![{name}](figures/{name}.png)" for name in figures]
    again = command(study).replace("`", "'")
    return "\n".join(
        [*lines, "", f"{escaped(circumstances(study))}.", "", f"    {printable(again)}", ""]
    )
