"""The one type of all tables and its four renderers: a value is shown by its kind, sorted by
itself, and escaped in each of them.
"""

from __future__ import annotations

import logging
from functools import partial

import pytest
from matplotlib.figure import Figure

from ecrl_cli.metrics.statistics import signs, summary
from ecrl_cli.report.figures.export import FigureSpec, draw_figures, picture
from ecrl_cli.report.tables.renderers import (
    csv_of,
    markdown_of,
    markdown_section,
    page_rows,
    terminal_of,
)
from ecrl_cli.report.tables.table import (
    Cell,
    Column,
    Table,
    Value,
    interval_cell,
    mean_cell,
    records_table,
    signs_cell,
    text_of,
)

COLUMNS = (
    Column("arm", facet="arm"),
    Column("goodput", "rate", key="goodput_mean"),
    Column("gain", "change"),
    Column("n", "count"),
)
TABLE = Table(
    "Arms",
    COLUMNS,
    (("ovl", 12.345, Cell(-0.25, "", -0.5, 0.0), 1024), ("blk", None, None, None)),
    "A note.",
    "arms.csv",
)
HOSTILE = "=<b>|x|</b>\x1b[31m\u202e https://evil.example"


def test_a_csv_has_the_values_under_their_keys_in_full_precision() -> None:
    assert csv_of(TABLE).decode().splitlines() == [
        "arm,goodput_mean,gain,n",
        "ovl,12.345,-0.25,1024",
        "blk,,,",
    ]
    assert csv_of(records_table([], ("experiment", "n"))) == b"experiment,n\r\n"


def test_markdown_sets_numbers_to_the_right_and_shows_intervals() -> None:
    assert markdown_of(TABLE)[1:] == [
        "| --- | ---: | ---: | ---: |",
        "| ovl | 12.35 | -25.0% \\[-50.0% to +0.0%\\] | 1,024 |",
        "| blk | - | - | - |",
    ]
    assert (
        markdown_section(TABLE)[-2] == "A note. Data: arms.csv."
        and markdown_section(TABLE, 1)[-2] == "A note. 1 more row in arms.csv."
    )


def test_a_terminal_has_its_columns_under_one_another_whatever_they_hold() -> None:
    head, first, second = terminal_of(TABLE)
    assert head.index("n", head.index("gain") + 4) == first.index("1,024") + 4 == second.rindex("-")
    wide = Table(
        "", COLUMNS, (("\N{CJK UNIFIED IDEOGRAPH-6A21}" * 3, 1.0, None, 1), ("a", 1.0, None, 1))
    )
    assert [line.index("1.000") for line in terminal_of(wide)[1:]] == [
        9,
        12,
    ], "a wide character takes two columns"


def test_the_page_sorts_by_values_and_filters_by_facets() -> None:
    first, second = page_rows(TABLE)
    assert [cell.sort for cell in first.cells] == ["ovl", "12.345", "-0.25", "1024.0"] and [
        cell.sort for cell in second.cells
    ][1:] == [""] * 3
    assert (first.cells[2].text, first.cells[2].small) == (
        "\N{MINUS SIGN}25.0%",
        "\N{MINUS SIGN}50.0% to +0.0%",
    )
    assert first.facets == {"arm": "ovl"} and second.cells[1].text == "\N{EN DASH}"
    named = Table("", COLUMNS, ((Cell("ovl against blk", arm="ovl"), "has not ended"),))
    (row,) = page_rows(named)
    assert row.facets == {"arm": "ovl"} and row.cells[1].span == 3, (
        "a reason fills what is left of its row"
    )
    hidden = Table(
        "", (Column("verdict", facet="verdict", hidden=True), Column("arm")), (("valid", "a"),)
    )
    (row,) = page_rows(hidden)
    assert [cell.text for cell in row.cells] == ["a"] and row.facets == {"verdict": "valid"}


def test_every_renderer_escapes() -> None:
    table = Table(
        HOSTILE,
        (Column(HOSTILE),),
        ((HOSTILE,), (Cell(1, text=HOSTILE, small=HOSTILE),)),
        HOSTILE,
        "x.csv",
    )
    text = csv_of(table).decode() + "\n".join([*markdown_section(table), *terminal_of(table)])
    assert text.replace("\r\n", "").replace("\n", "").isprintable()
    assert all(line.startswith("'=") for line in csv_of(table).decode().splitlines()[:2])
    assert "<b>" not in "\n".join(markdown_section(table)) and "https://evil" not in "\n".join(
        markdown_section(table)
    )
    assert all(
        cell.text.isprintable() and cell.small.isprintable() and cell.sort.isprintable()
        for row in page_rows(table)
        for cell in row.cells
    )


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (None, "count", "-"),
        ("", "text", "-"),
        (True, "text", "yes"),
        (0.5, "percent", "50.0%"),
        (1.0, "share", "100%"),
        (1234.5, "measured", "1,234"),
        ("9 pairs", "count", "9 pairs"),
        (1337, "text", "1337"),
        (Cell(0.25, "seconds"), "count", "250 ms"),
        (interval_cell(0.0, 1.0), "count", "0 to 1"),
        (interval_cell(None, 1.0), "count", "-"),
        (mean_cell(summary([1.0, 3.0]), "magnitude"), "text", "2 [1 to 3 (range)]"),
        (mean_cell(None), "count", "-"),
        (mean_cell(summary([0.1, 0.1, 0.1]), "change"), "text", "+10.0% [all identical]"),
        (interval_cell(0.1, 0.1 + 1e-16), "change", "all identical"),
        (interval_cell(0.1, 0.1 + 1e-9), "change", "+10.0% to +10.0%"),
        (
            signs_cell(signs([1.0, 2.0, -1.0, 0.0])),
            "count",
            "2 of 3 up, 1 equal (9.4% to 99.2%, p = 1.000)",
        ),
    ],
)
def test_a_value_is_shown_by_its_kind(value: Value, kind: str, shown: str) -> None:
    assert text_of(value, Column("", kind)) == shown


def labelled(text: str) -> Figure:
    figure = Figure(figsize=(2, 1), layout="constrained")
    figure.subplots().set_ylabel(text)
    return figure


def test_what_matplotlib_warns_of_does_not_reach_the_user() -> None:
    """A script that its font lacks, a label that crushes the axes, a cache folder that it may not
    make.
    """
    (made,) = draw_figures(
        [
            FigureSpec(
                "x",
                "\N{CJK UNIFIED IDEOGRAPH-6A21} " + "long " * 60,
                partial(labelled, "\N{CJK UNIFIED IDEOGRAPH-6A21}" * 90),
            )
        ]
    )
    assert made.png and not logging.getLogger("matplotlib").isEnabledFor(logging.WARNING)


def test_a_picture_has_its_title_on_itself() -> None:
    for figure in (labelled("y"), Figure(figsize=(2, 1))):
        height = figure.get_figheight()
        picture("x", "What it shows", figure)
        assert figure.get_suptitle() == "What it shows" and figure.get_figheight() > height
