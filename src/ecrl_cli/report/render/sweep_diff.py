"""Renders the comparison of two sweeps as CSV, JSON, Markdown and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ecrl_cli.report.formats import at_scale, in_brackets, listed, plural, printable, share, short
from ecrl_cli.report.model.arms import MEASURES
from ecrl_cli.report.model.comparison import ALL
from ecrl_cli.report.model.contrast import Contrast, noise_floor
from ecrl_cli.report.model.suite_gates import failed_gates
from ecrl_cli.report.model.sweep_diff import SweepDiff
from ecrl_cli.report.tables.comparisons import COMPARED, SHORT, alike, contrast_cells, ratio_cells
from ecrl_cli.report.tables.records import (
    Record,
    gates_document,
    noise_cells,
    pair_cells,
    summary_cells,
)
from ecrl_cli.report.tables.renderers import csv_of, escaped, markdown_section
from ecrl_cli.report.tables.runs import ARM, NAMES, SUITE
from ecrl_cli.report.tables.table import Cell, Column, Row, Table, records_table, signs_cell
from ecrl_cli.report.text.claims import INDISTINGUISHABLE, fields

FOUND = "{ours} against {theirs}: {pairs} of runs of {suites}{scale}."
GOODPUT = (
    "Goodput of {arm}{where} is {result}: {effect} (mean of ratios, {interval}, {pairs}; ratio of"
    " means {ratio}), {noise}{scale}."
)

_MOST_GATES = 5  # named in a sentence; report.json has all


def against_rows(found: SweepDiff) -> list[Record]:
    """against.csv: our arms against theirs, by suite (or all), arm and measure."""
    return [
        {
            "suite": each.scope,
            "arm": each.arm,
            "measure": each.measure,
            "scale": each.scale,
            **pair_cells(each.pair),
            **noise_cells(each),
        }
        for each in found.contrasts(tuple(MEASURES))
    ]


def effect_rows(found: SweepDiff) -> list[Record]:
    """against_effects.csv: the same comparison of two arms on both sides, for every measure."""
    return [
        {"suite": ours.scope, "arm": ours.arm, "base": ours.base, "measure": measure}
        | {f"ours_{key}": value for key, value in _brief(ours).items()}
        | {f"theirs_{key}": value for key, value in _brief(theirs).items()}
        for measure in MEASURES
        for ours, theirs in found.effects(measure)
    ]


def _brief(each: Contrast) -> Record:
    return {
        "pairs": each.pair.n,
        "ratio_of_means": each.pair.ratio_of_means,
        **summary_cells("mean_of_ratios", each.pair.mean_of_ratios),
    }


def against_document(found: SweepDiff) -> dict[str, Any]:
    """The comparison's part of report.json."""
    return {
        "ours": found.ours_name,
        "theirs": found.theirs_name,
        "sentences": against_sentences(found),
        "environment": [
            {"key": d.key, "ours": list(d.ours), "theirs": list(d.theirs)}
            for d in found.differences
        ],
        "settings": found.settings,
        "pairs": [
            {
                "ours": m.ours.name,
                "theirs": m.theirs.name,
                "arm": m.label,
                "seed": m.ours.seed,
                "suite": m.ours.suite,
                "differing": list(m.differing),
            }
            for m in found.matched
        ],
        "only_ours": [run.name for run in found.unmatched[0]],
        "only_theirs": [run.name for run in found.unmatched[1]],
        "not_averaged": found.failed,
        "arms": against_rows(found),
        "effects": effect_rows(found),
        "their_gates": gates_document(found.theirs.gates),
        "their_verdicts": {run.name: run.verdict.status for run in found.theirs.runs},
    }


def against_sentences(found: SweepDiff) -> list[str]:
    """Sentences on two sweeps: which are compared, whether the arms differ, and how the sweeps
    differ.
    """
    pairs, suites = (
        plural(len(found.matched), "pair"),
        plural(len({m.ours.suite for m in found.matched}), "suite"),
    )
    sentences = [
        FOUND.format(
            ours=found.ours_name,
            theirs=found.theirs_name,
            pairs=pairs,
            suites=suites,
            scale=at_scale(found.ours.scale()),
        )
    ]
    whole = [scope for scope in found.scopes if scope[0] == ALL] or found.scopes
    goodput = [
        found.contrast(label, "goodput", *scope) for label in found.labels for scope in whole
    ]
    sentences += [
        _sentence(each, len(found.passed) > 1)
        for each in goodput
        if each and each.pair.mean_of_ratios
    ]
    keys = [difference.key for difference in found.differences]
    more = f" and {len(keys) - 8} more." if len(keys) > 8 else "."
    alike = "Both were recorded in one environment: same machine, same versions, same source."
    sentences.append(f"The environments differ in {listed(keys[:8])}{more}" if keys else alike)
    if found.settings:
        sentences.append(
            "Counterparts differ in "
            + listed([f"{key} ({plural(n, 'pair')})" for key, n in found.settings.items()])
            + "."
        )
    alone = [
        f"{plural(len(runs), 'run')} of {name}"
        for runs, name in zip(found.unmatched, (found.ours_name, found.theirs_name), strict=True)
        if runs
    ]
    sentences += [f"Without a counterpart: {listed(alone)}."] if alone else []
    gates = failed_gates(found.theirs.gates)
    wrong = [f"{suite}: {gate.name}: {short(gate.message)}" for suite, gate in gates[:_MOST_GATES]]
    more = "; and more" if len(gates) > len(wrong) else ""
    sentences += (
        [f"Gates of {found.theirs_name} that failed: {'; '.join(wrong)}{more}."] if wrong else []
    )
    return sentences + (
        [f"Not averaged, because a quality gate failed on one side: {listed(found.failed)}."]
        if found.failed
        else []
    )


