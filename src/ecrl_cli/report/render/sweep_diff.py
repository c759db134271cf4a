"""Two sweeps side by side as CSV, JSON, Markdown and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ecrl_cli.metrics.statistics import Paired
from ecrl_cli.report.formats import NONE, change, count, listed, plural, printable, share, short
from ecrl_cli.report.model.arms import MEASURES
from ecrl_cli.report.model.comparison import ALL
from ecrl_cli.report.model.paired import above_floor, against_floor, noise_floor, told_apart
from ecrl_cli.report.model.sweep_diff import Against
from ecrl_cli.report.render.markdown import escaped, grid
from ecrl_cli.report.tables.csv_files import as_csv
from ecrl_cli.report.tables.statistics import FORMS, NAMES, SHORT, Table, between, noise_cell, sign_count
from ecrl_cli.report.tables.statistics import pair_cells as words_of
from ecrl_cli.report.tables.statistics_rows import Row, pair_cells, summary_cells

_COMPARED = ("arm", "measure", "pairs", "ratio of means", "BCa", "mean of ratios", "95% t", "BCa", "difference", "signs", "noise floor")


def against_rows(found: Against) -> list[Row]:
    """against.csv: our arms against theirs, by suite (or all), arm and measure."""
    rows = []
    for scope, suites in found.scopes:
        for label in found.labels:
            for measure in MEASURES:
                pair, floor = found.versus(label, measure, suites), found.floor(measure, suites)
                if pair:
                    row: Row = {"suite": scope, "arm": label, "measure": measure, "scale": found.ours.scale(suites), **pair_cells(pair)}
                    reach = floor.of_mean(pair.n) if floor else None
                    row |= {"floor_largest": floor.largest if floor else None, "floor_of_mean": reach, "above_floor": above_floor(pair, floor)}
                    rows.append(row | {"against_floor": against_floor(pair, floor), "told_apart": told_apart(pair, floor)})
    return rows


def effect_rows(found: Against) -> list[Row]:
    """against_effects.csv: the same comparison of two arms on both sides, for every measure."""
    return [
        {"suite": e.scope, "arm": e.arm, "base": e.base, "measure": measure}
        | {f"ours_{key}": value for key, value in _brief(e.ours).items()}
        | {f"theirs_{key}": value for key, value in _brief(e.theirs).items()}
        for measure in MEASURES
        for e in found.effects(measure)
    ]


def _brief(pair: Paired) -> Row:
    return {"pairs": pair.n, "ratio_of_means": pair.ratio_of_means, **summary_cells("mean_of_ratios", pair.mean_of_ratios)}


def against_document(found: Against) -> dict[str, Any]:
    """The part of report.json."""
    return {
        "ours": found.ours_name,
        "theirs": found.theirs_name,
        "sentences": against_sentences(found),
        "environment": [{"key": d.key, "ours": list(d.ours), "theirs": list(d.theirs)} for d in found.differences],
        "settings": found.settings,
        "pairs": [
            {"ours": m.ours.name, "theirs": m.theirs.name, "arm": m.label, "seed": m.ours.seed, "suite": m.ours.suite, "differing": list(m.differing)}
            for m in found.matched
        ],
        "only_ours": [run.name for run in found.alone[0]],
        "only_theirs": [run.name for run in found.alone[1]],
        "not_averaged": found.failed,
        "arms": against_rows(found),
        "effects": effect_rows(found),
    }


def against_sentences(found: Against) -> list[str]:
    """What stands against what, whether the two differ, and what differs around them."""
    told = [
        f"{found.ours_name} against {found.theirs_name}: {plural(len(found.matched), 'pair')} of runs of "
        f"{plural(len({m.ours.suite for m in found.matched}), 'suite')}, scale {found.ours.scale()}."
    ]
    whole = [scope for scope in found.scopes if scope[0] == ALL] or found.scopes
    told += [_told(found, label, *scope) for label in found.labels for scope in whole]
    told.append(_around(found))
    if found.settings:
        told.append("Counterparts differ in " + listed([f"{key} ({plural(n, 'pair')})" for key, n in found.settings.items()]) + ".")
    alone = [f"{plural(len(runs), 'run')} of {name}" for runs, name in zip(found.alone, (found.ours_name, found.theirs_name), strict=True) if runs]
    told += [f"Without a counterpart: {listed(alone)}."] if alone else []
    told += [f"Not averaged, because a quality gate failed on one side: {listed(found.failed)}."] if found.failed else []
    return [sentence for sentence in told if sentence]


def _told(found: Against, label: str, scope: str, suites: Sequence[str]) -> str:
    pair, floor = found.versus(label, "goodput", suites), found.floor("goodput", suites)
    if pair is None or pair.mean_of_ratios is None:
        return ""
    ratios = pair.mean_of_ratios
    result = f"{'faster' if ratios.mean > 0 else 'slower'} here" if told_apart(pair, floor) else "not told apart"
    noise = f"noise floor {share(floor.of_mean(pair.n))}" if floor else "no noise floor: one side has no A/A arm"
    interval = f"95% {between(change, ratios.low, ratios.high)}, " if ratios.low is not None else "no interval, "
    numbers = f"{change(ratios.mean)} (mean of ratios, {interval}{plural(pair.n, 'pair')}; ratio of means {change(pair.ratio_of_means)})"
    where = f" in {scope}" if scope != ALL and len(found.passed) > 1 else ""
    return f"Goodput of {label}{where} is {result}: {numbers}, {noise}, scale {found.ours.scale(suites)}."


def _around(found: Against) -> str:
    keys = [difference.key for difference in found.differences]
    if not keys:
        return "Both were recorded in one environment: same machine, same versions, same source."
    return f"The environments differ in {listed(keys[:8])}" + (f" and {len(keys) - 8} more." if len(keys) > 8 else ".")


def against_lines(found: Against) -> list[str]:
    """For a terminal: the sentences."""
    return [*(printable(sentence) for sentence in against_sentences(found)), ""]


def against_markdown(found: Against) -> str:
    """against.md."""
    lines = [f"# {escaped(found.ours_name)} against {escaped(found.theirs_name)}", ""]
    lines += [*(f"- {escaped(sentence)}" for sentence in against_sentences(found)), ""]
    for table in against_tables(found):
        lines += [f"## {escaped(table.title)}", "", *grid(table.columns, table.rows, table.left), ""]
    return "\n".join([*lines, "All numbers: against.csv, against_effects.csv, report.json.", ""])


def against_files(found: Against) -> dict[str, bytes]:
    """The files of a comparison of two sweeps."""
    return {
        "against.csv": as_csv(against_rows(found)),
        "against_effects.csv": as_csv(effect_rows(found)),
        "against.md": against_markdown(found).encode(),
    }


def against_tables(found: Against) -> list[Table]:
    """What Markdown shows; without empty tables."""
    about = Table(
        "What differs around them",
        ("key", found.ours_name, found.theirs_name),
        [[d.key, _values(d.ours), _values(d.theirs)] for d in found.differences],
        3,
    )
    tables = [about, _arms_table(found), _effects_table(found), _noise_table(found)]
    return [table for table in tables if table.rows]


def _values(values: tuple[str, ...]) -> str:
    return short("; ".join(values), 80) or NONE


def _arms_table(found: Against) -> Table:
    rows = []
    for scope, suites in found.scopes:
        for label in found.labels:
            for measure in tuple(MEASURES) if scope == ALL or len(found.scopes) == 1 else SHORT:
                pair = found.versus(label, measure, suites)
                if pair and (pair.difference.mean or pair.signs.positive):
                    rows.append([scope, label, NAMES[measure], *words_of(pair, FORMS[measure]), noise_cell(pair, found.floor(measure, suites))])
    title = f"{found.ours_name} against {found.theirs_name}, run by run (scale {found.ours.scale()})"
    return Table(title, ("suite", *_COMPARED), rows, 3)


def _effects_table(found: Against) -> Table:
    rows = [
        [e.scope, f"{e.arm} against {e.base}"]
        + [cell for pair in (e.ours, e.theirs) for cell in (count(pair.n), *_ratio_cells(pair), sign_count(pair.signs))]
        for e in found.effects()
    ]
    sides = [f"{what}, {name}" for name in (found.ours_name, found.theirs_name) for what in ("pairs", "mean of ratios", "95% t", "signs")]
    return Table(f"The arms compared on both sides: goodput (scale {found.ours.scale()})", ("suite", "comparison", *sides), rows, 2)


def _ratio_cells(pair: Paired) -> tuple[str, str]:
    ratios = pair.mean_of_ratios
    return (change(ratios.mean), between(change, ratios.low, ratios.high)) if ratios else (NONE, NONE)


def _noise_table(found: Against) -> Table:
    """The noise floor of each side."""
    rows = []
    for name, side in ((found.ours_name, found.ours), (found.theirs_name, found.theirs)):
        for measure in SHORT:
            floor = noise_floor(side, measure, found.passed)
            if floor:
                alike = f"{floor.alike} of {floor.alike + floor.differing}"
                rows.append([name, floor.source, NAMES[measure], count(floor.pairs), share(floor.largest), alike])
    columns = ("sweep", "source", "measure", "pairs", "largest", "ended bit for bit alike")
    return Table(f"The noise floor of each side (scale {found.ours.scale()})", columns, rows, 3)
