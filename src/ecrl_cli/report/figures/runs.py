"""The figures of the runs: goodput, effects over the noise floor, seconds by category, loss, one
timeline per suite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from ecrl_cli.metrics.statistics import Summary
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
)
from ecrl_cli.report.formats import change, duration, plural, printable, rate, share, short
from ecrl_cli.report.model.arms import Arm
from ecrl_cli.report.model.comparison import ALL, EVERY, Comparison, first_seed
from ecrl_cli.report.model.contrast import Contrast, by_scope
from ecrl_cli.report.model.effects import effects, swept
from ecrl_cli.report.model.picture import Picture
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.spans import is_range, span
from ecrl_cli.report.model.timeline_view import TimelineView, thinned
from ecrl_cli.report.palette import (
    BAD,
    CATEGORY_COLOURS,
    FAMILY_COLOURS,
    INK,
    MUTED,
    PAPER,
    RULE,
    Colour,
    variant_colours,
)

ROW = 0.30  # inches per bar
MOST_POINTS, READINGS = 240, 24  # of a curve: points, and steps with a tooltip
PANELS = 5  # of small multiples in a row
AXES = (
    "Difference of goodput that each axis makes, by pairs that agree in everything else, with 95%"
    " intervals"
)
EFFECTS = "Difference of goodput by pairs of one suite and seed, with 95% intervals"


def run_pictures(
    comparison: Comparison, meanwhile: Callable[[], object] | None = None
) -> list[Picture]:
    """Every figure that has something to show; `meanwhile` as in `draw_figures`."""
    if not comparison.arms:
        return []
    axes, by_arm = swept(effects(comparison)), by_scope(comparison)
    titles = [f"{effect.axis.name}: {effect.whole.title}" for effect in axes]
    found = (
        [
            FigureSpec(
                "axes", AXES, partial(draw_effects, [effect.contrasts for effect in axes], titles)
            )
        ]
        if axes
        else []
    )
    found += [FigureSpec("effects", EFFECTS, partial(draw_effects, by_arm))] if by_arm else []
    found += [
        FigureSpec(
            "goodput",
            "Goodput of each arm, in committed steps per second",
            partial(draw_goodput, comparison),
        ),
        FigureSpec(
            "seconds",
            "Where the wall time went, in seconds by category",
            partial(draw_seconds, comparison),
        ),
    ]
    if any(run.losses for run in comparison.counted):
        found.append(
            FigureSpec(
                "loss",
                "Loss of the committed steps, mean over ranks; in grey the undisturbed run",
                partial(draw_losses, comparison),
            )
        )
    for number, (suite, runs) in enumerate(first_seed(comparison).items()):
        title = f"{printable(suite)}: the arms of one seed on one clock"
        found.append(
            FigureSpec(
                f"timeline-{number + 1}",
                title,
                partial(draw_timelines, comparison, runs),
                in_page=False,
            )
        )
    return draw_figures(found, meanwhile)


def draw_goodput(comparison: Comparison) -> Figure:
    """A bar per arm; the 95% interval and a point per run if there is more than one."""
    import pandas as pd

    figure, axes, rows = _bars(comparison)
    colours = variant_colours(comparison.labels)
    shown = [
        (y, arm, f"{arm.suite} {arm.label}", arm.shown("goodput"), arm.summary("goodput"))
        for y, arm in rows
    ]
    values = [
        (
            y,
            value,
            colours[arm.label].light,
            f"{name}: {rate(value)} steps/s, {_spread_text(s, rate)}",
        )
        for y, arm, name, value, s in shown
    ]
    runs = [
        (m.goodput, y, PAPER.light, f"{name}, seed {m.seed}: {rate(m.goodput)} steps/s")
        for y, arm, name, _, _ in shown
        for m in arm.metrics
    ]
    points = pd.DataFrame(runs, columns=MARK_COLUMNS)
    ends = pd.DataFrame(
        [(y, *ends, INK.light) for y, *_, s in shown if (ends := span(s))], columns=END_COLUMNS
    )
    bars(axes, pd.DataFrame(values, columns=BAR_COLUMNS), rows[-1][0] + 1, 0.72)
    intervals(axes, ends, 1.4)
    several = points[points.groupby("y")["x"].transform("size") > 1]
    marks(axes, several, marker="o", markersize=2.6, markeredgecolor=INK.light, markeredgewidth=0.7)
    right = (
        pd.concat([points.set_index("y")["x"], ends.set_index("row")["high"].astype(float)])
        .groupby(level=0)
        .max()
    )
    for y, _, _, value, _ in shown:
        _write_behind(axes, right[y], y, rate(value) if value is not None else "not averaged")
    axes.set_xlabel("committed steps per second of wall time")
    _leave_room(axes)
    return figure


def draw_seconds(comparison: Comparison) -> Figure:
    """A bar per arm, split into categories; the mean over its runs if the arm is averaged."""
    figure, axes, rows = _bars(comparison, extra=0.75)
    used: set[str] = set()
    for y, arm in rows:
        left = 0.0
        seconds = arm.seconds()
        # a doctored run may have seconds below zero
        wall_s = sum(max(0.0, each) for each in seconds.values())
        for category in CATEGORY_COLOURS if seconds else ():
            width = max(0.0, seconds[category])
            if width > wall_s / 2000:  # thinner ones are invisible
                used.add(category)
                part = axes.add_patch(
                    Rectangle(
                        (left, y - 0.36),
                        width,
                        0.72,
                        color=CATEGORY_COLOURS[category].light,
                        linewidth=0,
                    )
                )
                set_tooltip(
                    part,
                    f"{arm.suite} {arm.label}: {category.replace('_', ' ')} {duration(width)},"
                    f" {share(width / wall_s)} of the wall time",
                )
            left += width
        _write_behind(axes, left, y, duration(left) if seconds else "not averaged")
    seen = [category for category in CATEGORY_COLOURS if category in used]
    handles = [
        Patch(color=CATEGORY_COLOURS[category].light, label=category.replace("_", " "))
        for category in seen
    ]
    axes.set_xlabel("seconds of wall time")
    _leave_room(axes)
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=7,
        fontsize=8,
        handlelength=1,
        handleheight=1,
        columnspacing=1.4,
    )
    return figure


def draw_effects(found: Sequence[Sequence[Contrast]], titles: Sequence[str] = ()) -> Figure:
    """A point and its interval for each contrast, under the title of its group (without `titles`
    the arms compared); the band behind each is its noise floor.
    """
    every = [each for members in found for each in members]
    figure = Figure(
        figsize=(WIDTH, 0.24 * (len(every) + 1.2 * len(found)) + 0.65), layout="constrained"
    )
    axes = figure.subplots()
    colours = variant_colours(list(dict.fromkeys(each.arm for each in every)))
    ticks: list[tuple[float, str]] = []
    y = 0.0
    for title, members in zip(
        titles or [members[0].title for members in found], found, strict=True
    ):
        axes.annotate(
            printable(title),
            (0, y),
            xycoords=("axes fraction", "data"),
            va="center",
            weight="bold",
            color=INK.light,
        )
        y += 1
        for each in members:
            _band(axes, y, each)
            ticks.append((y, each.scope))
            y += 1
        y += 0.2
    _estimates(axes, [(at, each) for (at, _), each in zip(ticks, every, strict=True)], colours)
    axes.axvline(0, color=MUTED.light, linewidth=0.8)
    _set_range(axes, every)
    name_rows(axes, [(at, printable(name)) for at, name in ticks], y)
    axes.set_xlabel("difference of goodput in percent")
    return figure


def _set_range(axes: Axes, found: Sequence[Contrast]) -> None:
    """Sets the x range to fit the intervals; a noise floor far wider than those is cut off instead
    of compressing them.
    """
    ends = [
        abs(end)
        for each in found
        if each.pair.mean_of_ratios
        for end in (each.effect, *(each.interval or ()))
    ]
    widest = max(ends, default=0.0)
    floor = max((each.noise for each in found if each.noise is not None), default=0.0)
    reach = 112 * max(widest, min(floor, 2 * widest)) or 1.0
    axes.set_xlim(-reach, reach)


def _band(axes: Axes, y: float, each: Contrast) -> None:
    if each.floor and each.noise is not None:
        (band,) = axes.barh(
            y,
            200 * each.noise,
            left=-100 * each.noise,
            height=1.0,
            color=RULE.light,
            linewidth=0,
            zorder=0,
        )
        set_tooltip(
            band,
            f"noise floor: the mean of as many pairs of {each.floor.source} may differ by"
            f" {share(each.noise)}",
        )


def _estimates(
    axes: Axes, rows: Sequence[tuple[float, Contrast]], colours: dict[str, Colour]
) -> None:
    """The means of ratios with their intervals by Student's t; pooled ones are diamonds."""
    import pandas as pd

    shown = [(y, each, ratios) for y, each in rows if (ratios := each.pair.mean_of_ratios)]
    found = [
        (y, *_ends(r), colours[each.arm].light, each.scope in (ALL, EVERY), _estimate_text(each))
        for y, each, r in shown
    ]
    frame = pd.DataFrame(found, columns=["row", "low", "mean", "high", "colour", "pooled", "says"])
    frame[["low", "mean", "high"]] = 100 * frame[["low", "mean", "high"]].astype(float)
    intervals(axes, frame[END_COLUMNS], 1.6)
    for pooled, marker, size in ((False, "o", 4.5), (True, "D", 6.5)):
        marks(
            axes,
            frame[frame["pooled"] == pooled].rename(columns={"mean": "x", "row": "y"})[
                MARK_COLUMNS
            ],
            marker=marker,
            markersize=size,
        )