def _sentence(each: Contrast, several: bool) -> str:
    return GOODPUT.format(
        **fields(each)
        | {
            "where": f" in {each.scope}" if each.scope != ALL and several else "",
            "result": {1: "faster here", -1: "slower here", 0: INDISTINGUISHABLE}[each.sign],
            "pairs": plural(each.pair.n, "pair"),
            "noise": (
                f"noise floor {share(each.noise)}"
                if each.noise is not None
                else "no noise floor: one side has no A/A arm"
            ),
        }
    )


def against_lines(found: SweepDiff) -> list[str]:
    """For a terminal: the sentences."""
    return [*(printable(sentence) for sentence in against_sentences(found)), ""]


def against_files(found: SweepDiff) -> dict[str, bytes]:
    """The files of a comparison of two sweeps."""
    return {
        "against.csv": csv_of(records_table(against_rows(found))),
        "against_effects.csv": csv_of(records_table(effect_rows(found))),
        "against.md": against_markdown(found).encode(),
    }


def against_markdown(found: SweepDiff) -> str:
    """against.md."""
    lines = [f"# {escaped(found.ours_name)} against {escaped(found.theirs_name)}", ""]
    lines += [*(f"- {escaped(sentence)}" for sentence in against_sentences(found)), ""]
    lines += [line for table in against_tables(found) for line in markdown_section(table)]
    return "\n".join([*lines, "All numbers: against.csv, against_effects.csv, report.json.", ""])


def against_tables(found: SweepDiff) -> list[Table]:
    """The tables for Markdown and the page, without empty ones."""
    around = Table(
        "What differs around them",
        (Column("key"), Column(found.ours_name), Column(found.theirs_name)),
        tuple(
            (d.key, short("; ".join(d.ours), 80) or None, short("; ".join(d.theirs), 80) or None)
            for d in found.differences
        ),
        file="report.json",
    )
    return [
        table
        for table in (around, _arms_table(found), _effects_table(found), _noise_table(found))
        if table
    ]


def _arms_table(found: SweepDiff) -> Table:
    """All measures for a scope that covers everything; otherwise the main ones."""
    whole = {scope for scope, _ in found.scopes if scope == ALL or len(found.scopes) == 1}
    shown = [
        each
        for each in found.contrasts(tuple(MEASURES))
        if (each.scope in whole or each.measure in SHORT)
        and (each.pair.difference.mean or each.pair.signs.positive)
    ]
    rows = tuple(
        (each.scope, Cell(each.arm, arm=each.arm), *contrast_cells(each)) for each in shown
    )
    title = (
        f"{found.ours_name} against {found.theirs_name}, run by"
        f" run{in_brackets(found.ours.scale())}"
    )
    return Table(title, (SUITE, ARM, *COMPARED[2:]), rows, file="against.csv")


def _effects_table(found: SweepDiff) -> Table:
    rows: list[Row] = []
    for pair in found.effects():
        sides = [
            (each.pair.n, *ratio_cells(each.pair), signs_cell(each.pair.signs)) for each in pair
        ]
        rows.append((pair[0].scope, Cell(pair[0].title, arm=pair[0].arm), *sides[0], *sides[1]))
    kinds: Sequence[tuple[str, str]] = (
        ("pairs", "count"),
        ("mean of ratios", "change"),
        ("95% t", "change"),
        ("signs", "count"),
    )
    halves = [
        Column(f"{what}, {name}", kind)
        for name in (found.ours_name, found.theirs_name)
        for what, kind in kinds
    ]
    columns = (SUITE, Column("comparison", facet="arm"), *halves)
    return Table(
        f"The arms compared on both sides: goodput{in_brackets(found.ours.scale())}",
        columns,
        tuple(rows),
        file="against_effects.csv",
    )


def _noise_table(found: SweepDiff) -> Table:
    """The noise floor of each side."""
    sides = ((found.ours_name, found.ours), (found.theirs_name, found.theirs))
    floors = [
        (name, measure, noise_floor(side, measure, found.passed))
        for name, side in sides
        for measure in SHORT
    ]
    rows = tuple(
        (name, floor.source, NAMES[measure], floor.pairs, floor.largest, alike(floor))
        for name, measure, floor in floors
        if floor
    )
    columns = (
        Column("sweep"),
        Column("source"),
        Column("measure"),
        Column("pairs", "count"),
        Column("largest", "percent"),
        Column("ended bit for bit alike", "count"),
    )
    return Table(
        f"The noise floor of each side{in_brackets(found.ours.scale())}",
        columns,
        rows,
        file="report.json",
    )
