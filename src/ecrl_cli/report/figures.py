"""The figures as SVG for the page and as PNG and PDF for papers: goodput, seconds by category, loss, one timeline per suite.

matplotlib is drawn on directly (no pyplot: no global state, no window system); its SVG is slimmed and follows the page's theme.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ecrl_cli.report.arms import Arm
from ecrl_cli.report.comparison import Comparison
from ecrl_cli.report.evidence import Run
from ecrl_cli.report.formats import duration, printable, rate
from ecrl_cli.report.palette import BAD, CATEGORY_COLOURS, FAMILY_COLOURS, INK, MUTED, PAPER, RULE, Colour, themed, variant_colours
from ecrl_cli.report.view import View, thinned

WIDTH, ROW = 7.4, 0.30  # inches
MOST_POINTS = 240
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # matplotlib brings it along
    "font.size": 9,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "ecrl",
    "axes.edgecolor": MUTED.light,
    "axes.labelcolor": MUTED.light,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": RULE.light,
    "grid.linewidth": 0.6,
    "text.color": INK.light,
    "xtick.color": MUTED.light,
    "ytick.color": INK.light,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "path.simplify_threshold": 0.5,
}


@dataclass(frozen=True)
class Picture:
    """A drawn figure: its file name, what it shows in a sentence, and its bytes by format."""

    name: str
    title: str
    svg: str  # empty where the page draws it itself
    png: bytes
    pdf: bytes


def pictures(comparison: Comparison) -> list[Picture]:
    """Every figure that there is something to show for."""
    if not comparison.arms:
        return []
    with mpl.style.context("seaborn-v0_8-ticks"), mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a name in a script that the font lacks
        found = [
            picture("goodput", "Goodput of each arm, in committed steps per second", draw_goodput(comparison)),
            picture("seconds", "Where the wall time went, in seconds by category", draw_seconds(comparison)),
        ]
        if any(_losses(run) for run in comparison.counted):
            found.append(picture("loss", "Loss of the committed steps, mean over ranks", draw_losses(comparison)))
        for number, (suite, runs) in enumerate(first_seed(comparison).items()):
            title = f"{printable(suite)}: the arms of one seed on one clock"
            found.append(picture(f"timeline-{number + 1}", title, draw_timelines(comparison, runs), in_page=False))
    return found


def first_seed(comparison: Comparison) -> dict[str, list[Run]]:
    """By suite, one run per arm: of the seed that most arms have, the first of them in order."""
    chosen = {}
    for suite in dict.fromkeys(arm.suite for arm in comparison.arms):
        arms = comparison.of(suite)
        seeds = [run.seed for arm in arms for run in arm.runs]
        best = max(dict.fromkeys(seeds), key=seeds.count)
        picked = [next((run for run in arm.runs if run.seed == best), None) for arm in arms]
        chosen[suite] = [run for run in picked if run]
    return chosen


def draw_goodput(comparison: Comparison) -> Figure:
    """A bar per arm; the 95% interval and every run's own point where there is more than one."""
    figure, axes, rows = _bars(comparison)
    colours = variant_colours(comparison.labels)
    for y, arm in rows:
        value, summary = arm.shown("goodput"), arm.summary("goodput")
        points = [m.goodput for m in arm.metrics]
        if value is not None:
            axes.barh(y, value, height=0.72, color=colours[arm.label].light)
        if summary and summary.low is not None and summary.high is not None:
            axes.plot([summary.low, summary.high], [y, y], color=INK.light, linewidth=1.4, solid_capstyle="butt")
        if len(points) > 1:
            axes.plot(points, [y] * len(points), "o", markersize=2.6, color=PAPER.light, markeredgecolor=INK.light, markeredgewidth=0.7)
        right = max([*points, *([summary.high] if summary and summary.high is not None else [])])
        axes.annotate(
            rate(value) if value is not None else "not averaged", (right, y), (6, 0), textcoords="offset points", va="center", color=INK.light
        )
    axes.set_xlabel("committed steps per second of wall time")
    _room(axes)
    return figure