def _ends(ratios: Summary) -> tuple[float | None, float, float | None]:
    low, high = span(ratios) or (None, None)
    return low, ratios.mean, high


def _estimate_text(each: Contrast) -> str:
    low, _, high = (
        _ends(each.pair.mean_of_ratios) if each.pair.mean_of_ratios else (None, 0.0, None)
    )
    spread = (
        f" [{'identical in all pairs' if each.alike else f'{change(low)} to {change(high)}'}]"
        if each.interval
        else ""
    )
    noise = f", {each.against_floor}" if each.against_floor else ""
    return (
        f"{each.title}, {each.scope or 'all suites'}: {change(each.effect)}{spread},"
        f" {plural(each.pair.n, 'pair')}{noise}"
    )


def draw_losses(comparison: Comparison) -> Figure:
    """Small multiples: a row of panels per suite, a panel per arm of one seed, in grey below each
    curve that of the suite's undisturbed run.
    """
    chosen = first_seed(comparison)
    colours = variant_colours(comparison.labels)
    columns = min(PANELS, max(len(runs) for runs in chosen.values()))
    lines = [
        (suite, runs, runs[at : at + columns])
        for suite, runs in chosen.items()
        for at in range(0, len(runs), columns)
    ]
    height = 1.5 * len(lines) + 0.65
    figure = Figure(figsize=(WIDTH, height))  # no layout engine: with forty panels it takes seconds
    shown = figure.subplots(len(lines), columns, squeeze=False, sharey="row")
    figure.subplots_adjust(
        left=0.08, right=0.985, top=1 - 0.42 / height, bottom=0.45 / height, wspace=0.1, hspace=0.72
    )
    for row, (suite, runs, here) in zip(shown, lines, strict=True):
        base = next(
            (run for name in ("ref", "clean") for run in runs if run.variant == name), runs[0]
        )
        row[0].annotate(
            printable(suite),
            (0, 1),
            (0, 16),
            xycoords="axes fraction",
            textcoords="offset points",
            weight="bold",
            color=INK.light,
        )
        row[0].set_ylabel("loss")
        for axes, run in zip(row, here, strict=False):
            label = comparison.label(run)
            under = [] if run is base else [base]
            tones = [*(RULE.light for _ in under), colours[label].light]
            curves(
                axes,
                [thinned(each.losses, MOST_POINTS) for each in (*under, run)],
                tones,
                [*(3.5 for _ in under), 1.2],
            )
            _readings(axes, comparison, [run, *under], READINGS // (1 + len(lines) // 4))
            axes.set_title(short(printable(label), 26), fontsize=8, loc="left", color=INK.light)
            axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
            axes.set_xlabel("step", fontsize=8)
            axes.tick_params(labelsize=7.5)
        for axes in row[len(here) :]:
            axes.set_axis_off()
    return figure


def _readings(axes: Axes, comparison: Comparison, runs: Sequence[Run], most: int) -> None:
    """Invisible bands, `most` of them, whose tooltips list the loss of every curve at their central
    step.
    """
    curves = {comparison.label(run): dict(run.losses) for run in runs}
    steps = sorted({step for curve in curves.values() for step in curve})
    stride = max(1, -(-len(steps) // max(1, most)))
    width = (steps[-1] - steps[0]) / len(steps) * stride if steps else 0
    for step in steps[stride // 2 :: stride]:
        labels = [f"{label} {curve[step]:.4g}" for label, curve in curves.items() if step in curve]
        band = axes.axvspan(step - width / 2, step + width / 2, alpha=0, linewidth=0)
        set_tooltip(band, f"loss at step {step:,}: {', '.join(labels)}")


def draw_timelines(comparison: Comparison, runs: Sequence[Run]) -> Figure:
    """A panel per run on one time axis: progress, categories, checkpoints in flight, failures."""
    shown = [(run, run.view) for run in runs if run.view]
    height = 1.15 * max(1, len(shown)) + 0.9
    # no layout engine: the axis labels are numbers, and measuring them takes longer than drawing
    figure = Figure(figsize=(WIDTH, height))
    if not shown:
        return figure
    panels = figure.subplots(
        len(shown), 1, sharex=True, squeeze=False, gridspec_kw={"hspace": 0.34}
    )
    figure.subplots_adjust(left=0.075, right=0.985, top=1 - 0.26 / height, bottom=0.72 / height)
    colours = variant_colours(comparison.labels)
    for axes, (run, view) in zip(panels.flat, shown, strict=True):
        draw_timeline(axes, view, colours[comparison.label(run)])
        axes.set_title(
            f"{printable(comparison.label(run))}, seed {printable(run.seed)}",
            fontsize=9,
            loc="left",
            color=INK.light,
        )
    panels.flat[-1].set_xlabel("seconds since the supervisor's launch")
    handles = [Patch(color=colour.light, label=family) for family, colour in FAMILY_COLOURS.items()]
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=len(handles),
        fontsize=8,
        handlelength=1,
        handleheight=1,
    )
    return figure


def draw_timeline(axes: Axes, view: TimelineView, colour: Colour) -> None:
    """One run: y is the step; below zero are the band of categories and the checkpoints in
    flight.
    """
    target = max(1, view.target_steps)
    for family, family_colour in FAMILY_COLOURS.items():
        stretches = [
            (strip.start, strip.end - strip.start) for strip in view.bands if strip.family == family
        ]
        axes.broken_barh(stretches, (-0.24 * target, 0.16 * target), color=family_colour.light)
    for durable, tone in ((True, MUTED), (False, BAD)):
        writes = [write for write in view.writes if (write.outcome == "committed") == durable]
        stretches = [
            (write.start, max(write.end - write.start, view.wall_s / 400)) for write in writes
        ]
        axes.broken_barh(stretches, (-0.42 * target, 0.1 * target), color=tone.light)
    for attempt in view.attempts:
        axes.plot(
            [t for t, _ in attempt.progress],
            [step for _, step in attempt.progress],
            color=colour.light,
            linewidth=1.6,
        )
    axes.plot(
        [b.at for b in view.faults],
        [b.step for b in view.faults],
        "x",
        color=INK.light,
        markersize=6,
        markeredgewidth=1.6,
        zorder=5,
    )
    axes.set_yticks([0, target])
    axes.set_ylabel("step")
    axes.spines["bottom"].set_visible(False)
    axes.set_ylim(-0.5 * target, 1.1 * target)


def _bars(comparison: Comparison, extra: float = 0.0) -> tuple[Figure, Axes, list[tuple[int, Arm]]]:
    """Axes with a row per arm, and a gap and a heading per suite; the rows from top to bottom."""
    rows: list[tuple[int, Arm]] = []
    headings: list[tuple[float, str]] = []
    y = 0
    several = len({arm.suite for arm in comparison.arms}) > 1
    for arm in comparison.arms:
        if several and (not rows or rows[-1][1].suite != arm.suite):
            headings.append((y + 0.15, arm.suite))
            y += 1
        rows.append((y, arm))
        y += 1
    figure = Figure(figsize=(WIDTH, ROW * y + 0.65 + extra), layout="constrained")
    axes = figure.subplots()
    name_rows(axes, [(at, printable(arm.label)) for at, arm in rows], y)
    for at, suite in headings:
        axes.annotate(
            printable(suite),
            (0, at),
            (0, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            weight="bold",
        )
    return figure, axes, rows


def _write_behind(axes: Axes, x: float, y: float, text: str) -> None:
    """Writes `text` after the end of a bar."""
    axes.annotate(text, (x, y), (6, 0), textcoords="offset points", va="center", color=INK.light)


def _leave_room(axes: Axes) -> None:
    """Leaves space on the right for the numbers after the bars."""
    right = axes.dataLim.x1
    axes.set_xlim(0, right * 1.12 if 0 < right < math.inf else 1)


def _spread_text(summary: Summary | None, form: Callable[[float], str]) -> str:
    """The number of runs behind a mean, and its interval."""
    ends = span(summary)
    if summary is None or ends is None:
        return "one run"
    low, high = ends
    return (
        f"mean of {plural(summary.n, 'run')}, {'range' if is_range(summary) else '95% interval'}"
        f" {form(low)} to {form(high)}"
    )
