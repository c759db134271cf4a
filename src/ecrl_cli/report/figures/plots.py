"""The plots of all figures, by seaborn: from a frame with one row per mark, an artist per mark, so that each has its tooltip.

seaborn and pandas are imported where a figure is drawn: together they take a second that a refused folder need not wait for.
Bars and intervals show what `metrics.statistics` computed; seaborn's own intervals are bootstrapped and would be other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from ecrl_cli.report.figures.export import set_tooltip

if TYPE_CHECKING:
    import pandas as pd

BAR_COLUMNS = ["row", "value", "colour", "says"]  # `row`: counted from the top; `says`: shown over the bar in the page
MARK_COLUMNS = ["x", "y", "colour", "says"]
END_COLUMNS = ["row", "low", "high", "colour"]


def bars(axes: Axes, frame: pd.DataFrame, rows: int, thick: float) -> None:
    """Lying bars, `thick` of a row: `frame` has BAR_COLUMNS. `rows`: how many there are, those without a bar among them."""
    import seaborn as sns

    frame = _finite(frame, ["value"])
    if frame.empty:
        return
    palette = {colour: colour for colour in frame["colour"]}
    with _own_frame(axes):
        sns.barplot(
            frame, x="value", y="row", hue="colour", palette=palette, order=range(rows), orient="y", width=thick, dodge=False,
            errorbar=None, saturation=1, linewidth=0, legend=False, ax=axes,
        )  # fmt: skip
    said = dict(zip(frame["row"], frame["says"], strict=True))
    for bar in drawn_bars(axes):
        set_tooltip(bar, said[round(middle(bar))])


def drawn_bars(axes: Axes) -> list[Rectangle]:
    """The bars that seaborn drew, one container after the other."""
    return [bar for container in axes.containers for bar in container if isinstance(bar, Rectangle)]


def middle(bar: Rectangle) -> float:
    """Where a lying bar lies, in rows."""
    return bar.get_y() + bar.get_height() / 2


def marks(axes: Axes, frame: pd.DataFrame, **style: Any) -> None:
    """A marker per row of `frame`, which has MARK_COLUMNS. Not a scatterplot: its points are one artist, and each of these says its value."""
    frame = _finite(frame, ["x", "y"])
    frame["line"] = range(len(frame))
    for line, text in zip(_lines(axes, frame, list(frame["colour"]), linestyle="none", **style), frame["says"], strict=True):
        set_tooltip(line, text)


def intervals(axes: Axes, frame: pd.DataFrame, linewidth: float) -> None:
    """A stroke from `low` to `high` in each row of `frame`, which has END_COLUMNS; a row without an interval has none."""
    frame = _finite(frame, ["low", "high"])
    frame["line"] = range(len(frame))
    ends = frame.melt(["row", "line"], ["low", "high"], value_name="x").rename(columns={"row": "y"})
    _lines(axes, ends, list(frame["colour"]), linewidth=linewidth, solid_capstyle="butt")


def curves(axes: Axes, points: Sequence[Sequence[tuple[float, float]]], colours: Sequence[str], widths: Sequence[float]) -> dict[int, Line2D]:
    """A curve through each of `points`, by its number: the first one lowest. One without points is left out."""
    import pandas as pd

    tidy = [(number, x, y) for number, curve in enumerate(points) for x, y in curve]
    frame = _finite(pd.DataFrame(tidy, columns=["line", "x", "y"]), ["x", "y"])
    found = dict(zip(frame["line"].unique().tolist(), _lines(axes, frame, colours), strict=True))
    for number, line in found.items():
        line.set_linewidth(widths[number])
    return found


def _lines(axes: Axes, frame: pd.DataFrame, colours: Sequence[str], **style: Any) -> list[Line2D]:
    """A line through the rows of `frame` (`line`, `x`, `y`) that have the same number, in the order of their numbers."""
    import seaborn as sns

    if frame.empty:
        return []
    before = len(axes.lines)
    palette = {number: colours[number] for number in frame["line"].unique().tolist()}
    style = {"markeredgecolor": "auto", "markeredgewidth": 1.0} | style
    with _own_frame(axes):
        sns.lineplot(frame, x="x", y="y", hue="line", palette=palette, estimator=None, errorbar=None, sort=False, legend=False, ax=axes, **style)
    return list(axes.lines)[before:]


def _finite(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """A copy of the rows that have a place in the figure."""
    placed = np.isfinite(frame[columns].astype(float).to_numpy()).all(axis=1)
    found: pd.DataFrame = frame.loc[placed].copy()
    return found


@contextmanager
def _own_frame(axes: Axes) -> Iterator[None]:
    """seaborn names the axes after the frame's columns and sets the range of rows; the figure's own are put back."""
    labels, rows = (axes.get_xlabel(), axes.get_ylabel()), axes.get_ylim()
    scaled = axes.get_autoscaley_on()
    yield
    axes.set(xlabel=labels[0], ylabel=labels[1])
    if not scaled:
        axes.set_ylim(rows)
