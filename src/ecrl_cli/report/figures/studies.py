"""The figures of a study, drawn from its result.json: bars, stacked bars, distributions, lines."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from ecrl_cli.report.figures.export import (
    WIDTH,
    FigureSpec,
    draw_figures,
    legend_name,
    set_tooltip,
)
from ecrl_cli.report.figures.plots import (
    END_COLUMNS,
    MARK_COLUMNS,
    curves,
    drawn_bars,
    intervals,
    marks,
    middle,
    name_rows,
)
from ecrl_cli.report.formats import magnitude, printable, short
from ecrl_cli.report.model.picture import Picture
from ecrl_cli.report.model.study_record import StudyResult, slugs
from ecrl_cli.report.model.timeline_view import thinned
from ecrl_cli.report.palette import INK, MUTED, Colour, series_colours
from ecrl_cli.studies.frame.result import Figure, Series

ROW, HIGHEST = 0.24, 90.0  # inches: height of a bar, maximum height of a figure
MOST_POINTS = 1500
Colours = dict[str, Colour]


def study_pictures(study: StudyResult) -> list[Picture]:
    """Every figure of one study; none if it has no result."""
    figures = study.result.figures if study.result else ()
    named = zip(slugs(figure.name for figure in figures), figures, strict=True)
    return draw_figures(
        [
            FigureSpec(f"{study.ident}.{name}", short(printable(f.title)), partial(draw, f))
            for name, f in named
            if f.series
        ]
    )


def draw(figure: Figure) -> Canvas:
    """Draws `figure`, with a legend if it has more than one series."""
    colours = series_colours([series.label for series in figure.series])
    rows = len(figure.categories) * (len(figure.series) if figure.kind == "bars" else 1.25)
    upright = figure.kind in ("cdf", "lines")
    canvas = Canvas(
        figsize=(
            WIDTH,
            3.1 if upright else min(HIGHEST, ROW * rows + 0.16 * len(figure.categories) + 0.9),
        ),
        layout="constrained",
    )
    axes = canvas.subplots()
    {"bars": _draw_bars, "stacked": _draw_stacked, "cdf": _draw_cdf, "lines": _draw_lines}[
        figure.kind
    ](axes, figure, colours)
    if figure.log_x and upright:
        _logarithmic(axes, figure)
    for at in figure.marks:
        axes.axvline(at, color=MUTED.light, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.5)
    labels = (figure.y_label, figure.x_label) if not upright else (figure.x_label, figure.y_label)
    axes.set_xlabel(short(printable(labels[0])))
    axes.set_ylabel(short(printable(labels[1])))
    _legend(canvas, figure, colours)
    return canvas


def _draw_bars(axes: Axes, figure: Figure, colours: Colours) -> None:
    """Horizontal, so that long names are readable: one bar per series in each category, with its
    interval and its value. Where all intervals lie close together, points on an axis that fits
    them: bars begin at zero and would all look alike.
    """
    import pandas as pd
    import seaborn as sns

    palette = {number: colours[series.label].light for number, series in enumerate(figure.series)}
    thick, rows = 0.84 / len(palette), range(len(figure.categories))
    at = {(number, row): row - 0.42 + thick * (number + 0.5) for number in palette for row in rows}
    tidy = [
        (number, row, value)
        for number, series in enumerate(figure.series)
        for row, value in zip(rows, series.y, strict=False)
    ]
    ends = [
        (at[number, row], low, high, INK.light)
        for number, series in enumerate(figure.series)
        for row, low, high in zip(rows, series.low, series.high, strict=False)
    ]
    close = bool(ends) and min(low for _, low, _, _ in ends) > 0.5 * max(
        high for _, _, high, _ in ends
    )
    if close:
        points = [
            (
                value,
                at[number, row],
                palette[number],
                _tooltip(figure.categories[row], figure.series[number], value),
            )
            for number, row, value in tidy
        ]
        marks(axes, pd.DataFrame(points, columns=MARK_COLUMNS), marker="o", markersize=5)
    else:
        frame = pd.DataFrame(tidy, columns=["series", "row", "value"])
        sns.barplot(
            frame,
            x="value",
            y="row",
            hue="series",
            palette=palette,
            hue_order=list(palette),
            order=rows,
            orient="y",
            width=0.84,
            gap=0.08,
            errorbar=None,
            saturation=1,
            linewidth=0,
            legend=False,
            ax=axes,
        )
        for bar in drawn_bars(axes):
            row = round(middle(bar))
            series = figure.series[round((middle(bar) - row + 0.42) / thick - 0.5)]
            set_tooltip(bar, _tooltip(figure.categories[row], series, series.y[row]))
    intervals(axes, pd.DataFrame(ends, columns=END_COLUMNS), 1.2)
    highest = {place: high for place, _, high, _ in ends}
    for place, value in (
        (at[number, row], value) for number, row, value in tidy if np.isfinite(value)
    ):
        end = max(value, highest.get(place, value))
        axes.annotate(
            magnitude(value),
            (end, place),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.5,
            color=MUTED.light,
        )
    axes.margins(x=0.1)
    _categories(axes, figure)


def _set_tooltips(bars: Iterable[Patch], figure: Figure, series: Series) -> None:
    for bar, category, value in zip(bars, figure.categories, series.y, strict=False):
        set_tooltip(bar, _tooltip(category, series, value))


def _tooltip(category: str, series: Series, value: float) -> str:
    return f"{short(category)}, {short(series.label)}: {magnitude(value)}"


def _draw_stacked(axes: Axes, figure: Figure, colours: Colours) -> None:
    left = [0.0] * len(figure.categories)
    for series in figure.series:
        _set_tooltips(
            axes.barh(
                range(len(left)),
                series.y,
                left=left,
                height=0.72,
                color=colours[series.label].light,
            ),
            figure,
            series,
        )
        left = [start + width for start, width in zip(left, series.y, strict=True)]
    _categories(axes, figure)


def _draw_cdf(axes: Axes, figure: Figure, colours: Colours) -> None:
    """The share of samples at or below each value; the last series is on top."""
    import pandas as pd
    import seaborn as sns

    palette = {number: colours[series.label].light for number, series in enumerate(figure.series)}
    tidy = pd.DataFrame(
        [(number, value) for number, series in enumerate(figure.series) for value in series.y],
        columns=["series", "value"],
    )
    if not tidy.empty:
        upwards = list(palette)[::-1]  # seaborn draws the last one first
        sns.ecdfplot(
            tidy,
            x="value",
            hue="series",
            palette=palette,
            hue_order=upwards,
            legend=False,
            linewidth=1.6,
            ax=axes,
        )
    for line in axes.lines:
        start, *steps = np.asarray(line.get_data(), dtype=float).T.tolist()
        few = thinned(steps, MOST_POINTS)
        # it starts at the first value, not at -inf
        line.set_data([few[0][0], *(x for x, _ in few)], [start[1], *(share for _, share in few)])
    axes.set_ylim(0, 1.02)


def _draw_lines(axes: Axes, figure: Figure, colours: Colours) -> None:
    """The first series widest and at the bottom, so that equal ones stay visible."""
    along = [series.x or tuple(range(len(series.y))) for series in figure.series]
    points = [
        thinned(list(zip(xs, series.y, strict=True)), MOST_POINTS)
        for xs, series in zip(along, figure.series, strict=True)
    ]
    tones = [colours[series.label].light for series in figure.series]
    for number, line in curves(
        axes, points, tones, [max(1.0, 1.8 - 0.4 * number) for number in range(len(points))]
    ).items():
        line.set(marker="o" if len(points[number]) <= 12 else "none", markersize=3)
    for xs, series, tone in zip(along, figure.series, tones, strict=True):
        if series.low:
            axes.fill_between(xs, series.low, series.high, color=tone, alpha=0.18, linewidth=0)
    if figure.categories and not any(series.x for series in figure.series):
        axes.set_xticks(
            range(len(figure.categories)),
            [short(printable(name), 40) for name in figure.categories],
        )
    values = [value for series in figure.series for value in (*series.y, *series.low)]
    if figure.log_y and min(values, default=0) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif all(value >= 0 for value in values):
        axes.set_ylim(bottom=0)


def _categories(axes: Axes, figure: Figure) -> None:
    name_rows(
        axes,
        [(at, short(printable(name), 60)) for at, name in enumerate(figure.categories)],
        len(figure.categories),
    )


def _logarithmic(axes: Axes, figure: Figure) -> None:
    """Makes the x axis logarithmic, unless a value is not positive and would be hidden."""
    values = [
        value
        for series in figure.series
        for value in (series.y if figure.kind == "cdf" else series.x)
    ]
    if not values or min(values) <= 0:
        return
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(
        LogLocator(subs=(1.0, 2.0, 5.0) if max(values) < 300 * min(values) else (1.0,))
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _legend(canvas: Canvas, figure: Figure, colours: Colours) -> None:
    if len(figure.series) > 1:
        handles = [
            Patch(color=colours[series.label].light, label=short(legend_name(series.label), 48))
            for series in figure.series
        ]
        across = max(
            1, min(6, round(110 / (8 + max(len(str(handle.get_label())) for handle in handles))))
        )
        canvas.legend(
            handles=handles,
            loc="outside lower center",
            ncols=across,
            fontsize=8,
            handlelength=1,
            handleheight=0.7,
            columnspacing=1.4,
        )
