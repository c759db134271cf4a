"""Figures 2 to 4 of the matrix, and goodput and loss curves of experiments 1 to 3: bars are
measured, diamonds published.

A circle is the measured value on the published clock, the one comparable with a diamond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ecrl_cli.metrics.statistics import Paired
from ecrl_cli.replication.report.cells import MODELS, suite_name
from ecrl_cli.replication.report.experiments import ARM_WORDS
from ecrl_cli.replication.report.sample import DIVERGENCES, Experiment
from ecrl_cli.replication.report.values import (
    BY_EXPERIMENT,
    BY_SUITE,
    SUITES,
    ExperimentValues,
    SuiteValues,
)
from ecrl_cli.report.figures.export import WIDTH, FigureSpec, draw_figures, set_tooltip
from ecrl_cli.report.figures.plots import (
    BAR_COLUMNS,
    END_COLUMNS,
    MARK_COLUMNS,
    bars,
    curves,
    intervals,
    marks,
    name_rows,
    panels,
)
from ecrl_cli.report.formats import by_value, change, count, duration, magnitude, printable, rate
from ecrl_cli.report.model.picture import Picture
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.timeline_view import thinned
from ecrl_cli.report.palette import (
    INK,
    KNOWN_VARIANTS,
    MUTED,
    OTHER_VARIANTS,
    PAPER,
    Colour,
    variant_colours,
)

ROW = 0.2  # inches per bar
MOST_POINTS = 240  # points per curve
ARMS = ("ref", "blk", "ovl")
_MODEL_COLOURS = dict(zip(MODELS, OTHER_VARIANTS, strict=False))


@dataclass(frozen=True)
class _Beside:
    """One row of bars: the measured value (with interval), the same on the published clock, and the
    published value. `form`: format of the readings.
    """

    label: str
    colour: Colour
    value: float | None
    low: float | None
    high: float | None
    on_published_clock: float | None
    published: float
    form: Callable[[float | None], str]


def published_pictures(found: Sequence[Experiment]) -> tuple[Picture, ...]:
    """Every published figure for which there is a measured value."""
    return tuple(
        draw_figures(
            [sketch for experiment in found if experiment.suites for sketch in _of(experiment)]
        )
    )


def _of(experiment: Experiment) -> list[FigureSpec]:
    if experiment.is_matrix:
        return _matrix(experiment)
    values = BY_EXPERIMENT[experiment.ident]
    where = f"experiment {values.ident[-1]}: {values.title} ({experiment.scale})"
    rows = [("", _goodputs(experiment, values))]
    found = [
        FigureSpec(
            f"goodput_{values.ident}",
            f"Goodput, {where}",
            partial(_rows, rows, "committed steps per second"),
        )
    ]
    return [
        *found,
        FigureSpec(
            f"loss_curves_{values.ident}",
            f"Loss curves, {where}",
            partial(draw_losses, experiment, values),
        ),
    ]


def _matrix(experiment: Experiment) -> list[FigureSpec]:
    shown = [
        suite
        for suite in BY_SUITE
        if suite in experiment.suites and experiment.pair("ovl", "blk", "goodput", [suite])
    ]
    if not shown:
        return []
    figures = (
        (
            "exp4_fig2_normalised_goodput",
            "Figure 2: goodput by suite and strategy, the reference of each suite being 1.0",
            _figure2,
        ),
        (
            "exp4_fig3_overlapped_gain",
            "Figure 3: goodput gained by overlapped over blocking, by suite",
            _figure3,
        ),
        (
            "exp4_fig4_stall_and_gain",
            "Figure 4: stall saved against goodput gained, a point per suite",
            _figure4,
        ),
    )
    return [
        FigureSpec(name, f"{title} ({experiment.scale})", partial(draw, experiment, shown))
        for name, title, draw in figures
    ]


def _figure2(experiment: Experiment, suites: Sequence[str]) -> Figure:
    groups = [
        (suite_name(BY_SUITE[suite]), [_normalised(experiment, suite, arm) for arm in ARMS])
        for suite in suites
    ]
    return _rows(groups, "goodput, reference = 1.0")


def _normalised(experiment: Experiment, suite: str, arm: str) -> _Beside:
    values = BY_SUITE[suite]
    published = getattr(values, arm) / values.ref
    if arm == "ref":
        return _Beside(arm, KNOWN_VARIANTS[arm], 1.0, None, None, None, published, _ratio)
    pair, other = (
        experiment.pair(arm, "ref", measure, [suite])
        for measure in ("goodput", "goodput_published_clock")
    )
    value, low, high = (None if share is None else 1 + share for share in _ends(pair))
    circle = _ends(other)[0]
    return _Beside(
        arm,
        KNOWN_VARIANTS[arm],
        value,
        low,
        high,
        None if circle is None else 1 + circle,
        published,
        _ratio,
    )


def _figure3(experiment: Experiment, suites: Sequence[str]) -> Figure:
    rows = []
    for suite in suites:
        pair, other = (
            experiment.pair("ovl", "blk", measure, [suite])
            for measure in ("goodput", "goodput_published_clock")
        )
        value, low, high = (None if share is None else 100 * share for share in _ends(pair))
        circle = _ends(other)[0]
        values = BY_SUITE[suite]
        on_clock = None if circle is None else 100 * circle
        rows.append(
            _Beside(
                suite_name(values),
                KNOWN_VARIANTS["ovl"],
                value,
                low,
                high,
                on_clock,
                values.ovl_gain,
                _percent,
            )
        )
    figure = _rows([("", rows)], "goodput of overlapped over blocking, in percent (ratio of means)")
    figure.axes[0].axvline(0, color=MUTED.light, linewidth=0.8)
    return figure


def _figure4(experiment: Experiment, suites: Sequence[str]) -> Figure:
    """Figure 4 in two panels, as seconds of stall depend on the scale: as published, and as
    measured on the published clock.
    """
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    there, here = figure.subplots(1, 2)
    _points(there, [(values, -values.stall_change, values.ovl_gain) for values in SUITES], "D")
    measured = []
    for suite in suites:
        stall, pair = (
            experiment.pair("ovl", "blk", "stall_s", [suite]),
            experiment.pair("ovl", "blk", "goodput_published_clock", [suite]),
        )
        gain = _ends(pair)[0]
        if stall and gain is not None:
            measured.append((BY_SUITE[suite], -stall.difference.mean, 100 * gain))
    _points(here, measured, "o")
    for axes, title in (
        (there, "published"),
        (here, f"measured, published clock ({experiment.scale})"),
    ):
        axes.set_title(title, fontsize=9, loc="left", color=INK.light)
        axes.set_xlabel("stall saved by overlapped, in seconds")
        axes.axhline(0, color=MUTED.light, linewidth=0.8)
        axes.margins(0.12)
    there.set_ylabel("goodput gained, in percent")
    handles = [
        Patch(color=colour.light, label=MODELS[model]) for model, colour in _MODEL_COLOURS.items()
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=2,
        fontsize=8,
        handlelength=1,
        handleheight=1,
    )
    return figure


def _points(axes: Axes, found: Sequence[tuple[SuiteValues, float, float]], marker: str) -> None:
    """One point per suite: seconds of stall saved, percent of goodput gained."""
    import pandas as pd

    said = [
        f"{suite_name(suite)}: {duration(stall)} of stall saved, {change(gain / 100)} goodput"
        for suite, stall, gain in found
    ]
    colours = [_MODEL_COLOURS[suite.model].light for suite, _, _ in found]
    points = [
        (stall, gain, colour, says)
        for (_, stall, gain), colour, says in zip(found, colours, said, strict=True)
    ]
    marks(axes, pd.DataFrame(points, columns=MARK_COLUMNS), marker=marker, markersize=6.5)


def _goodputs(experiment: Experiment, values: ExperimentValues) -> list[_Beside]:
    rows = []
    colours = variant_colours(list(values.goodput))
    for arm, published in values.goodput.items():
        ours, other = (
            experiment.mean(arm, "goodput"),
            experiment.mean(arm, "goodput_published_clock"),
        )
        value, low, high = (ours.mean, ours.low, ours.high) if ours else (None, None, None)
        rows.append(
            _Beside(
                ARM_WORDS[arm],
                colours[arm],
                value,
                low,
                high,
                other.mean if other else None,
                published,
                rate,
            )
        )
    return rows


def _rows(groups: Sequence[tuple[str, Sequence[_Beside]]], label: str) -> Figure:
    """A row of bars per entry from top to bottom, under its group's heading."""
    headed = any(name for name, _ in groups)
    height = sum(len(rows) + headed for _, rows in groups)
    figure = Figure(figsize=(WIDTH, ROW * height + 1.0), layout="constrained")
    axes = figure.subplots()
    places: list[tuple[int, str, _Beside]] = []
    y = 0
    for name, rows in groups:
        if headed:
            axes.annotate(
                name, (0, y + 0.1), xycoords=("axes fraction", "data"), va="center", weight="bold"
            )
            y += 1
        for row in rows:
            places.append((y, f"{name} {row.label}".strip(), row))
            y += 1
    _draw(axes, places)
    name_rows(axes, [(at, row.label) for at, _, row in places], y)
    axes.set_xlabel(label)
    figure.legend(
        handles=_key(),
        loc="outside lower center",
        ncols=3,
        fontsize=8,
        handlelength=1.2,
        handleheight=1,
    )
    return figure


