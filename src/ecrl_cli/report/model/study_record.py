"""A study's result.json, checked strictly: it may come from an untrusted source."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ecrl_cli.config.codec import decode
from ecrl_cli.errors import RecordError, shown
from ecrl_cli.history.load import known_environment
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.report.formats import count, plural
from ecrl_cli.report.model.inputs import StudyInput
from ecrl_cli.studies.frame.result import KINDS, SCHEMA_VERSION, Figure, ResultTable, Series
from ecrl_cli.studies.frame.study import Skip

FIGURE_KINDS = ("bars", "stacked", "cdf", "lines")
# Limits of what a page can show; studies stay far below them.
MOST_BYTES, MOST_CELLS, MOST_ITEMS, MOST_POINTS, MOST_BARS, LARGEST = (
    64 * 2**20,
    1_000_000,
    200,
    1_000_000,
    600,
    1e60,
)


@dataclass(frozen=True)
class Result:
    """The content of result.json."""

    name: str
    study_id: str
    config: dict[str, Any]
    planned: int
    done: int
    complete: bool
    seconds: float
    skips: tuple[Skip, ...]
    tables: tuple[ResultTable, ...]
    figures: tuple[Figure, ...]
    gates: tuple[Gate, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class StudyResult:
    """One study. `ident`: its unique name in file names and anchors. `result`: None if there is no
    result.json.
    """

    input: StudyInput
    ident: str
    result: Result | None
    environment: dict[str, Any]

    @property
    def name(self) -> str:
        return self.result.name if self.result else self.input.name

    @property
    def seed(self) -> str:
        return str(self.result.config.get("seed", "?")) if self.result else "?"

    @property
    def failed(self) -> tuple[Gate, ...]:
        return tuple(gate for gate in self.result.gates if not gate.passed) if self.result else ()

    @property
    def exit_code(self) -> int:
        """0; 1 if a gate failed or trials are missing; 3 if there is no result."""
        if self.result is None:
            return 3
        return 1 if self.failed or not self.result.complete else 0


def read_studies(places: Sequence[StudyInput]) -> list[StudyResult]:
    """The studies at `places`. RecordError, naming file and key, for a result.json that is damaged
    or of another version.
    """
    results = [_result(place) for place in places]
    names = [
        result.name if result else place.name for place, result in zip(places, results, strict=True)
    ]
    idents = [
        slug(place.name if names.count(name) > 1 else name)
        for place, name in zip(places, names, strict=True)
    ]
    idents = [
        f"{ident}-{number}" if idents.count(ident) > 1 else ident
        for number, ident in enumerate(idents, start=1)
    ]
    return [
        StudyResult(p, i, r, _environment(p))
        for p, i, r in zip(places, idents, results, strict=True)
    ]


def slug(text: str) -> str:
    """`text` as a safe part of a file name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:80] or "unnamed"


def slugs(names: Iterable[str]) -> list[str]:
    """Each of `names` as a slug, duplicates distinguished by a number."""
    plain = [slug(name) for name in names]
    return [
        f"{name}-{number}" if plain.count(name) > 1 else name
        for number, name in enumerate(plain, start=1)
    ]


def _result(place: StudyInput) -> Result | None:
    path = place.layout.result
    if not path.exists():
        return None
    where = f"{place.name}/result.json"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"is larger than {MOST_BYTES:,} bytes")
        return _checked(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        fact = (
            str(error.args[0])
            if isinstance(error, KeyError | RecursionError) and error.args
            else str(error)
        )
        raise RecordError(
            shown(where, 120)[1:-1],
            _plain(fact),
            "run the study again: it writes the file from trials.jsonl",
        ) from error


def _plain(text: str) -> str:
    """One short line without control characters."""
    flat = "".join(c if c.isprintable() else " " for c in text)
    return flat if len(flat) <= 160 else flat[:157] + "..."


def _checked(document: Any) -> Result:
    """Decodes and checks `document`; ValueError, TypeError or KeyError with the reason if it is
    invalid.
    """
    if not isinstance(document, dict):
        raise TypeError("is no JSON object")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"has schema version {shown(document.get('schema_version'), 20)}, this ECRL reads"
            f" {SCHEMA_VERSION}"
        )
    result = decode(
        Result,
        {field.name: document[field.name] for field in fields(Result) if field.name in document},
    )
    _refuse(
        any(
            len(items) > MOST_ITEMS
            for items in (result.tables, result.figures, result.gates, result.notes, result.skips)
        ),
        "too many items",
    )
    _refuse(
        not 0 <= result.done <= result.planned,
        f"{result.done} of {result.planned} trials is no count",
    )
    _finite((result.seconds, result.planned), "seconds or planned")
    _check_config(result.config)
    for table in result.tables:
        _check_table(table)
    for figure in result.figures:
        _check_figure(figure)
    return result


