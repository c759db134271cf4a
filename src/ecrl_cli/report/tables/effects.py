"""The tables of the axes of a sweep: the effect of each, its slices, and interactions of two
axes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.report.formats import in_brackets, share
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.contrast import Contrast, NoiseFloor
from ecrl_cli.report.model.effects import Effect, Interaction, Level, swept
from ecrl_cli.report.tables.comparisons import floor_note, ratio_cells
from ecrl_cli.report.tables.table import Cell, Column, Row, Table, mean_cell, signs_cell

_FLOOR = Column("noise floor", help="what the mean of as many pairs of equal runs may differ by")
_NUMBERS = (
    Column("pairs", "count"),
    Column("goodput", "change", "mean of the ratios of pairs that agree in everything else"),
    Column("95% t", "change"),
    Column(
        "signs", "count", "pairs that went up, the exact interval of their share, the sign test"
    ),
    _FLOOR,
)
_AXIS = (Column("axis"), Column("level"), Column("against"))


def effects_table(comparison: Comparison, found: Sequence[Effect]) -> Table:
    """Table of the effect of each axis on goodput, paired over all others."""
    rows = tuple(
        (*_levels(each.axis.name, each.level, each.base), *_numbers(each.whole))
        for each in swept(found)
    )
    title = (
        "What each axis does to goodput, paired over all"
        f" others{in_brackets(comparison.scale(comparison.passed))}"
    )
    return Table(
        title, (*_AXIS, *_NUMBERS), rows, floor_note(_floor(found)) if rows else "", "effects.csv"
    )


def slices_table(comparison: Comparison, found: Sequence[Effect]) -> Table:
    """The effect of each axis at each level of each other one; of variants too."""
    columns = (*_AXIS, Column("slice"), Column("at"), *_NUMBERS)
    rows = tuple(
        (
            *_levels(effect.axis.name, effect.level, effect.base),
            part.level.axis.name,
            part.level.short,
            *_numbers(part.contrast),
        )
        for effect in found
        for part in effect.slices
    )
    return Table(
        f"The same, slice by slice{in_brackets(comparison.scale(comparison.passed))}",
        columns,
        rows,
        file="effects.csv",
    )


def interactions_table(comparison: Comparison, found: Sequence[Interaction]) -> Table:
    """How far the effect of one axis changes with another."""
    columns = (*_AXIS, Column("changes with"), Column("from"), Column("to"), *_NUMBERS[:4])
    rows = tuple(
        (
            *_levels(each.level.axis.name, each.level, each.base),
            *(each.other.axis.name, each.other_base.short, each.other.short),
            *_numbers(each.contrast)[:4],
        )
        for each in found
    )
    title = (
        "Interactions: by how much the ratio of goodput"
        f" changes{in_brackets(comparison.scale(comparison.passed))}"
    )
    note = "Zero: the two axes act independently of each other." if rows else ""
    return Table(title, columns, rows, note, "interactions.csv")


def effects_brief(found: Sequence[Effect]) -> Table:
    """The effects with the columns that fit in a terminal."""
    floor = [_FLOOR] if _floor(found) else []
    columns = (
        Column("axis"),
        Column("comparison"),
        Column("pairs", "count"),
        Column("goodput", "change"),
        *floor,
    )
    rows = tuple(
        (
            each.axis.name,
            each.whole.title,
            each.whole.pair.n,
            mean_cell(each.whole.pair.mean_of_ratios),
            _against(each.whole),
        )
        for each in swept(found)
    )
    return Table(
        "What each axis does to goodput, paired over all others", columns, rows, file="effects.csv"
    )


def _levels(axis: str, level: Level, base: Level) -> Row:
    return axis, level.short, base.short


def _numbers(found: Contrast) -> Row:
    return (found.pair.n, *ratio_cells(found.pair), signs_cell(found.pair.signs), _against(found))


def _against(found: Contrast) -> Cell:
    return Cell(found.against_floor, small=share(found.noise) if found.noise is not None else "")


def _floor(found: Sequence[Effect]) -> NoiseFloor | None:
    return next((each.whole.floor for each in found if each.whole.floor), None)