def _draw(axes: Axes, places: Sequence[tuple[int, str, _Beside]]) -> None:
    """Draw bar, interval, circle and diamond of every row; `places`: each row's position and
    label.
    """
    import pandas as pd

    values = [
        (
            y,
            r.value,
            r.colour.light,
            f"{name}: {r.form(r.value)} measured, launch to target{_interval(r)}",
        )
        for y, name, r in places
    ]
    bars(
        axes,
        pd.DataFrame(values, columns=BAR_COLUMNS),
        max((y for y, _, _ in places), default=0) + 1,
        0.76,
    )
    intervals(
        axes,
        pd.DataFrame([(y, r.low, r.high, INK.light) for y, _, r in places], columns=END_COLUMNS),
        1.3,
    )
    circles = [
        (
            r.on_published_clock,
            y,
            f"{name}: {r.form(r.on_published_clock)} measured, published clock",
        )
        for y, name, r in places
    ]
    diamonds = [
        (r.published, y, f"{name}: {r.form(r.published)} published") for y, name, r in places
    ]
    for found, marker in ((circles, "o"), (diamonds, "D")):
        frame = pd.DataFrame(
            [(x, y, PAPER.light, says) for x, y, says in found], columns=MARK_COLUMNS
        )
        marks(
            axes,
            frame,
            marker=marker,
            markersize=4.6,
            markeredgecolor=INK.light,
            markeredgewidth=1.1,
        )


