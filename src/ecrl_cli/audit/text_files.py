"""Text files of an arm held against those of the undisturbed runs: logs, records of the training
line by line, and other documents.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ecrl_cli.audit.file_contents import MAX_LINE
from ecrl_cli.audit.file_names import is_of_attempt, is_series, is_step
from ecrl_cli.errors import plural

_RECORDS = (".csv", ".tsv", ".jsonl", ".ndjson")
_LOG = re.compile(r"\.(?:log|out|err)$|(?:^|[^a-z])logs?(?:[^a-z]|$)|std(?:out|err)", re.IGNORECASE)
_TEXT = ".txt"
_NAMED = re.compile(r"^\W*([\w. -]+?)\W*[:=]")  # name: value, name = value
_NUMBER = re.compile(r"^-?\d*\.?\d+(?:e[+-]?\d+)?$|^-?nan$|^-?inf$", re.IGNORECASE)

Row = dict[str, str]
Lines = Sequence[str]


@dataclass(frozen=True)
class Restarts:
    """The restarts of an arm: how many; after which of its `last` steps it went on each time, empty
    where that is not known of all; the loss of each step, where all are on record, and the learning
    rates.
    """

    number: int
    after: tuple[int, ...] = ()
    last: int = 0
    losses: tuple[float, ...] = ()
    rates: frozenset[float] = frozenset()

    def cut(self, places: Sequence[int], rows: int) -> bool:
        """Whether the values at `places` of `rows` may be means that the restarts cut: one for each
        at most, and where it is not known what each went on after, none beside another.
        """
        known = self.after and not self.last % max(1, rows)
        apart = all(place + 1 not in places for place in places)
        return (
            rows > 2
            and len(places) <= self.number
            and (bool(known) or apart)
            and all(self.may_cut(place, rows) for place in places)
        )

    def may_cut(self, place: int, rows: int) -> bool:
        """Whether a restart fell inside the steps that row `place` of `rows` is about: of rows that
        are about as many steps each, else any may be.
        """
        if not self.after or not rows or self.last % rows:
            return True
        steps = self.last // rows
        return any(place * steps < after < (place + 1) * steps for after in self.after)

    def uncut(self, place: int, rows: int, due: str, beside: Iterable[str]) -> bool:
        """Whether what is on record refutes that `due`, in row `place` of `rows`, is a cut mean: it
        is a learning rate, or another value of the row (`beside`: those that are as due) is the
        mean of all losses of the row's steps, by four decimals; where the rows do not tell how
        many steps these are, by five.
        """
        equal = rows and not self.last % rows
        sizes = [self.last // rows] if equal else range(2, len(self.losses) // (place + 1) + 1)
        means = [
            math.fsum(self.losses[place * size : (place + 1) * size]) / size
            for size in sizes
            if size > 1 and self.losses
        ]
        fewest = 4 if equal else 5
        return any(_shows(due, rate, 3) for rate in self.rates) or any(
            _shows(text, mean, fewest) for text in beside for mean in means
        )


def _shows(text: str, value: float, fewest: int) -> bool:
    """Whether `text` is `value`, to as many decimals as it has: `fewest` at least."""
    decimals = text.lower().partition("e")[0].partition(".")[2]
    if len(decimals) < fewest or not _NUMBER.match(text):
        return False
    rounding = 0.0 if "e" in text.lower() else 0.51 * 10.0 ** -len(decimals)
    return abs(float(text) - value) <= max(rounding, 2e-6 * abs(value))


CUT = "a mean that the restart cut"  # one value a restart that differs in a record of the training
OWN = "a count, time or path of one attempt, not of the training"


@dataclass(frozen=True)
class Difference:
    """A value under `key`: `due` in the undisturbed runs, `here` in the arm (empty: it is
    missing).
    """

    key: str
    due: str
    here: str


def differences_of_lines(
    name: str, theirs: Sequence[Lines], ours: Lines, restarts: Restarts, anew: int | None = None
) -> tuple[list[Difference], list[str], int]:
    """Differences from the lines in which the undisturbed runs agree, lines that are not judged,
    and how many are the same. `anew`: an attempt that began the file anew, though an earlier one
    had written rows of it.
    """
    path = name.lower()
    agree = all(lines == theirs[0] for lines in theirs)
    if agree and _is_subsequence(theirs[0], ours):
        return (
            [],
            ["has every line of the undisturbed runs, and more (of steps done twice, say)"],
            0,
        )
    if path.endswith(_RECORDS):
        tables = [_table(path, lines) for lines in (*theirs, ours)]
        keys = _key_columns(tables[:-1])
        rows = [_by_key(table, keys) for table in tables]
        if all(rows[:-1]) and (rows[-1] or (anew is not None and len(ours) < 2)):
            return _differences_of_rows(rows[:-1], rows[-1], restarts, anew)
    counts = {len(lines) for lines in (*theirs, ours)}
    if (
        _LOG.search(path)
        or path.endswith(_RECORDS)
        or (path.endswith(_TEXT) and len(counts) > 1 and min(counts) > 1)
    ):
        return [], (["a log with other lines"] if agree else []), 0
    return _differences_of_documents(theirs, ours)


def _is_subsequence(short: Lines, long: Lines) -> bool:
    rest = iter(long)
    return all(line in rest for line in short)


def _table(path: str, lines: Lines) -> list[Row]:
    """The rows as they stand; empty if they cannot be read."""
    return _of_json(lines) if path.endswith(("jsonl", "ndjson")) else _of_csv(path, lines)


def _key_columns(theirs: Sequence[list[Row]]) -> tuple[str, ...]:
    """The columns that name a row: of steps and epochs; where several rows have the same ones and
    say different things, or there are none, one that counts the rows as well. `theirs`: tables of
    the undisturbed runs.
    """
    first = theirs[0]
    steps = tuple(dict.fromkeys(key for row in first for key in row if is_step(key)))
    merged: dict[tuple[str, ...], Row] = {}
    single = bool(steps)
    for row in first:
        known = merged.setdefault(tuple(row.get(key, "") for key in steps), {})
        single = single and all(
            known.get(key, text) in ("", text) for key, text in row.items() if text
        )
        known.update({key: text for key, text in row.items() if text})
    return steps if single else (*_counting(theirs), *steps)


def _counting(theirs: Sequence[list[Row]]) -> tuple[str, ...]:
    """The first column that is another, larger integer in each row, and the same in all runs."""
    for key in theirs[0][0] if theirs[0] else ():
        columns = [[row.get(key, "") for row in rows] for rows in theirs]
        numbers = [int(text) for text in columns[0] if text.isdecimal()]
        if (
            len(numbers) == len(columns[0]) > 1
            and all(one < other for one, other in pairwise(numbers))
            and all(column == columns[0] for column in columns)
        ):
            return (key,)
    return ()


def _by_key(table: list[Row], keys: tuple[str, ...]) -> dict[tuple[str, ...], Row]:
    """The rows by their columns `keys` (else by their place); of two with the same keys the later
    counts, and a row without a value there (evaluation in a row of its own) adds to the one.
    """
    rows: dict[tuple[str, ...], Row] = {}
    for place, row in enumerate(table):
        named = tuple(f"{key} {row[key]}" for key in keys if row.get(key))
        merged = rows.setdefault(named or (f"row {place + 1}",), {})
        merged.update({key: text for key, text in row.items() if text})
    return rows


def _of_csv(path: str, lines: Lines) -> list[Row]:
    header, *body = (
        csv.reader(lines, delimiter="\t" if path.endswith(".tsv") else ",") if lines else ([],)
    )
    if not header or any(_NUMBER.match(cell) for cell in header):
        return [
            {str(place): cell for place, cell in enumerate(cells)}
            for cells in ([header, *body] if header else [])
        ]
    rows = [dict(zip(header, cells, strict=False)) for cells in body if cells != header]
    return [] if any(len(line) > MAX_LINE for line in lines) else rows


def _of_json(lines: Lines) -> list[Row]:
    rows = []
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return []
        if not isinstance(value, dict):
            return []
        rows.append({key: json.dumps(item) for key, item in value.items()})
    return rows


def _differences_of_rows(
    theirs: Sequence[Mapping[tuple[str, ...], Row]],
    ours: Mapping[tuple[str, ...], Row],
    restarts: Restarts,
    anew: int | None,
) -> tuple[list[Difference], list[str], int]:
    first, *others = theirs
    lost = [
        row
        for row, cells in first.items()
        if row not in ours
        and (
            anew is None
            or any(_agreed(others, row, column, cells) for column in cells if not is_step(column))
        )
    ]
    columns: dict[str, list[tuple[int, Difference]]] = {}
    same = 0
    for place, (row, cells) in enumerate(first.items()):
        for column, due in cells.items():
            agreed = row in ours and _agreed(others, row, column, cells)
            here = ours[row].get(column, "") if agreed else due
            same += agreed and here == due
            if here != due and "{dir}" not in due + here:
                columns.setdefault(column, []).append(
                    (place, Difference(f"{column} of {', '.join(row)}", due, here))
                )
    aside = (
        [f"lacks {len(lost)} of {len(first)} rows: what is not yet written is lost with a process"]
        if lost and anew is None
        else []
    )
    differences = []
    if lost and anew is not None:
        rows = plural(len(first) - len(lost), "row")
        kept = f"{rows} (attempt {anew} began it anew)"
        differences.append(Difference("", f"{len(first)} rows", kept))
    table = list(first.items())
    for column, members in columns.items():
        cut = restarts.cut([place for place, _ in members], len(first)) and not any(
            restarts.uncut(
                place,
                len(first),
                difference.due,
                (text for name, text in table[place][1].items() if name not in columns),
            )
            for place, difference in members
        )
        floats = all(
            _NUMBER.match(text)
            for _, difference in members
            for text in (difference.due, difference.here)
        )
        if cut and floats and is_series(column):
            aside.append(f"{members[0][1].key}: {CUT}")
        else:
            differences += [difference for _, difference in members]
    return differences, aside, same


def _agreed(
    others: Sequence[Mapping[tuple[str, ...], Row]], row: tuple[str, ...], column: str, cells: Row
) -> bool:
    """Whether all undisturbed runs have the same there, and it is of the training."""
    return not is_of_attempt(column) and all(
        other.get(row, {}).get(column) == cells[column] for other in others
    )


def _differences_of_documents(
    theirs: Sequence[Lines], ours: Lines
) -> tuple[list[Difference], list[str], int]:
    """Line by line, where all have as many."""
    first = theirs[0]
    if any(len(lines) != len(first) for lines in theirs):
        return [], [], 0
    if len(ours) != len(first):
        absent = [
            line
            for line in first
            if line not in ours and all(line in lines for lines in theirs) and not _of_attempt(line)
        ]
        return (
            [
                Difference("", f"{len(first)} ({line.strip()!r} among them)", f"{len(ours)} lines")
                for line in absent[:1]
            ],
            ([] if absent else ["other lines"]),
            0,
        )
    agreed = [
        place for place, line in enumerate(first) if all(lines[place] == line for lines in theirs)
    ]
    unlike = [place for place in agreed if ours[place] != first[place]]
    judged = [
        place for place in unlike if not (_of_attempt(first[place]) or _of_attempt(ours[place]))
    ]
    aside = [f"line {unlike[0] + 1}: {OWN}"] if len(judged) < len(unlike) else []
    key = "" if len(first) == 1 else "line {}"
    return (
        [
            Difference(key.format(place + 1), repr(first[place]), repr(ours[place]))
            for place in judged
        ],
        aside,
        len(agreed) - len(unlike),
    )


def _of_attempt(line: str) -> bool:
    named = _NAMED.match(line)
    return "{dir}" in line or (named is not None and is_of_attempt(named[1].strip()))
