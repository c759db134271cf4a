"""Declares a study's tables as columns that read their own values: `table` over any items,
`TableSpec` over groups of records: `TableSpec("cells", "...", by=(fact("mode", "write mode"),),
columns=(...))`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ecrl_cli.studies.frame import result
from ecrl_cli.studies.frame.result import KINDS, PROPORTION_COLUMNS, ResultColumn, ResultTable
from ecrl_cli.studies.frame.study import Record, TrialResults

T = TypeVar("T")
Group = Sequence[Record]
Test = Callable[[Record], object]


@dataclass(frozen=True)
class Cells:
    """One or more columns, and how their values are computed from what a row is about, such as a
    group of records.
    """

    columns: tuple[ResultColumn, ...]
    read: Callable[[Any], Mapping[str, Any]]


def cell(key: str, label: str, kind: str, read: Callable[[Any], Any]) -> Cells:
    """One column with any value of what the row is about; ValueError for a kind that no report
    knows.
    """
    if kind not in KINDS:
        raise ValueError(f"column {key}: {kind!r} is none of {', '.join(KINDS)}")
    return Cells((ResultColumn(key, label, kind),), lambda about: {key: read(about)})


def item(key: str, label: str, kind: str = "text", of: str = "") -> Cells:
    """One column, where a row is a mapping or an object: its value under `of`, or `key`; of a
    mapping without it None.
    """

    def read(about: Any) -> Any:
        name = of or key
        return about.get(name) if isinstance(about, Mapping) else getattr(about, name)

    return cell(key, label, kind, read)


def items(kind: str, **labels: str) -> tuple[Cells, ...]:
    """A column of `kind` per key and label."""
    return tuple(item(key, label, kind) for key, label in labels.items())


def table(
    name: str, title: str, columns: Sequence[Cells], about: Iterable[Any], note: str = ""
) -> ResultTable:
    """A row for each of `about`, as its columns read it."""
    return ResultTable(
        name,
        title,
        tuple(column for cells in columns for column in cells.columns),
        tuple(
            {key: value for cells in columns for key, value in cells.read(row).items()}
            for row in about
        ),
        note,
    )


def fact(key: str, label: str, kind: str = "text") -> Cells:
    """A trial parameter, read from the group's first record: all are alike in the grouping keys."""
    return cell(key, label, kind, lambda group: group[0].facts[key])


def found(key: str, label: str, kind: str = "text") -> Cells:
    """A result, where a row is one record."""
    return cell(key, label, kind, lambda group: group[0].found[key])


def value(key: str, label: str, read: Callable[[Record], Any], kind: str = "text") -> Cells:
    """Any value of the record, where a row is one record."""
    return cell(key, label, kind, lambda group: read(group[0]))


def sums(records: Iterable[Record], *keys: str) -> dict[str, int]:
    """The sum of each of these results."""
    found = list(records)
    return {key: sum(record.found[key] for record in found) for key in keys}


def size(key: str = "n", label: str = "of") -> Cells:
    """The number of records in the group."""
    return cell(key, label, "count", len)


def count(key: str, label: str, test: Test) -> Cells:
    """The number of records that pass `test`."""
    return cell(key, label, "count", lambda group: sum(map(bool, map(test, group))))


def total(key: str, label: str, of: str = "", kind: str = "count") -> Cells:
    """The sum of the results under `of`, or `key`."""
    return cell(key, label, kind, lambda group: sums(group, of or key)[of or key])


def most(key: str, label: str, kind: str = "count", of: str = "") -> Cells:
    """The maximum of the results under `of`, or `key`."""
    return cell(key, label, kind, lambda group: max(record.found[of or key] for record in group))


def counts(labels: Mapping[str, str], count: Callable[[Group], Counter[str]]) -> Cells:
    """A column for each of `labels`: how often `count` has it in the group."""

    def counted(group: Group) -> dict[str, int]:
        times = count(group)
        return {key: times[key] for key in labels}

    return Cells(tuple(ResultColumn(key, label, "count") for key, label in labels.items()), counted)


def outcomes(labels: Mapping[str, str]) -> Cells:
    """Counts of each outcome of `labels`."""
    return counts(labels, lambda group: Counter(record.found["outcome"] for record in group))


def proportion(test: Test, label: str = "count") -> Cells:
    """The share that passes `test`, with intervals."""
    return share(lambda group: sum(map(bool, map(test, group))), len, label)


def share(
    part: Callable[[Group], int],
    whole: Callable[[Group], int],
    label: str = "count",
    of: str = "of",
) -> Cells:
    """`part` of `whole`, with intervals."""
    columns = (
        ResultColumn("k", label, "count"),
        ResultColumn("n", of, "count"),
        *PROPORTION_COLUMNS[2:],
    )
    return Cells(columns, lambda group: result.proportion(part(group), whole(group)))


@dataclass(frozen=True)
class TableSpec:
    """A table of the records of `arms` (default: all) that pass `where`: a row per group with equal
    `by`, in order of first appearance; without `by`, a row per record. `most`: maximum number of
    rows (0: all). `sort`: row order, by each group's first record.
    """

    name: str
    title: str
    arms: tuple[str, ...] = ()
    by: tuple[Cells, ...] = ()
    columns: tuple[Cells, ...] = ()
    note: str | Callable[[TrialResults], str] = ""
    where: Test = lambda record: True
    most: int = 0
    sort: Callable[[Record], Any] | None = None

    def __call__(self, results: TrialResults) -> ResultTable:
        records = [record for record in results.of(*self.arms) if self.where(record)]
        groups = (
            list(grouped(records, self._key).values())
            if self.by
            else [[record] for record in records]
        )
        if sort := self.sort:
            groups.sort(key=lambda group: sort(group[0]))
        return table(
            self.name,
            self.title,
            (*self.by, *self.columns),
            groups[: self.most or None],
            self.note if isinstance(self.note, str) else self.note(results),
        )

    def _key(self, record: Record) -> tuple[Any, ...]:
        return tuple(value for cells in self.by for value in cells.read([record]).values())


def grouped(about: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """`about` by `key`, in the order of first appearance."""
    groups: dict[Any, list[T]] = {}
    for one in about:
        groups.setdefault(key(one), []).append(one)
    return groups


def mutants_table(
    columns: tuple[Cells, ...], title: str = "Planted bugs", arm: str = "planted", note: str = ""
) -> TableSpec:
    """One row per planted bug."""
    return TableSpec("planted", title, (arm,), columns=columns, note=note)


def yes(key: str, label: str, test: Test, words: tuple[str, str] = ("yes", "no")) -> Cells:
    """Whether the record passes `test`, as one of `words`."""
    return value(key, label, lambda record: words[0] if test(record) else words[1])
