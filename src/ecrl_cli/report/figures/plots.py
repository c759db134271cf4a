"""The plots of all figures, with seaborn: a frame has one row per mark, and each mark is a separate
artist with its own tooltip.

seaborn and pandas are imported where a figure is drawn: they take a second, and bad input should
fail before that. Bars and intervals show what `metrics.statistics` computed; seaborn's own
intervals are bootstrapped and would differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from ecrl_cli.report.figures.export import WIDTH, set_tooltip

if TYPE_CHECKING:
    import pandas as pd

BAR_COLUMNS = ["row", "value", "colour", "says"]  # `row`: counted from the top; `says`: the tooltip
MARK_COLUMNS = ["x", "y", "colour", "says"]
END_COLUMNS = ["row", "low", "high", "colour"]


def name_rows(axes: Axes, rows: Sequence[tuple[float, str]], end: float) -> None:
    """Names the `rows` (position and label), counted from the top to `end`, in place of a scale: no
    grid lines, no spine beside them.
    """
    axes.set_yticks([at for at, _ in rows], [label for _, label in rows])
    axes.set_ylim(end - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)


def panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes, `height` inches each, in at most two columns; the first one is at
    the left edge.
    """
    columns = min(2, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.4), layout="constrained")
    found = figure.subplots(rows, columns, squeeze=False).flat
    for axes in found[count:]:
        axes.set_axis_off()
    return figure, list(found[:count])


def bars(axes: Axes, frame: pd.DataFrame, rows: int, thick: float) -> None:
    """Horizontal bars, `thick` rows high: `frame` has BAR_COLUMNS. `rows`: number of rows,
    including those without a bar.
    """
    import seaborn as sns

    frame = _finite(frame, ["value"])
    if frame.empty:
        return
    palette = {colour: colour for colour in frame["colour"]}
    with _own_frame(axes):
        sns.barplot(
            frame,
            x="value",
            y="row",
            hue="colour",
            palette=palette,
            order=range(rows),
            orient="y",
            width=thick,
            dodge=False,
            errorbar=None,
            saturation=1,
            linewidth=0,
            legend=False,
            ax=axes,
        )
    labels = dict(zip(frame["row"], frame["says"], strict=True))
    for bar in drawn_bars(axes):
        set_tooltip(bar, labels[round(middle(bar))])


def drawn_bars(axes: Axes) -> list[Rectangle]:
    """The bars that seaborn drew, container by container."""
    return [bar for container in axes.containers for bar in container if isinstance(bar, Rectangle)]


def middle(bar: Rectangle) -> float:
    """The vertical centre of a horizontal bar, in rows."""
    return bar.get_y() + bar.get_height() / 2


def marks(axes: Axes, frame: pd.DataFrame, **style: Any) -> None:
    """A marker per row of `frame`, which has MARK_COLUMNS. Not a scatter plot: its points would
    share one artist and could have no own tooltips.
    """
    frame = _finite(frame, ["x", "y"])
    frame["line"] = range(len(frame))
    for line, text in zip(
        _lines(axes, frame, list(frame["colour"]), linestyle="none", **style),
        frame["says"],
        strict=True,
    ):
        set_tooltip(line, text)


def intervals(axes: Axes, frame: pd.DataFrame, linewidth: float) -> None:
    """A line from `low` to `high` for each row of `frame`, which has END_COLUMNS; rows without an
    interval are skipped.
    """
    frame = _finite(frame, ["low", "high"])
    frame["line"] = range(len(frame))
    ends = frame.melt(["row", "line"], ["low", "high"], value_name="x").rename(columns={"row": "y"})
    _lines(axes, ends, list(frame["colour"]), linewidth=linewidth, solid_capstyle="butt")


def curves(
    axes: Axes,
    points: Sequence[Sequence[tuple[float, float]]],
    colours: Sequence[str],
    widths: Sequence[float],
) -> dict[int, Line2D]:
    """A curve for each of `points`; returns the lines by index. The first is drawn at the bottom;
    empty curves are left out.
    """
    import pandas as pd

    tidy = [(number, x, y) for number, curve in enumerate(points) for x, y in curve]
    frame = _finite(pd.DataFrame(tidy, columns=["line", "x", "y"]), ["x", "y"])
    found = dict(zip(frame["line"].unique().tolist(), _lines(axes, frame, colours), strict=True))
    for number, line in found.items():
        line.set_linewidth(widths[number])
    return found


def _lines(axes: Axes, frame: pd.DataFrame, colours: Sequence[str], **style: Any) -> list[Line2D]:
    """One line per value of `frame["line"]`, through its rows (`x`, `y`), ordered by that value."""
    import seaborn as sns

    if frame.empty:
        return []
    before = len(axes.lines)
    palette = {number: colours[number] for number in frame["line"].unique().tolist()}
    style = {"markeredgecolor": "auto", "markeredgewidth": 1.0} | style
    with _own_frame(axes):
        sns.lineplot(
            frame,
            x="x",
            y="y",
            hue="line",
            palette=palette,
            estimator=None,
            errorbar=None,
            sort=False,
            legend=False,
            ax=axes,
            **style,
        )
    return list(axes.lines)[before:]


def _finite(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """A copy of the rows with finite values in `columns`."""
    placed = np.isfinite(frame[columns].astype(float).to_numpy()).all(axis=1)
    found: pd.DataFrame = frame.loc[placed].copy()
    return found


@contextmanager
def _own_frame(axes: Axes) -> Iterator[None]:
    """Restores axis labels and the row range, which seaborn overwrites."""
    labels, rows = (axes.get_xlabel(), axes.get_ylabel()), axes.get_ylim()
    scaled = axes.get_autoscaley_on()
    # where an axis has no label, seaborn looks at every tick to see whether it is shown
    axes.set(xlabel=labels[0] or "x", ylabel=labels[1] or "y")
    yield
    axes.set(xlabel=labels[0], ylabel=labels[1])
    if not scaled:
        axes.set_ylim(rows)
