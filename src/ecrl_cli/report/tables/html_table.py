"""A table as the page shows it: one shape for all of them, so that each can be filtered, sorted, read aloud and printed alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ecrl_cli.metrics.statistics import Summary
from ecrl_cli.report import formats

_NUMBER = re.compile(r"[+\-\N{MINUS SIGN}<>~]?\d")
_ABSENT = ("", formats.NONE, "\N{EN DASH}")


@dataclass(frozen=True)
class Cell:
    """`value`: what it is sorted by (empty: nothing there). `small`: a second line. `status`: shown as a badge. `arm`: shown with its colour.

    `anchor`: of what it leads to.
    """

    text: str
    value: str = ""
    small: str = ""
    status: str = ""
    arm: str = ""
    anchor: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Line:
    """A row. `of`: what the filter knows of it: suite, arm, seed, verdict; what it does not name is never filtered by."""

    cells: tuple[Cell, ...]
    of: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """`words`: text, to the left; else numbers, to the right. `hint`: what the label cannot say."""

    label: str
    words: bool = False
    hint: str = ""


@dataclass(frozen=True)
class Sheet:
    """`title` names the scale. The first column of words is the heading of its row. `file`: where all of it stands."""

    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    note: str = ""
    file: str = ""


NOTHING = Cell(formats.NONE)


def words(text: str, *, arm: str = "", anchor: str = "") -> Cell:
    return Cell(text or formats.NONE, text, arm=arm, anchor=anchor)


def number(value: float | None, form: Callable[[float | None], str], small: str = "", *, strong: bool = False) -> Cell:
    return NOTHING if value is None else Cell(form(value), repr(float(value)), small, strong=strong)


def mean(found: Summary | None, form: Callable[[float | None], str]) -> Cell:
    """A mean with its interval by Student's t where it has one that can be told apart."""
    if found is None:
        return NOTHING
    low, high = form(found.low), form(found.high)
    return number(found.mean, form, f"{low} to {high}" if low != high else "", strong=True)


def plain_sheet(title: str, labels: Sequence[str], rows: Sequence[Sequence[str]], note: str = "", file: str = "") -> Sheet:
    """A sheet of text as it stands; a column whose every filled cell begins with a number is one of numbers."""
    columns = tuple(Column(label, words=not _numeric([row[i] for row in rows])) for i, label in enumerate(labels))
    return Sheet(title, columns, tuple(Line(tuple(_plain(text) for text in row)) for row in rows), note, file)


def _numeric(texts: Sequence[str]) -> bool:
    filled = [text for text in texts if text not in _ABSENT]
    return bool(filled) and all(_NUMBER.match(text) for text in filled)


def _plain(text: str) -> Cell:
    """Sorted by the number that it begins with, else by itself."""
    if text in _ABSENT:
        return NOTHING
    first = text.split()[0].replace(",", "").rstrip("%").replace("\N{MINUS SIGN}", "-")
    try:
        return Cell(text, repr(float(first)))
    except ValueError:
        return Cell(text, text)
