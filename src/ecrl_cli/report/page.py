"""The page: one HTML file that asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.report import formats
from ecrl_cli.report.answer import Answer
from ecrl_cli.report.arms import run_versus, versus
from ecrl_cli.report.comparison import Comparison
from ecrl_cli.report.evidence import Run
from ecrl_cli.report.figures import Picture, first_seed
from ecrl_cli.report.palette import CATEGORY_COLOURS, FAMILIES, FAMILY_COLOURS, variables, variant_colours
from ecrl_cli.report.study_answer import badge, circumstances, command, headline, progress
from ecrl_cli.report.study_record import Studied
from ecrl_cli.report.study_tables import cell, named_tables, shown_columns
from ecrl_cli.report.tables import divergence_cells
from ecrl_cli.report.text import in_order
from ecrl_cli.report.view import View, recorded_at
from ecrl_cli.report.words import CATEGORY_WORDS, DEFINITIONS, GATE_WORDS, STUDY_DEFINITIONS

HERE = Path(__file__).parent
MOST_CHECKPOINTS = 40
MOST_OPEN, MOST_ROWS = 60, 400  # rows of a study's table: folded beyond the first, cut at the second
COSTS = ("stall_s", "snapshot_s", "serialize_s", "enqueue_s", "backpressure_s", "write_s", "commit_s")
BADGES = {
    "valid": ("good", "\N{CHECK MARK}", "valid"),
    "invalid": ("bad", "\N{MULTIPLICATION X}", "invalid"),
    "unknown": ("doubt", "?", "unknown"),
    "missing": ("doubt", "?", "not verified"),
}


@dataclass(frozen=True)
class Drawn:
    """The figures: of the runs, and of each study by its ident."""

    runs: Sequence[Picture]
    studies: Mapping[str, Sequence[Picture]]

    @property
    def every(self) -> list[Picture]:
        return [*self.runs, *(picture for pictures in self.studies.values() for picture in pictures)]


def render(comparison: Comparison, studies: Sequence[Studied], said: Answer, drawn: Drawn) -> str:
    """The whole page. Every name in it came from a record and is escaped; only our own SVG, style and script are not."""
    script = (HERE / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    suites = [(suite, in_order(comparison, suite)) for suite in comparison.suites]
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            comparison=comparison,
            said=said,
            studies=studies,
            figures=_in_page(drawn.runs),
            drawn={ident: _in_page(pictures) for ident, pictures in drawn.studies.items()},
            files=[picture.name for picture in drawn.runs],
            words=[*(DEFINITIONS if comparison.runs else ()), *(STUDY_DEFINITIONS if studies else ())],
            made_of=_made_of(comparison, studies),
            suites=suites,
            repeated=any(len(arm.metrics) > 1 for arm in comparison.arms),
            first_seed=first_seed(comparison),
            compared=[(run, divergence_cells(run)) for _, runs in suites for run in runs if run.divergence],
            numbers={id(run): number for number, run in enumerate(run for _, runs in suites for run in runs)},
            colours=variant_colours(list(dict.fromkeys([*comparison.labels, *(run.variant for run in comparison.runs)]))),
            style=Markup((HERE / "page.css").read_text()),
            light=Markup(variables(dark=False)),
            dark=Markup(variables(dark=True)),
            script=Markup(script),
            script_hash=digest,
            when=_when(comparison),
            environment=next((found for found in _environments(comparison, studies) if found), {}),
        )
    )


def _in_page(pictures: Sequence[Picture]) -> list[tuple[Picture, Markup]]:
    return [(picture, Markup(picture.svg)) for picture in pictures if picture.svg]


def _environments(comparison: Comparison, studies: Sequence[Studied]) -> list[dict[str, Any]]:
    return [run.environment for run in comparison.runs] + [study.environment for study in studies]


def _made_of(comparison: Comparison, studies: Sequence[Studied]) -> str:
    parts = [(len(comparison.runs), "run", "runs"), (len(studies), "study", "studies")]
    return formats.listed([formats.plural(*part) for part in parts if part[0]])


def _environment() -> Environment:
    made = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    for name in ("duration", "change", "rate", "count", "size", "share", "plural", "listed", "printable", "magnitude", "number"):
        made.filters[name] = _typeset(getattr(formats, name))
    made.filters["plain"] = _typeset(formats.printable)
    made.filters["ident"] = id
    made.filters["evidence"] = lambda value: formats.printable(json.dumps(value, sort_keys=True, default=str))
    made.globals |= {
        "versus": versus,
        "run_versus": run_versus,
        "badges": BADGES,
        "families": FAMILIES,
        "family_colours": FAMILY_COLOURS,
        "category_colours": CATEGORY_COLOURS,
        "category_words": CATEGORY_WORDS,
        "definitions": DEFINITIONS,
        "gate_words": GATE_WORDS,
        "ticks": ticks,
        "points": points,
        "strip_paths": strip_paths,
        "write_path": write_path,
        "checkpoint_rows": checkpoint_rows,
        "checkpoint_columns": checkpoint_columns,
        "longest": longest,
        "busiest": busiest,
        "disk_points": disk_points,
        "study_headline": headline,
        "study_progress": progress,
        "study_badge": badge,
        "study_command": command,
        "study_circumstances": circumstances,
        "named_tables": named_tables,
        "shown_columns": shown_columns,
        "cell": cell,
        "most_open": MOST_OPEN,
        "most_rows": MOST_ROWS,
    }
    return made


def _typeset(form: Any) -> Any:
    """`form` with a true minus sign, and a dash where there is nothing."""

    def typeset(*values: Any) -> str:
        text = str(form(*values))
        if text == formats.NONE:
            return "\N{EN DASH}"
        return "\N{MINUS SIGN}" + text[1:] if text[:1] == "-" and text[1:2].isdigit() else text

    return typeset


def ticks(longest_s: float, most: int = 6) -> list[float]:
    """Round instants from 0 to `longest_s`, at most `most` of them after 0."""
    if longest_s <= 0:
        return [0.0]
    power = 10 ** math.floor(math.log10(longest_s / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if longest_s / (power * factor) <= most)
    return [step * number for number in range(int(longest_s / step) + 1)]


def points(view: View, longest_s: float) -> list[str]:
    """The progress of each attempt as SVG points in a box of 1000 x 100, y downwards."""
    target = max(1, view.target_steps)
    return [" ".join(f"{1000 * t / longest_s:.1f},{100 - 100 * step / target:.1f}" for t, step in a.progress) for a in view.attempts]


def busiest(view: View) -> float:
    """The most transfers per second."""
    return max((rate.tps for rate in view.disk), default=0.0)


def disk_points(view: View) -> str:
    """Transfers per second as SVG points in a box of 1000 x 100, a step per interval."""
    most, wall_s = busiest(view) or 1.0, view.wall_s
    return " ".join(f"{1000 * t / wall_s:.1f},{100 - 100 * rate.tps / most:.1f}" for rate in view.disk for t in (rate.start, rate.end))


def strip_paths(view: View, longest_s: float) -> dict[str, str]:
    """By family, its stretches as one SVG path in a box of 10000 x 1."""
    paths: dict[str, str] = {}
    for strip in view.strips:
        paths[strip.family] = paths.get(strip.family, "") + _block(strip.start, strip.end, longest_s)
    return paths


def write_path(view: View, longest_s: float) -> str:
    """The checkpoints that became durable, from submission to commit, likewise; each at least wide enough to be seen."""
    least = longest_s / 300
    blocks = [(min(w.start, longest_s - least), max(w.end, w.start + least)) for w in view.writes if w.outcome == "committed"]
    return "".join(_block(start, min(end, longest_s), longest_s) for start, end in blocks)


def _block(start: float, end: float, longest_s: float) -> str:
    left, right = round(10000 * start / longest_s), round(10000 * end / longest_s)
    return f"M{left} 0h{right - left}v1h{left - right}z"


def longest(runs: Sequence[Run]) -> float:
    """The wall time of the longest run that has a timeline."""
    return max([run.view.wall_s for run in runs if run.view], default=0.0)


def checkpoint_columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The times that any of `rows` spent."""
    return [key for key in COSTS if any(row[key] for row in rows)]


