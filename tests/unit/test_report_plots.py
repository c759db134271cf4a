"""Figures drawn with seaborn: what a mark shows is the number it stands for, and nothing of a
drawing stays behind.
"""

from __future__ import annotations

import ast
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import ecrl_cli.report.build
from ecrl_cli.replication.report.figures import published_pictures
from ecrl_cli.replication.report.sample import experiments
from ecrl_cli.report.figures.export import FigureSpec, draw_figures
from ecrl_cli.report.figures.plots import (
    BAR_COLUMNS,
    END_COLUMNS,
    MARK_COLUMNS,
    bars,
    curves,
    drawn_bars,
    intervals,
    marks,
    middle,
)
from ecrl_cli.report.figures.runs import draw_effects, draw_goodput, draw_losses
from ecrl_cli.report.figures.studies import draw
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.contrast import by_scope
from ecrl_cli.studies.frame.result import Figure as StudyFigure
from ecrl_cli.studies.frame.result import Series
from tests.unit.published_runs import matrix
from tests.unit.report_runs import compared, full_sweep

REPORT = Path(ecrl_cli.report.build.__file__).parent
COLOUR = "#009e73"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return full_sweep(
        tmp_path_factory.mktemp("report") / "sweep", ("one", "two"), ("ref", "blk", "ovl")
    )


@pytest.fixture
def axes() -> Axes:
    return Figure().subplots()


@pytest.fixture
def plotted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of seaborn's plots, as they are called."""
    called: list[str] = []

    def noted(name: str, plot: Any, *args: Any, **named: Any) -> Any:
        called.append(name)
        return plot(*args, **named)

    for name in ("barplot", "lineplot", "ecdfplot"):
        monkeypatch.setattr(sns, name, partial(noted, name, getattr(sns, name)))
    return called


def frame(columns: list[str], *rows: tuple[object, ...]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=columns)


def test_the_bar_of_an_arm_is_as_long_as_its_goodput(two: Comparison, plotted: list[str]) -> None:
    (axes,) = draw_goodput(two).axes
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    rows = dict(zip(axes.get_yticks(), two.arms, strict=True))
    assert names == [arm.label for arm in two.arms] and len(rows) == 6
    shown = {round(middle(bar)): bar.get_width() for bar in drawn_bars(axes)}
    assert shown == {
        row: pytest.approx(arm.shown("goodput"), rel=1e-12) for row, arm in rows.items()
    }
    assert [bar.get_height() for bar in drawn_bars(axes)] == pytest.approx([0.72] * 6)
    strokes = {
        line.get_ydata()[0]: list(line.get_xdata())
        for line in axes.lines
        if len(line.get_xdata()) == 2
    }
    summaries = {row: arm.summary("goodput") for row, arm in rows.items()}
    assert strokes == {row: [s.low, s.high] for row, s in summaries.items() if s}, (
        "Student's intervals, not seaborn's own"
    )
    points = [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.lines
        if len(line.get_xdata()) == 1
    ]
    assert points == [(m.goodput, row) for row, arm in rows.items() for m in arm.metrics]
    assert plotted == ["barplot", "lineplot", "lineplot"]


def test_every_kind_of_figure_that_seaborn_has_a_plot_for_goes_through_it(
    two: Comparison, plotted: list[str]
) -> None:
    draw_losses(two)
    draw_effects(by_scope(two))
    assert set(plotted) == {"lineplot"}
    kinds = {"bars": "barplot", "cdf": "ecdfplot", "lines": "lineplot"}
    for kind, plot in kinds.items():
        plotted.clear()
        draw(
            StudyFigure("f", "F", kind, "x", "y", (Series("s", (1.0, 3.0, 2.0)),), ("a", "b", "c"))
        )
        assert plotted[0] == plot


