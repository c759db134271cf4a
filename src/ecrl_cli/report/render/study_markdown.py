"""Studies for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.report.formats import plural, printable, short
from ecrl_cli.report.model.study_record import StudyResult
from ecrl_cli.report.render.markdown import escaped
from ecrl_cli.report.tables.studies import DisplayColumn, cell, named_tables, shown_columns
from ecrl_cli.report.text.study_summary import circumstances, command, headline, progress
from ecrl_cli.studies.frame.result import Table

ALONE, AMONG_OTHERS, IN_MARKDOWN = 24, 8, 60  # rows


def study_lines(study: StudyResult, most: int = ALONE) -> list[str]:
    """One line on the study, its failed gates, its skips and its main table, `most` rows of it."""
    lines = [f"{printable(study.name)}: {printable(progress(study))}"]
    lines += [f"  gate failed: {printable(gate.name)}: {short(printable(gate.message))}" for gate in study.failed]
    lines += [f"  skipped: {printable(skip.arm)}: {short(printable(skip.reason))}" for skip in (study.result.skips if study.result else ())]
    for name, table in named_tables(study)[:1]:
        lines += _aligned(table, most)
        if len(table.rows) > most:
            lines.append(f"  ... {plural(len(table.rows) - most, 'more row')} in {name}")
    return [*lines, ""]


def _aligned(table: Table, most: int) -> list[str]:
    """The first rows under their labels, words to the left and numbers to the right."""
    columns = shown_columns(table)
    rows = [[printable(column.label) for column in columns], *([cell(row, c).text for c in columns] for row in table.rows[:most])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    return [("  " + "  ".join(_padded(*each) for each in zip(row, widths, columns, strict=True))).rstrip() for row in rows]


def _padded(text: str, width: int, column: DisplayColumn) -> str:
    return text.ljust(width) if column.words else text.rjust(width)


def study_markdown(study: StudyResult, figures: Sequence[str]) -> list[str]:
    """The study's section of report.md."""
    lines = [f"## {escaped(study.name)}: {escaped(headline(study)[0])}", "", f"{escaped(progress(study))}.", ""]
    if study.result is None:
        return lines
    lines += [f"- {escaped(note)}" for note in study.result.notes] + [""]
    lines += [f"- {'passed' if g.passed else '**failed**'}: {escaped(g.name)}: {escaped(g.message)}" for g in study.result.gates]
    lines += [f"- skipped: {escaped(skip.arm)}: {escaped(skip.reason)}" for skip in study.result.skips] + [""]
    for name, table in named_tables(study):
        lines += _table(name, table)
    lines += [f"![{name}](figures/{name}.png)" for name in figures]
    again = command(study).replace("`", "'")
    return [*lines, "", f"{escaped(circumstances(study))}.", "", f"    {printable(again)}", ""]


def _table(name: str, table: Table) -> list[str]:
    columns = shown_columns(table)
    rule = ["---" if column.words else "---:" for column in columns]
    rows = [[escaped(cell(row, column).text) for column in columns] for row in table.rows[:IN_MARKDOWN]]
    lines = [f"### {escaped(table.title)}", ""]
    lines += ["| " + " | ".join(row) + " |" for row in [[escaped(column.label) for column in columns], rule, *rows]]
    cut = f"{plural(len(table.rows) - IN_MARKDOWN, 'more row')} in {name}." if len(table.rows) > IN_MARKDOWN else f"Data: {name}."
    return [*lines, "", f"{escaped(table.note)} {cut}".strip(), ""]