def _interval(row: _Beside) -> str:
    return "" if row.low is None else f", 95% interval {row.form(row.low)} to {row.form(row.high)}"


def _key() -> list[Artist]:
    hollow = {
        "color": PAPER.light,
        "markeredgecolor": INK.light,
        "linestyle": "none",
        "markersize": 5,
    }
    return [
        Patch(color=MUTED.light, label="measured, launch to target, 95% interval"),
        Line2D([], [], marker="o", label="measured, published clock", **hollow),  # type: ignore[arg-type]
        Line2D([], [], marker="D", label="published", **hollow),  # type: ignore[arg-type]
    ]


def _ends(pair: Paired | None) -> tuple[float | None, float | None, float | None]:
    return (pair.ratio_of_means, pair.ratio_low, pair.ratio_high) if pair else (None, None, None)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}%"


def draw_losses(experiment: Experiment, values: ExperimentValues) -> Figure | None:
    """Loss curves; None if no run has losses. Wide curves are drawn below narrow ones, so that
    equal ones stay visible.
    """
    runs = {arm: [run for run in experiment.runs_of(arm) if run.losses] for arm in values.goodput}
    seeds = sorted({run.seed for members in runs.values() for run in members}, key=by_value)
    if not seeds:
        return None
    figure, shown = panels(len(seeds), 2.6)
    colours = variant_colours(list(values.goodput))
    for axes, seed in zip(shown, seeds, strict=True):
        members = [(arm, run) for arm, found in runs.items() for run in found if run.seed == seed]
        _panel(axes, members, colours)
        axes.set_title(
            f"seed {printable(seed)}: {_areas(members, values)}",
            fontsize=8,
            loc="left",
            color=INK.light,
        )
    shown[0].set_ylabel("loss")
    handles = [Patch(color=colours[arm].light, label=ARM_WORDS[arm]) for arm in values.goodput]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        fontsize=8,
        handlelength=1,
        handleheight=0.5,
    )
    return figure


def _panel(axes: Axes, members: Sequence[tuple[str, Run]], colours: dict[str, Colour]) -> None:
    points = [thinned(run.losses, MOST_POINTS) for _, run in members]
    widths = [max(1.0, 5.0 - 1.7 * number) for number in range(len(members))]
    for number, line in curves(
        axes, points, [colours[arm].light for arm, _ in members], widths
    ).items():
        step, loss = points[number][-1]
        set_tooltip(line, f"{ARM_WORDS[members[number][0]]}: loss {loss:.4g} at step {count(step)}")
    axes.set_xlabel("step")


def _areas(members: Sequence[tuple[str, Run]], values: ExperimentValues) -> str:
    """The area between each arm's curve and its reference's, measured and published."""
    told = [
        f"{arm} {magnitude(DIVERGENCES['auc'](run))}" for arm, run in members if arm in values.drops
    ]
    there = [f"{arm} {distances['auc']:.4g}" for arm, distances in values.divergence.items()]
    return f"loss AUC {', '.join(told)}\npublished: {', '.join(there)}" if told else "losses"
