"""The same tables as plain text for a terminal, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ecrl_cli.errors import visible
from ecrl_cli.report.formats import NONE, change, count, duration, printable, rate, short
from ecrl_cli.report.model.arms import run_versus
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.tables.csv_files import CSV_FILES
from ecrl_cli.report.tables.recoveries import recoveries_table
from ecrl_cli.report.tables.statistics import Table, brief, tables
from ecrl_cli.report.text.summary import Answer

_ENDS = ("committed", "failed", "lost")
COLUMNS = ("variant", "seed", "verdict", "steps", "restarts", "replayed", "goodput", "vs ref", "vs clean", "stall/ckpt", *_ENDS)
_LEFT = 3  # columns of words; the others are numbers and stand to the right


def cells(run: Run, comparison: Comparison) -> list[str]:
    """One run's row of the goodput table."""
    m = run.counted
    verdict = ("not judged" if run.verdict.why else "not verified") if run.verdict.status == "missing" else run.verdict.status
    words = [printable(comparison.label(run)) or NONE, printable(run.seed) or NONE, verdict]
    if m is None:
        steps = f"{run.metrics.committed_steps}/{run.metrics.target_steps}" if run.metrics else NONE
        return [*words, steps, *[NONE] * (len(COLUMNS) - 4)]
    arms = list(comparison.arms)
    numbers = [count(m.committed_steps), count(m.restarts), count(m.replayed_steps), rate(m.goodput)]
    ends = [count(m.checkpoints[key]) for key in _ENDS]
    compared = [change(run_versus(run, arms, "ref")), change(run_versus(run, arms, "clean")), duration(m.stall_per_checkpoint_s)]
    return [*words, *numbers, *compared, *ends]


def in_order(comparison: Comparison, suite: str) -> list[Run]:
    """The runs of a suite, arm by arm, then those that are not compared."""
    compared = [run for arm in comparison.of(suite) for run in arm.runs]
    return compared + [run for run in comparison.runs if run.suite == suite and run not in compared]


def terminal(comparison: Comparison, page: Path) -> str:
    """The goodput table of every suite, the arms compared, what was left out and which gates failed, and where the page is."""
    lines: list[str] = []
    for suite in comparison.suites:
        scale = f"; scale {comparison.scale([suite])}" if any(run.counted for run in comparison.runs if run.suite == suite) else ""
        lines += [f"{printable(suite) or 'no suite'} (goodput in committed steps per second{scale})"]
        lines += aligned([list(COLUMNS), *(cells(run, comparison) for run in in_order(comparison, suite))])
        lines += [f"  gate failed: {gate.name}: {short(printable(gate.message))}" for gate in comparison.gates[suite] if not gate.passed] + [""]
    for table in [*brief(comparison), *_recoveries(comparison)]:
        lines += [printable(table.title), *aligned([list(table.columns), *table.rows], table.left), ""]
    lines += [f"not compared: {printable(run.name)}: {printable(run.reason)}" for run in comparison.left_out]
    lines += [f"not judged: {printable(run.name)}: {printable(run.verdict.why)}" for run in comparison.runs if run.verdict.why]
    lines += [f"note: {printable(note)}" for note in comparison.notes]
    return "\n".join([printable(line) for line in [*lines, f"report: {visible(page)}"]])


def _recoveries(comparison: Comparison) -> list[Table]:
    return [table for table in [recoveries_table(comparison)] if table.rows]


def aligned(rows: Sequence[Sequence[str]], left: int = _LEFT) -> list[str]:
    """Rows with their columns under one another; `left` of them are words."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = [[c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))] for row in rows]
    return [("  " + "  ".join(row)).rstrip() for row in padded]


def markdown(comparison: Comparison, said: Answer, figures: Sequence[str]) -> str:
    """report.md."""
    lines = [f"# {escaped(said.headline)}", "", *(f"- {escaped(sentence)}" for sentence in said.sentences), ""]
    for suite in comparison.suites:
        rows = [cells(run, comparison) for run in in_order(comparison, suite)]
        lines += [f"## {escaped(suite)}", "", f"Scale {escaped(comparison.scale([suite]) or 'unknown')}.", "", *grid(COLUMNS, rows, _LEFT), ""]
        lines += [f"- {'passed' if g.passed else '**failed**'}: {g.name}: {escaped(g.message)}" for g in comparison.gates[suite]] + [""]
    if comparison.left_out:
        lines += ["## Not compared", "", *(f"- {escaped(run.name)}: {escaped(run.reason)}" for run in comparison.left_out), ""]
    if not comparison.runs:
        return "\n".join(lines)
    for table in [*_recoveries(comparison), *tables(comparison)]:
        lines += [f"## {escaped(table.title)}", "", *grid(table.columns, table.rows, table.left), ""]
    lines += ["## Figures", "", *(f"![{name}](figures/{name}.png)" for name in figures), ""]
    lines += ["Goodput is committed steps per second of wall time, from the supervisor's launch to the target."]
    lines += ["The published clock runs from rank 0's first line to its last: the first launch is free, restarts are charged."]
    lines += [f"All numbers: {', '.join(CSV_FILES)}, report.json.", ""]
    return "\n".join(lines)


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """A Markdown table, `left` columns of words."""
    rule = ["---" if i < left else "---:" for i in range(len(columns))]
    return [_row(row) for row in [columns, rule, *rows]]


def _row(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell if set(cell) <= {"-", ":"} else escaped(cell) for cell in row) + " |"


def escaped(text: str) -> str:
    """`text` as Markdown shows it, whatever it holds."""
    plain = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    bare = re.sub(r"(?i)(:)(?=//)|\b(www)(?=\.)", lambda found: f"&#{ord(found[0][0])};{found[0][1:]}", plain)  # no link by itself either
    return "".join("\\" + c if c in "\\`*_[]|~" or (c == "#" and not bare.startswith("&", max(at - 1, 0))) else c for at, c in enumerate(bare))