def checkpoint_rows(run: Run) -> tuple[list[dict[str, Any]], int]:
    """One row per submitted checkpoint, and how many committed ones were left out to keep the page small (the first and last stay)."""
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for line in run.checkpoints:
        if line.event == "submitted":
            rows[line.attempt, line.global_step] = {"end": "open", "reason": "", "attempt": line.attempt, "global_step": line.global_step}
        row = rows.get((line.attempt, line.global_step))
        if row is not None and line.event != "retired":
            _merge(row, line)
    found = list(rows.values())
    if len(found) <= MOST_CHECKPOINTS:
        return found, 0
    half = MOST_CHECKPOINTS // 2
    kept = [row for i, row in enumerate(found) if i < half or i >= len(found) - half or row["end"] != "committed"]
    return kept, len(found) - len(kept)


def _merge(row: dict[str, Any], line: CheckpointLine) -> None:
    """What `line` adds to its checkpoint's row; a value that several lines repeat counts once."""
    for key in ("bytes", *COSTS):
        row[key] = max(row.get(key, 0), getattr(line, key))
    if line.event in ("committed", "failed", "lost"):
        row["end"], row["reason"] = line.event, line.reason or ""


def _when(comparison: Comparison) -> str:
    """The day of the first run, by its own record."""
    times = [at for at in (recorded_at(run.supervisor.sessions) for run in comparison.runs if run.supervisor) if at]
    return datetime.fromtimestamp(min(times), UTC).strftime("%-d %B %Y") if times else ""