def test_the_published_figures_go_through_seaborn(
    tmp_path: Path, plotted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix(tmp_path / "sweep", ("cifar10-r18-base",))
    shown = experiments(compared(tmp_path / "sweep"))
    monkeypatch.setattr(
        "ecrl_cli.replication.report.figures.draw_figures",
        lambda sketches: [sketch.draw() for sketch in sketches],
    )
    assert len(published_pictures(shown)) == 3
    assert plotted.count("barplot") == 2 and plotted.count("lineplot") == 8


def test_a_value_that_has_no_place_has_no_mark(axes: Axes) -> None:
    bars(
        axes,
        frame(
            BAR_COLUMNS,
            (0, None, COLOUR, "none"),
            (2, 5.0, COLOUR, "five"),
            (3, float("inf"), COLOUR, "inf"),
        ),
        4,
        0.5,
    )
    (bar,) = drawn_bars(axes)
    assert (round(middle(bar)), bar.get_width(), bar.get_height()) == (2, 5.0, 0.5)
    assert bytes.fromhex(str(bar.get_gid()).removeprefix("say-")) == b"five"
    marks(
        axes,
        frame(MARK_COLUMNS, (float("nan"), 0, COLOUR, "none"), (7.0, 2, COLOUR, "seven")),
        marker="o",
    )
    intervals(axes, frame(END_COLUMNS, (0, None, None, COLOUR), (2, 1.0, 6.0, COLOUR)), 1.0)
    point, stroke = axes.lines
    assert (
        list(point.get_xdata()) == [7.0]
        and bytes.fromhex(str(point.get_gid()).removeprefix("say-")) == b"seven"
    )
    assert (list(stroke.get_xdata()), list(stroke.get_ydata())) == ([1.0, 6.0], [2, 2])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("", "")


def test_frames_without_rows_draw_nothing(axes: Axes) -> None:
    bars(axes, frame(BAR_COLUMNS), 0, 0.5)
    marks(axes, frame(MARK_COLUMNS), marker="o")
    intervals(axes, frame(END_COLUMNS), 1.0)
    assert (
        curves(axes, [[], []], [COLOUR, COLOUR], [1.0, 1.0]) == {}
        and not axes.lines
        and not axes.patches
    )


def test_curves_keep_their_order_colour_and_width_beside_one_without_points(axes: Axes) -> None:
    found = curves(
        axes,
        [[(0, 3.0), (1, 2.0)], [], [(1, 5.0), (0, 4.0)]],
        ["#111111", "#222222", "#333333"],
        [3.0, 2.0, 1.0],
    )
    assert list(found) == [0, 2] and list(axes.lines) == list(found.values())
    assert [(line.get_color(), line.get_linewidth()) for line in axes.lines] == [
        ("#111111", 3.0),
        ("#333333", 1.0),
    ]
    assert [list(line.get_ydata()) for line in axes.lines] == [
        [3.0, 2.0],
        [5.0, 4.0],
    ], "as recorded, not sorted"


def test_the_bars_of_a_study_stand_for_their_series_even_where_two_have_one_name() -> None:
    series = (Series("s", (1.0, 2.0)), Series("s", (3.0, float("nan"))), Series("t", (5.0, 6.0)))
    (axes,) = draw(StudyFigure("f", "F", "bars", "x", "y", series, ("a", "b"))).axes
    said = {
        bytes.fromhex(str(bar.get_gid()).removeprefix("say-")).decode(): bar.get_width()
        for bar in drawn_bars(axes)
    }
    assert said == {"a, s: 1": 1.0, "a, s: 3": 3.0, "a, t: 5": 5.0, "b, s: 2": 2.0, "b, t: 6": 6.0}


@pytest.mark.parametrize(
    ("low", "bars_drawn", "from_zero"), [((0.95, 0.94), 0, False), ((0.3, 0.94), 2, True)]
)
def test_values_that_lie_close_together_are_points_on_an_axis_that_fits_them(
    low: tuple[float, float], bars_drawn: int, from_zero: bool
) -> None:
    series = (Series("accuracy", (0.96, 0.95), low=low, high=(0.97, 0.96)),)
    (axes,) = draw(StudyFigure("f", "F", "bars", "x", "y", series, ("a", "b"))).axes
    assert (len(drawn_bars(axes)), axes.get_xlim()[0] <= 0) == (bars_drawn, from_zero)
    assert [text.get_text() for text in axes.texts] == [
        "0.96",
        "0.95",
    ], "each has its value beside it"
    tooltips = [artist.get_gid() for artist in (*axes.lines, *drawn_bars(axes)) if artist.get_gid()]
    assert {bytes.fromhex(gid.removeprefix("say-")).decode() for gid in tooltips} == {
        "a, accuracy: 0.96",
        "b, accuracy: 0.95",
    }


def test_a_distribution_rises_at_its_samples_and_ends_at_one() -> None:
    samples = [3.0, 1.0, 2.0, 2.0]
    (axes,) = draw(
        StudyFigure(
            "f",
            "F",
            "cdf",
            "x",
            "y",
            (Series("a", tuple(samples)), Series("b", ()), Series("c", (4.0,))),
            log_x=True,
        )
    ).axes
    first, last = axes.lines
    assert (list(first.get_xdata()), list(first.get_ydata())) == (
        [1.0, 1.0, 2.0, 2.0, 3.0],
        [0.0, 0.25, 0.5, 0.75, 1.0],
    )
    assert (list(last.get_xdata()), list(last.get_ydata())) == ([4.0, 4.0], [0.0, 1.0])
    assert np.isfinite(axes.get_xlim()).all() and axes.get_xscale() == "log"


def test_drawing_twice_gives_the_same_bytes_and_leaves_no_style(two: Comparison) -> None:
    before = dict(mpl.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, other = (
            draw_figures([FigureSpec("goodput", "Goodput", partial(draw_goodput, two))])
            for _ in range(2)
        )
    assert one == other and "<title>" in one[0].svg
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("package", ["seaborn", "pandas"])
def test_slow_imports_wait_for_the_first_figure(package: str) -> None:
    """They stand inside functions: a folder that is refused need not wait for them. frames.py, all
    pandas, is imported by ecrl.load alone.
    """
    files = {
        path.name: ast.parse(path.read_text(encoding="utf-8"))
        for path in REPORT.rglob("*.py")
        if path.name != "frames.py"
    }
    early = [
        name
        for name, tree in files.items()
        for node in tree.body
        if isinstance(node, ast.Import) and node.names[0].name == package
    ]
    assert not early
    assert any(
        isinstance(node, ast.Import) and node.names[0].name == package
        for node in ast.walk(files["plots.py"])
    )