def _check_config(config: dict[str, Any]) -> None:
    """Checks that all keys, the study's own included, hold scalars or lists of scalars."""
    inner = config.get("study", {})
    _refuse(not isinstance(inner, dict), "config.study is no object")
    for key, value in (*config.items(), *inner.items()):
        items = value if isinstance(value, list) else [] if value is inner else [value]
        _refuse(
            not all(isinstance(item, str | int | float | None) for item in items),
            f"config: {shown(key, 40)} holds no plain value",
        )
        _finite(
            (item for item in items if isinstance(item, int | float)), f"config: {shown(key, 40)}"
        )


def _check_table(table: ResultTable) -> None:
    where = f"table {shown(table.name, 40)}"
    _refuse(not table.columns, f"{where} has no columns")
    _refuse(len(table.rows) * len(table.columns) > MOST_CELLS, f"{where} has too many cells")
    for column in table.columns:
        _refuse(
            column.kind not in KINDS, f"{where}: column {shown(column.key, 40)} is of no known kind"
        )
    for row in table.rows:
        for key, cell in row.items():
            _refuse(
                not isinstance(cell, str | int | float | None),
                f"{where}: {shown(key, 40)} holds no plain value",
            )
            if isinstance(cell, int | float):
                _finite((cell,), f"{where}: {shown(key, 40)}")


def _check_figure(figure: Figure) -> None:
    where = f"figure {shown(figure.name, 40)}"
    _refuse(
        figure.kind not in FIGURE_KINDS, f"{where} is of no known kind: {shown(figure.kind, 40)}"
    )
    _refuse(
        sum(len(series.y) for series in figure.series) > MOST_POINTS or len(figure.series) > 40,
        f"{where} has too many points",
    )
    if figure.kind in ("bars", "stacked"):
        _refuse(
            len(figure.categories) * len(figure.series) > MOST_BARS, f"{where} has too many bars"
        )
    _refuse(
        len({series.label for series in figure.series}) < len(figure.series),
        f"{where} has two series of one label",
    )
    _finite(figure.marks, f"{where}, marks")
    for series in figure.series:
        _check_series(figure, series, where)


def _check_series(figure: Figure, series: Series, where: str) -> None:
    for values in (series.x, series.y, series.low, series.high):
        _finite(values, where)
    expected = (
        len(series.y)
        if figure.kind == "cdf"
        else len(series.x)
        if figure.kind == "lines" and series.x
        else len(figure.categories)
    )
    lengths = {len(series.y), *(len(values) for values in (series.low, series.high) if values)}
    _refuse(
        lengths != {expected},
        f"{where}: series {shown(series.label, 40)} does not fit its categories or its x",
    )
    _refuse(
        bool(series.low) != bool(series.high),
        f"{where}: series {shown(series.label, 40)} has half an interval",
    )


def _finite(values: Iterable[float], where: str) -> None:
    """ValueError for values that are too large or not finite; NaN fails every comparison and is
    refused too.
    """
    _refuse(
        not all(-LARGEST <= value <= LARGEST for value in values),
        f"{where} holds a number that is not finite or absurdly large",
    )


def _refuse(wrong: bool, fact: str) -> None:
    if wrong:
        raise ValueError(fact)


def _environment(place: StudyInput) -> dict[str, Any]:
    """environment.json, or nothing if it cannot be read: no number depends on it."""
    path = place.layout.environment
    try:
        return (
            known_environment(json.loads(path.read_bytes()))
            if path.stat().st_size <= MOST_BYTES
            else {}
        )
    except (OSError, ValueError, RecursionError):
        return {}


def headline(study: StudyResult) -> tuple[str, str]:
    """The result in one line, without the study's name, and its tone."""
    result = study.result
    if result is None:
        return "no result on record", "doubt"
    failed = [gate for gate in study.failed if result.complete or gate.name != "trials"]
    if failed:
        return f"{len(failed)} of {plural(len(result.gates), 'gate')} failed", "bad"
    if not result.complete:
        return f"{count(result.done)} of {plural(result.planned, 'trial')} done", "doubt"
    if result.skips:
        return (
            f"every gate passed, but {plural(len(result.skips), 'arm was', 'arms were')} skipped",
            "doubt",
        )
    return "every gate passed", "good"
