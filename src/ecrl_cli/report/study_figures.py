"""A study's figures, drawn from its result.json as they stand there: bars, stacked bars, distributions, lines."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from ecrl_cli.report.figures import WIDTH, Picture, Sketch, drawn, legend_name, say
from ecrl_cli.report.formats import magnitude, printable, short
from ecrl_cli.report.palette import INK, MUTED, Colour, series_colours
from ecrl_cli.report.study_record import Studied, slugs
from ecrl_cli.report.view import thinned
from ecrl_cli.studies.result import Figure, Series

ROW, HIGHEST = 0.24, 90.0  # inches: a bar, a figure
MOST_POINTS = 1500
Colours = dict[str, Colour]


def study_pictures(study: Studied) -> list[Picture]:
    """Every figure of one study; none where it has no result."""
    figures = study.result.figures if study.result else ()
    named = zip(slugs(figure.name for figure in figures), figures, strict=True)
    return drawn([Sketch(f"{study.ident}.{name}", short(printable(f.title)), partial(draw, f)) for name, f in named if f.series])


def draw(figure: Figure) -> Canvas:
    """`figure`, with a legend where it has more than one series."""
    colours = series_colours([series.label for series in figure.series])
    rows = len(figure.categories) * (len(figure.series) if figure.kind == "bars" else 1.25)
    upright = figure.kind in ("cdf", "lines")
    canvas = Canvas(figsize=(WIDTH, 3.1 if upright else min(HIGHEST, ROW * rows + 0.16 * len(figure.categories) + 0.9)), layout="constrained")
    axes = canvas.subplots()
    {"bars": _bars, "stacked": _stacked, "cdf": _cdf, "lines": _lines}[figure.kind](axes, figure, colours)
    if figure.log_x and upright:
        _logarithmic(axes, figure)
    for at in figure.marks:
        axes.axvline(at, color=MUTED.light, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.5)
    labels = (figure.y_label, figure.x_label) if not upright else (figure.x_label, figure.y_label)
    axes.set_xlabel(short(printable(labels[0])))
    axes.set_ylabel(short(printable(labels[1])))
    _legend(canvas, figure, colours)
    return canvas


def _bars(axes: Axes, figure: Figure, colours: Colours) -> None:
    """Lying bars, so that long names can be read: one per series in each category, with its interval."""
    thick = 0.84 / len(figure.series)
    for number, series in enumerate(figure.series):
        at = [row - 0.42 + thick * (number + 0.5) for row in range(len(figure.categories))]
        _say(axes.barh(at, series.y, height=thick * 0.92, color=colours[series.label].light), figure, series)
        for y, low, high in zip(at, series.low, series.high, strict=False):
            axes.plot([low, high], [y, y], color=INK.light, linewidth=1.2, solid_capstyle="butt")
    _categories(axes, figure)


def _say(bars: Iterable[Patch], figure: Figure, series: Series) -> None:
    for bar, category, value in zip(bars, figure.categories, series.y, strict=False):
        say(bar, f"{short(category)}, {short(series.label)}: {magnitude(value)}")


def _stacked(axes: Axes, figure: Figure, colours: Colours) -> None:
    left = [0.0] * len(figure.categories)
    for series in figure.series:
        _say(axes.barh(range(len(left)), series.y, left=left, height=0.72, color=colours[series.label].light), figure, series)
        left = [start + width for start, width in zip(left, series.y, strict=True)]
    _categories(axes, figure)


def _cdf(axes: Axes, figure: Figure, colours: Colours) -> None:
    """The share of samples at or below each value."""
    for series in figure.series:
        ranked = sorted(series.y)
        steps = thinned([(value, (rank + 1) / len(ranked)) for rank, value in enumerate(ranked)], MOST_POINTS)
        if steps:
            xs, ys = [steps[0][0], *(x for x, _ in steps)], [0.0, *(y for _, y in steps)]
            axes.plot(xs, ys, drawstyle="steps-post", color=colours[series.label].light, linewidth=1.6)
    axes.set_ylim(0, 1.02)


def _lines(axes: Axes, figure: Figure, colours: Colours) -> None:
    """The first series widest and below, so that equal ones stay visible."""
    for number, series in enumerate(figure.series):
        xs = series.x or tuple(range(len(series.y)))
        colour, points = colours[series.label].light, thinned(list(zip(xs, series.y, strict=True)), MOST_POINTS)
        marker = "o" if len(points) <= 12 else None
        axes.plot([x for x, _ in points], [y for _, y in points], color=colour, linewidth=max(1.0, 1.8 - 0.4 * number), marker=marker, markersize=3)
        if series.low:
            axes.fill_between(xs, series.low, series.high, color=colour, alpha=0.18, linewidth=0)
    if figure.categories and not any(series.x for series in figure.series):
        axes.set_xticks(range(len(figure.categories)), [short(printable(name), 40) for name in figure.categories])
    values = [value for series in figure.series for value in (*series.y, *series.low)]
    if figure.log_y and min(values, default=0) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif all(value >= 0 for value in values):
        axes.set_ylim(bottom=0)


def _categories(axes: Axes, figure: Figure) -> None:
    axes.set_yticks(range(len(figure.categories)), [short(printable(name), 48) for name in figure.categories])
    axes.set_ylim(len(figure.categories) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)


def _logarithmic(axes: Axes, figure: Figure) -> None:
    """Where a value is not positive, a logarithm would hide it: then the axis stays as it is."""
    values = [value for series in figure.series for value in (series.y if figure.kind == "cdf" else series.x)]
    if not values or min(values) <= 0:
        return
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if max(values) < 300 * min(values) else (1.0,)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _legend(canvas: Canvas, figure: Figure, colours: Colours) -> None:
    if len(figure.series) > 1:
        handles = [Patch(color=colours[series.label].light, label=short(legend_name(series.label), 48)) for series in figure.series]
        across = max(1, min(6, round(110 / (8 + max(len(str(handle.get_label())) for handle in handles)))))
        canvas.legend(handles=handles, loc="outside lower center", ncols=across, fontsize=8, handlelength=1, handleheight=0.7, columnspacing=1.4)
