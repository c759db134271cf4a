"""The figures of a history: a panel per suite, a curve per arm over the builds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ecrl_cli.report.figures.export import FigureSpec, draw_figures, legend_name
from ecrl_cli.report.figures.plots import MARK_COLUMNS, curves, marks, panels
from ecrl_cli.report.formats import printable, short
from ecrl_cli.report.model.history import FAILING, History, Track
from ecrl_cli.report.model.picture import Picture
from ecrl_cli.report.palette import BAD, INK, Colour, variant_colours
from ecrl_cli.report.tables.history import STATUS_WORDS
from ecrl_cli.report.tables.runs import KINDS
from ecrl_cli.report.tables.table import FORMATS

MOST_TICKS = 8  # builds named below an axis
TITLES = {
    "goodput": ("Goodput over the builds, in committed steps per second", "steps/s"),
    "stall_per_checkpoint_s": ("Stall per checkpoint over the builds, in seconds", "seconds"),
    "durable_write_per_checkpoint_s": (
        "Save over the builds: from serialising to durable, in seconds per checkpoint",
        "seconds",
    ),
}


def history_pictures(history: History) -> list[Picture]:
    """A figure per measure that some build has; none of a single build."""
    if len(history.builds) < 2:
        return []
    specs = [
        FigureSpec(
            measure.removesuffix("_s").replace("_", "-"),
            title,
            partial(_draw, history, measure, unit),
        )
        for measure, (title, unit) in TITLES.items()
        if any(_values(track, measure) for track in history.tracks)
    ]
    return draw_figures(specs)


def _draw(history: History, measure: str, unit: str) -> Figure:
    tracks = [track for track in history.tracks if _values(track, measure)]
    suites = sorted({track.suite for track in tracks})
    figure, shown = panels(len(suites), 2.2)
    labels = sorted({track.arm for track in tracks})
    colours = variant_colours(labels)
    for axes, suite in zip(shown, suites, strict=True):
        _panel(
            axes,
            history,
            sorted((t for t in tracks if t.suite == suite), key=lambda t: t.arm),
            measure,
            colours,
        )
        axes.set_title(printable(suite), fontsize=9, loc="left", color=INK.light)
        axes.set_ylabel(unit)
        axes.set_xlabel("build, the newest last")
    handles = [Patch(color=colours[label].light, label=legend_name(label)) for label in labels]
    if any(point and point.status in FAILING for track in tracks for point in track.points):
        handles.append(Patch(color=BAD.light, label="invalid or not finished"))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=6,
        fontsize=8,
        handlelength=1,
        handleheight=0.5,
    )
    return figure


def _panel(
    axes: Axes, history: History, tracks: Sequence[Track], measure: str, colours: dict[str, Colour]
) -> None:
    """A curve per arm; a cross where the arm failed."""
    import pandas as pd

    form = FORMATS[KINDS[measure]]
    values = [_values(track, measure) for track in tracks]
    curves(
        axes,
        values,
        [colours[track.arm].light for track in tracks],
        [max(1.4, 5.0 - 1.2 * number) for number in range(len(tracks))],
    )  # wide under narrow: equal curves stay visible
    for failed, marker, size in ((False, "o", 4.5), (True, "X", 7.0)):
        rows = []
        for track, points in zip(tracks, values, strict=True):
            for at, value in points:
                point = track.points[int(at)]
                if point and (point.status in FAILING) == failed:
                    says = (
                        f"{history.builds[int(at)].name}, {track.suite} {track.arm}: {form(value)},"
                        f" {STATUS_WORDS[point.status]}"
                    )
                    rows.append(
                        (at, value, BAD.light if failed else colours[track.arm].light, says)
                    )
        marks(axes, pd.DataFrame(rows, columns=MARK_COLUMNS), marker=marker, markersize=size)
    stride = -(-len(history.builds) // MOST_TICKS)
    places = list(range(len(history.builds) - 1, -1, -stride))[::-1]
    axes.set_xticks(
        places,
        [short(printable(history.builds[at].name), 16) for at in places],
        rotation=30,
        ha="right",
        fontsize=7.5,
    )
    axes.set_xlim(-0.3, len(history.builds) - 0.7)
    top = max((value for points in values for _, value in points), default=1.0)
    axes.set_ylim(0, 1.1 * top or 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))


def _values(track: Track, measure: str) -> list[tuple[float, float]]:
    """The builds by number, and the mean of the measure."""
    found = [(float(at), point.mean(measure)) for at, point in enumerate(track.points) if point]
    return [(at, mean.mean) for at, mean in found if mean]
