"""The page: one HTML file that loads nothing from the network, and its sections of statistics,
published numbers and another sweep.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.report import formats
from ecrl_cli.report.model.arms import MEASURES
from ecrl_cli.report.model.comparison import Comparison, first_seed
from ecrl_cli.report.model.contrast import by_scope
from ecrl_cli.report.model.effects import effects, interactions
from ecrl_cli.report.model.picture import Picture
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.study_record import StudyResult, headline
from ecrl_cli.report.model.sweep_diff import SweepDiff
from ecrl_cli.report.model.timeline_view import recorded_at, ticks
from ecrl_cli.report.palette import (
    CATEGORY_COLOURS,
    FAMILIES,
    FAMILY_COLOURS,
    variables,
    variant_colours,
)
from ecrl_cli.report.render.opening import opening
from ecrl_cli.report.render.publication import Publication
from ecrl_cli.report.render.sweep_diff import against_sentences, against_tables
from ecrl_cli.report.tables import runs
from ecrl_cli.report.tables.checkpointers import checkpointers_table
from ecrl_cli.report.tables.comparisons import (
    SHORT,
    compared_table,
    noise_table,
    overlap_table,
    wins_table,
)
from ecrl_cli.report.tables.disk import disk_table
from ecrl_cli.report.tables.effects import effects_table, interactions_table, slices_table
from ecrl_cli.report.tables.quality import quality_table
from ecrl_cli.report.tables.renderers import MOST_ROWS, cut_note, page_rows
from ecrl_cli.report.tables.runs import measures_table
from ecrl_cli.report.tables.studies import shown_tables
from ecrl_cli.report.tables.table import Table
from ecrl_cli.report.tables.time_parts import restarts_table
from ecrl_cli.report.text.glossary import CATEGORY_WORDS, DEFINITIONS, GATE_WORDS, STUDY_DEFINITIONS
from ecrl_cli.report.text.study_summary import badge, circumstances, command, progress
from ecrl_cli.report.text.summary import ReportSummary

HERE = Path(__file__).parent
MOST_CHECKPOINTS = 40
MOST_OPEN = 60  # rows of a study's table: longer ones are folded
MOST_LINES = 16  # of a table of runs: longer ones scroll
DENSE_FROM = 11  # columns: tables with more are set smaller
MOST_DETAILED = 200  # runs whose timeline, checkpoints and evidence are on the page
MOST_LISTED = 24  # runs that are listed one below the other; more are a picture first
OPENING = ("axes", "effects")  # figures that stand beside the answer
COSTS = (
    "stall_s",
    "snapshot_s",
    "copy_s",
    "serialize_s",
    "enqueue_s",
    "backpressure_s",
    "write_s",
    "hash_s",
    "commit_s",
)
BADGES = {
    "valid": ("good", "\N{CHECK MARK}", "valid"),
    "invalid": ("bad", "\N{MULTIPLICATION X}", "invalid"),
    "unknown": ("doubt", "?", "unknown"),
    "missing": ("doubt", "?", "not verified"),
    # of an arm in a history, never of a run
    "unfinished": ("bad", "\N{HORIZONTAL ELLIPSIS}", "not finished"),
    "not checked": ("doubt", "\N{EN DASH}", "not checked"),  # of a promise, never of a run
}


@dataclass(frozen=True)
class Section:
    """A section: `ident` is its anchor. `folded`: its tables are closed at first. `files`: files
    with more data.
    """

    ident: str
    title: str
    lead: str
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    files: Sequence[str] = ()
    folded: bool = False


@dataclass(frozen=True)
class Figures:
    """The figures of the runs, and of each study by its ident."""

    runs: Sequence[Picture]
    studies: Mapping[str, Sequence[Picture]]

    @property
    def every(self) -> list[Picture]:
        return [
            *self.runs,
            *(picture for pictures in self.studies.values() for picture in pictures),
        ]


def render(
    comparison: Comparison,
    studies: Sequence[StudyResult],
    summary: ReportSummary,
    drawn: Figures,
    parts: Sequence[Section] = (),
) -> str:
    """The whole page, with `parts` between the figures and the list of runs. Names come from
    records and are escaped; only our own SVG, style and script are not.
    """
    of = [(len(comparison.runs), "run", "runs"), (len(studies), "study", "studies")]
    return page_of(
        "page.html.j2",
        **_of_runs(comparison, drawn),
        checkpointers=checkpointers_table(comparison, studies),
        said=summary,
        studies=studies,
        drawn={ident: in_page(pictures) for ident, pictures in drawn.studies.items()},
        parts=[(part, in_page(part.pictures)) for part in parts],
        words=[*(DEFINITIONS if comparison.runs else ()), *(STUDY_DEFINITIONS if studies else ())],
        made_of=formats.listed([formats.plural(*part) for part in of if part[0]]),
        when=_when(comparison),
        environment=next(
            (
                known
                for known in [
                    *(run.environment for run in comparison.runs),
                    *(s.environment for s in studies),
                ]
                if known
            ),
            {},
        ),
    )


def page_of(template: str, **values: Any) -> str:
    """A page in the frame that all share: its style, its script, both themes."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template(template)
        .render(
            **values,
            style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
            light=Markup(variables(dark=False)),
            dark=Markup(variables(dark=True)),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def _of_runs(comparison: Comparison, drawn: Figures) -> dict[str, Any]:
    """The template variables of the runs' sections; empty tables if there is nothing to compare."""
    suites = [(suite, runs.in_order(comparison, suite)) for suite in comparison.suites]
    detailed = _detailed(comparison, [run for _, members in suites for run in members])
    anchors = {id(run): f"run-{number}" for number, run in enumerate(detailed)}
    contrasts = by_scope(comparison)
    shown = in_page(drawn.runs)
    return {
        "comparison": comparison,
        "shown_first": opening(comparison),
        "suites": suites,
        "columns": list(
            dict.fromkeys([*comparison.labels, *(comparison.label(run) for run in comparison.runs)])
        ),
        "anchors": anchors,
        "wins": wins_table(comparison, contrasts) if contrasts else None,
        "axes": effects_table(comparison, effects(comparison)),
        "costs": runs.costs_table(comparison),
        "quality": quality_table(comparison),
        "recoveries": runs.recoveries_table(comparison),
        "disk": disk_table(comparison),
        "arms": runs.arms_table(comparison),
        "runs": runs.runs_table(comparison, anchors),
        "divergence": runs.divergence_table(comparison, anchors),
        "opening": [found for found in shown if found[0].name in OPENING],
        "figures": [found for found in shown if found[0].name not in OPENING],
        "files": [picture.name for picture in drawn.runs],
        "first_seed": first_seed(comparison),
        "colours": variant_colours(
            list(dict.fromkeys([*comparison.labels, *(run.variant for run in comparison.runs)]))
        ),
        "choices": _choices(comparison),
        "known_of": lambda run: _facets(comparison, run),
    }


def _detailed(comparison: Comparison, ordered: Sequence[Run]) -> list[Run]:
    """The runs that the page shows in detail: all, or of more than MOST_DETAILED those that failed
    and one of each arm, so that the page opens at once.
    """
    if len(ordered) <= MOST_DETAILED:
        return list(ordered)
    chosen = {id(run) for runs in first_seed(comparison).values() for run in runs}
    failing = [run for run in ordered if run.failing][:MOST_DETAILED]
    return [*failing, *(run for run in ordered if id(run) in chosen and not run.failing)]


def _facets(comparison: Comparison, run: Run) -> dict[str, str]:
    """The values of a run that the page's filter uses."""
    return {
        "suite": run.suite,
        "arm": comparison.label(run),
        "seed": run.seed,
        "verdict": run.verdict.status,
    }


def _choices(comparison: Comparison) -> dict[str, list[str]]:
    """The choices of the filter: for each facet that distinguishes runs, its values."""
    of = [_facets(comparison, run) for run in comparison.runs]
    found = {
        key: list(dict.fromkeys(known[key] for known in of))
        for key in ("suite", "arm", "seed", "verdict")
    }
    found["seed"].sort(key=formats.by_value)
    return {key: values for key, values in found.items() if len(values) > 1}


def in_page(pictures: Sequence[Picture]) -> list[tuple[Picture, Markup]]:
    """The pictures that the page shows, with their SVG, which is ours and not escaped."""
    return [(picture, Markup(picture.svg)) for picture in pictures if picture.svg]


def load_templates() -> None:
    """Compiles the templates of all pages, which takes a fifth of a second."""
    made = _environment()
    for name in made.list_templates(extensions=["j2"]):
        made.get_template(name)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("duration", "rate", "count", "size", "plural", "printable", "number"):
        made.filters[name] = _typeset(getattr(formats, name))
    made.filters["plain"] = _typeset(formats.printable)
    made.filters["ident"] = id
    made.filters["evidence"] = lambda value: formats.printable(
        json.dumps(value, sort_keys=True, default=str)
    )
    made.globals |= {
        "at_scale": formats.at_scale,
        "ticks": ticks,
        "longest": lambda runs: max((run.view.wall_s for run in runs if run.view), default=0.0),
        "badges": BADGES,
        "families": FAMILIES,
        "family_colours": FAMILY_COLOURS,
        "category_colours": CATEGORY_COLOURS,
        "category_words": CATEGORY_WORDS,
        "gate_words": GATE_WORDS,
        "checkpoint_rows": checkpoint_rows,
        "checkpoint_columns": checkpoint_columns,
        "study_headline": headline,
        "study_progress": progress,
        "study_badge": badge,
        "study_command": command,
        "study_circumstances": circumstances,
        "shown_tables": shown_tables,
        "page_rows": page_rows,
        "cut_note": cut_note,
        "most_open": MOST_OPEN,
        "most_rows": MOST_ROWS,
        "most_lines": MOST_LINES,
        "most_listed": MOST_LISTED,
        "dense_from": DENSE_FROM,
    }
    return made


def _typeset(form: Any) -> Any:
    """`form` with true minus signs, and a dash for a missing value."""

    def typeset(*values: Any) -> str:
        text = str(form(*values))
        return "\N{EN DASH}" if text == formats.NONE else formats.minus(text)

    return typeset


def checkpoint_columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The times that are not zero in all `rows`."""
    return [key for key in COSTS if any(row[key] for row in rows)]


def checkpoint_rows(run: Run) -> tuple[list[dict[str, Any]], int]:
    """One row per submitted checkpoint, and how many committed ones were left out to keep the page
    small (the first and last are kept).
    """
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for line in run.checkpoints:
        if line.event == "submitted":
            rows[line.attempt, line.global_step] = {
                "end": "open",
                "reason": "",
                "attempt": line.attempt,
                "global_step": line.global_step,
            }
        row = rows.get((line.attempt, line.global_step))
        if row is not None and line.event != "retired":
            _merge(row, line)
    found = list(rows.values())
    if len(found) <= MOST_CHECKPOINTS:
        return found, 0
    half = MOST_CHECKPOINTS // 2
    kept = [
        row
        for i, row in enumerate(found)
        if i < half or i >= len(found) - half or row["end"] != "committed"
    ]
    return kept, len(found) - len(kept)


def _merge(row: dict[str, Any], line: CheckpointLine) -> None:
    """Merges `line` into its checkpoint's row; a value repeated on several lines counts once."""
    for key in ("bytes", *COSTS):
        row[key] = max(row.get(key, 0), getattr(line, key))
    if line.event in ("committed", "failed", "lost"):
        row["end"], row["reason"] = line.event, line.reason or ""


def _when(comparison: Comparison) -> str:
    """The date of the first run, from its record."""
    times = [
        at
        for at in (
            recorded_at(run.supervisor.sessions) for run in comparison.runs if run.supervisor
        )
        if at
    ]
    return formats.date(min(times, default=None), "%-d %B %Y")


def sections(
    comparison: Comparison, published: Publication | None = None, diff: SweepDiff | None = None
) -> list[Section]:
    """The sections that have a table."""
    found = [_against(diff)] if diff else []
    found += [_published(published)] if published else []
    return [part for part in [*found, _statistics(comparison)] if part.tables]


def _statistics(comparison: Comparison) -> Section:
    """The statistics of comparisons.csv and its neighbours, over all scopes in one table each."""
    scopes = [
        (scope, suites)
        for scope, suites in reversed(comparison.scopes)
        if set(suites) <= set(comparison.passed)
    ]
    arms = [measures_table(comparison, scope, suites) for scope, suites in scopes]
    compared = [
        compared_table(comparison, scope, suites, SHORT if n else tuple(MEASURES))
        for n, (scope, suites) in enumerate(scopes)
    ]
    tables = [
        slices_table(comparison, effects(comparison)),
        interactions_table(comparison, interactions(comparison)),
        *_joined(arms, f"Arms, measure by measure{formats.at_scale(comparison.scale())}"),
        *_joined(compared, f"Arms compared, pair by pair{formats.at_scale(comparison.scale())}"),
        *(overlap_table(comparison), restarts_table(comparison), noise_table(comparison)),
    ]
    lead = (
        "All measures with their means, deviations and intervals by Student's t and by BCa"
        " bootstrap. Folded, because they are many."
    )
    return Section(
        "statistics", "Statistics", lead, [table for table in tables if table], folded=True
    )


def _joined(tables: Sequence[Table], title: str) -> list[Table]:
    """Joins the same table of several scopes, and shows the scope, which each hides in its first
    column.
    """
    if not tables:
        return []
    columns = (replace(tables[0].columns[0], hidden=False), *tables[0].columns[1:])
    return [
        replace(
            tables[0],
            title=title,
            columns=columns,
            rows=tuple(row for table in tables for row in table.rows),
        )
    ]


def _published(published: Publication) -> Section:
    """The published tables with measured numbers beside the published ones, and their figures.

    The text on the setting is long and mostly the same: it is printed under the first table only.
    """
    lead = (
        "What was published, as printed, beside what was measured here on another machine and at"
        " another scale; each table says what differs."
    )
    files = sorted(name for name in published.files if "/" not in name and name.endswith(".md"))
    first = {table.setting: table for table in reversed(published.tables)}
    tables = []
    for table in published.tables:
        of = first[table.setting]
        differs = table.setting if table is of else f"as under {of.table.title.partition(':')[0]}."
        tables.append(
            replace(table.table, note=f"{table.table.note} What differs: {differs}".strip())
        )
    return Section("published", "Published and measured", lead, tables, published.pictures, files)


def _against(diff: SweepDiff) -> Section:
    """This sweep compared with another one."""
    title, lead = f"Against {diff.theirs_name}", " ".join(against_sentences(diff))
    return Section(
        "against", title, lead, against_tables(diff), files=("against.md", "against_effects.csv")
    )
