"""Exports each figure as SVG for the page (slimmed, with theme colours), PNG and PDF.

seaborn (`figures.plots`) and matplotlib draw on figures created here, never on pyplot's current
one: no global state, no window system. `set_tooltip` gives an artist its tooltip in the page.
"""

from __future__ import annotations

import io
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from ecrl_cli.linux.parallel import parallel_map
from ecrl_cli.report.formats import minus, printable
from ecrl_cli.report.model.picture import Picture
from ecrl_cli.report.palette import INK, MUTED, RULE, themed

WIDTH = 7.4  # inches
TITLE_WIDTH = 88  # characters in a line of a title
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # shipped with matplotlib
    "font.size": 9,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "ecrl",
    "patch.force_edgecolor": False,
    "axes.edgecolor": MUTED.light,
    "axes.linewidth": 1.25,
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


def legend_name(label: str) -> str:
    """A legend label; matplotlib drops labels that begin with an underscore, so a zero-width space
    is put before it.
    """
    return (
        printable(label).replace("_", "\N{ZERO WIDTH SPACE}_", 1)
        if label.startswith("_")
        else printable(label)
    )


def set_tooltip(artist: Artist, text: str) -> None:
    """Shows `text` as a tooltip over `artist` in the page. It is stored as hexadecimal in the SVG
    id, so that no text can break out of the markup.
    """
    artist.set_gid("say-" + minus(printable(text)).encode().hex())


@dataclass(frozen=True)
class FigureSpec:
    """A figure to be drawn. `draw` returns None if there is nothing to show. `in_page`: also export
    SVG.
    """

    name: str
    title: str
    draw: Callable[[], Figure | None]
    in_page: bool = True


def load_libraries() -> None:
    """Imports what draws, which takes half a second: before workers are forked, so that they need
    not.

    seaborn asks for scipy.stats and scipy.cluster, which take longer than all the rest, and goes
    without them where they are not installed: no figure here needs its densities and clusters.
    """
    absent = {"scipy.stats", "scipy.cluster"} - sys.modules.keys()
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: cannot be imported
    try:
        import seaborn  # noqa: F401
    finally:
        for name in absent:
            del sys.modules[name]


def draw_figures(
    specs: Sequence[FigureSpec], meanwhile: Callable[[], object] | None = None
) -> list[Picture]:
    """Draws the figures that have something to show, in order, in ECRL's style, in several
    processes; `meanwhile` is called once beside that.
    """
    load_libraries()
    return [made for made in parallel_map(_drawn, specs, meanwhile=meanwhile) if made]


def _drawn(spec: FigureSpec) -> Picture | None:
    import seaborn as sns

    with sns.axes_style("ticks"), mpl.rc_context(STYLE), warnings.catch_warnings():
        # Missing glyphs, more labels than fit, or an axis with a single value only cause warnings.
        warnings.simplefilter("ignore", UserWarning)
        figure = spec.draw()
        return picture(spec.name, spec.title, figure, in_page=spec.in_page) if figure else None


def picture(name: str, title: str, figure: Figure, *, in_page: bool = True) -> Picture:
    """Renders `figure` in each format under its title; the layout is computed once, and invisible
    tooltip targets are kept in the SVG only.
    """
    _head(figure, title)
    engine = figure.get_layout_engine()
    if engine:
        engine.execute(figure)
        figure.set_layout_engine("none")
    svg = _svg(figure) if in_page else b""
    for artist in figure.findobj(lambda artist: artist.get_alpha() == 0):
        artist.remove()
    png, pdf = _png(figure), _pdf(figure)
    return Picture(name, title, slim(svg.decode(), title) if svg else "", png, pdf)


def _head(figure: Figure, title: str) -> None:
    """Puts `title` above all axes, in a strip added to the figure; without a layout engine the axes
    keep their size.
    """
    text = textwrap.fill(printable(title), TITLE_WIDTH)
    before, strip = figure.get_figheight(), 0.22 * (text.count("\n") + 1)
    figure.set_figheight(before + strip)
    if figure.get_layout_engine() is None:
        kept = before / (before + strip)
        figure.subplots_adjust(
            top=figure.subplotpars.top * kept, bottom=figure.subplotpars.bottom * kept
        )
    # a layout engine makes room for the title only if it places it
    place = {} if figure.get_layout_engine() else {"y": 1 - 0.05 / (before + strip)}
    figure.suptitle(
        text, x=0.01, ha="left", va="top", fontsize=10, fontweight="bold", color=INK.light, **place
    )


# Each back end is called directly: Figure.savefig draws the figure an extra time, a third of the
# total.
def _svg(figure: Figure) -> bytes:
    file, canvas = io.BytesIO(), FigureCanvasSVG(figure)
    paper, edge, dpi = figure.get_facecolor(), figure.get_edgecolor(), figure.dpi
    figure.set_facecolor("none")
    figure.set_edgecolor("none")
    canvas.print_svg(file, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})  # type: ignore[no-untyped-call]
    figure.set_facecolor(paper)
    figure.set_edgecolor(edge)
    figure.dpi = dpi
    return file.getvalue()


def _png(figure: Figure) -> bytes:
    file, dpi = io.BytesIO(), figure.dpi
    figure.dpi = 120  # for screens: papers take the PDF
    FigureCanvasAgg(figure).print_png(file, pil_kwargs={"compress_level": 2})  # type: ignore[no-untyped-call]
    figure.dpi = dpi
    return file.getvalue()


def _pdf(figure: Figure) -> bytes:
    file = io.BytesIO()
    nameless = {"CreationDate": None, "Creator": None, "Producer": None}
    FigureCanvasPdf(figure).print_pdf(file, metadata=nameless)  # type: ignore[no-untyped-call]
    return file.getvalue()


def slim(svg: str, title: str) -> str:
    """Slims matplotlib's SVG for embedding in the page: no prologue, metadata or styles, short
    numbers, colours as CSS variables.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL
    )
    body = re.sub(r"<g id=\"(?!say-)[^\"]*\"", "<g", body)
    body = re.sub(r"(<svg[^>]*?) width=\"[^\"]*\"", r"\1", body, count=1)
    body = re.sub(r"(<svg[^>]*?) height=\"[^\"]*\"", r"\1", body, count=1)
    body = re.sub(
        r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), body
    )
    body = re.sub(r"\s*\n\s*", "\n", body)
    body = themed(body.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1))
    # last: tooltip texts must not be changed
    return re.sub(r"<g id=\"say-([0-9a-f]*)\"([^>]*)>", _with_tooltip, body)


def _with_tooltip(group: re.Match[str]) -> str:
    return f'<g class="mark"{group[2]}><title>{escape(bytes.fromhex(group[1]).decode())}</title>'