def draw_seconds(comparison: Comparison) -> Figure:
    """A bar per arm, cut into categories; the mean over its runs where it is averaged."""
    figure, axes, rows = _bars(comparison, extra=0.75)
    used: dict[str, float] = {}
    for y, arm in rows:
        left = 0.0
        seconds = arm.seconds()
        for category in CATEGORY_COLOURS if seconds else ():
            width = max(0.0, seconds[category])
            axes.barh(y, width, left=left, height=0.72, color=CATEGORY_COLOURS[category].light)
            used[category] = max(used.get(category, 0.0), width)
            left += width
        _behind(axes, left, y, duration(left) if seconds else "not averaged")
    seen = [category for category in CATEGORY_COLOURS if used.get(category, 0.0) >= 1e-3]
    handles = [Patch(color=CATEGORY_COLOURS[category].light, label=category.replace("_", " ")) for category in seen]
    axes.set_xlabel("seconds of wall time")
    _room(axes)
    figure.legend(handles=handles, loc="outside lower center", ncols=7, fontsize=8, handlelength=1, handleheight=1, columnspacing=1.4)
    return figure


def draw_losses(comparison: Comparison) -> Figure:
    """A panel per suite, a curve per arm of one seed; wide under narrow, so that equal curves stay visible."""
    chosen = first_seed(comparison)
    columns = min(2, len(chosen))
    rows = -(-len(chosen) // columns)
    figure = Figure(figsize=(WIDTH, 2.5 * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    colours = variant_colours(comparison.labels)
    for axes in panels.flat[len(chosen) :]:
        axes.set_axis_off()
    for axes, (suite, runs) in zip(panels.flat, chosen.items(), strict=False):
        for number, run in enumerate(runs):
            points = _losses(run)
            width = max(1.0, 5.5 - 1.5 * number)
            axes.plot([step for step, _ in points], [loss for _, loss in points], color=colours[comparison.label(run)].light, linewidth=width)
        axes.set_title(printable(suite), fontsize=9, loc="left", color=INK.light)
        axes.set_xlabel("step")
    panels[0][0].set_ylabel("loss")
    handles = [Patch(color=colours[label].light, label=legend_name(label)) for label in comparison.labels]
    figure.legend(handles=handles, loc="outside upper right", ncols=6, fontsize=8, handlelength=1, handleheight=0.5)
    return figure


def draw_timelines(comparison: Comparison, runs: Sequence[Run]) -> Figure:
    """A panel per run on one time axis: progress, categories, checkpoints in flight, failures."""
    shown = [(run, run.view) for run in runs if run.view]
    figure = Figure(figsize=(WIDTH, 1.15 * max(1, len(shown)) + 0.7), layout="constrained")
    if not shown:
        return figure
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)
    colours = variant_colours(comparison.labels)
    for axes, (run, view) in zip(panels.flat, shown, strict=True):
        draw_timeline(axes, view, colours[comparison.label(run)])
        axes.set_title(f"{printable(comparison.label(run))}, seed {printable(run.seed)}", fontsize=9, loc="left", color=INK.light)
    panels.flat[-1].set_xlabel("seconds since the supervisor's launch")
    handles = [Patch(color=colour.light, label=family) for family, colour in FAMILY_COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, handlelength=1, handleheight=1)
    return figure


def draw_timeline(axes: Axes, view: View, colour: Colour) -> None:
    """One run: y is the step; under zero lie the strip of categories and the checkpoints in flight."""
    target = max(1, view.target_steps)
    for family, family_colour in FAMILY_COLOURS.items():
        stretches = [(strip.start, strip.end - strip.start) for strip in view.strips if strip.family == family]
        axes.broken_barh(stretches, (-0.24 * target, 0.16 * target), color=family_colour.light)
    for durable, tone in ((True, MUTED), (False, BAD)):
        writes = [write for write in view.writes if (write.outcome == "committed") == durable]
        stretches = [(write.start, max(write.end - write.start, view.wall_s / 400)) for write in writes]
        axes.broken_barh(stretches, (-0.42 * target, 0.1 * target), color=tone.light)
    for attempt in view.attempts:
        axes.plot([t for t, _ in attempt.progress], [step for _, step in attempt.progress], color=colour.light, linewidth=1.6)
    axes.plot([b.at for b in view.blows], [b.step for b in view.blows], "x", color=INK.light, markersize=6, markeredgewidth=1.6, zorder=5)
    axes.set_yticks([0, target])
    axes.spines["bottom"].set_visible(False)
    axes.set_ylim(-0.5 * target, 1.1 * target)


def _bars(comparison: Comparison, extra: float = 0.0) -> tuple[Figure, Axes, list[tuple[float, Arm]]]:
    """Axes with a row per arm, a gap and a heading per suite; the rows from top to bottom."""
    rows: list[tuple[float, Arm]] = []
    headings: list[tuple[float, str]] = []
    y = 0.0
    several = len({arm.suite for arm in comparison.arms}) > 1
    for arm in comparison.arms:
        if several and (not rows or rows[-1][1].suite != arm.suite):
            headings.append((y + 0.15, arm.suite))
            y += 1
        rows.append((y, arm))
        y += 1
    figure = Figure(figsize=(WIDTH, ROW * y + 0.65 + extra), layout="constrained")
    axes = figure.subplots()
    axes.set_yticks([at for at, _ in rows], [printable(arm.label) for _, arm in rows])
    axes.set_ylim(y - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    for at, suite in headings:
        axes.annotate(printable(suite), (0, at), (0, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center", weight="bold")
    return figure, axes, rows


def _behind(axes: Axes, x: float, y: float, text: str) -> None:
    """`text` behind the end of a bar."""
    axes.annotate(text, (x, y), (6, 0), textcoords="offset points", va="center", color=INK.light)


def _room(axes: Axes) -> None:
    """Space on the right for the numbers behind the bars."""
    axes.set_xlim(0, axes.dataLim.x1 * 1.12 or 1)


def _losses(run: Run) -> tuple[tuple[int, float], ...]:
    recorded = run.counted.mean_loss if run.counted else {}
    return thinned([(step, loss) for step, loss in sorted(recorded.items()) if loss is not None], MOST_POINTS)


def legend_name(label: str) -> str:
    """matplotlib leaves labels out that begin with an underscore."""
    return printable(label).replace("_", "\N{ZERO WIDTH SPACE}_", 1) if label.startswith("_") else printable(label)


def picture(name: str, title: str, figure: Figure, *, in_page: bool = True) -> Picture:
    """Draw `figure` in each format; the layout is computed once."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    nameless = {"Date": None, "Creator": None, "Format": None, "Type": None}
    svg = _saved(figure, "svg", facecolor="none", edgecolor="none", metadata=nameless) if in_page else b""
    png = _saved(figure, "png", dpi=160)
    pdf = _saved(figure, "pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return Picture(name, title, slim(svg.decode(), title) if svg else "", png, pdf)


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind, **options)
    return file.getvalue()


def slim(svg: str, title: str) -> str:
    """matplotlib's SVG for the inside of a page: no prologue, metadata or styles of its own, short numbers, the palette's variables."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"<g id=\"[^\"]*\"", "<g", body)
    body = re.sub(r"(<svg[^>]*?) width=\"[^\"]*\"", r"\1", body, count=1)
    body = re.sub(r"(<svg[^>]*?) height=\"[^\"]*\"", r"\1", body, count=1)
    body = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), body)
    body = re.sub(r"\s*\n\s*", "\n", body)
    return themed(body.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1))
