"""One colour per variant and per category, the same in every figure, distinguishable with colour
blindness.

Variants follow Okabe and Ito; categories come in families (training blue, evaluating green,
checkpointing gold, starting rose, replay plum, the rest grey) with shades of different lightness.
Each colour is a CSS variable with a light and a dark value; matplotlib draws with the light one,
and `themed` replaces it by the variable in the SVG.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Colour:
    """A CSS variable (`--name`) and its two values."""

    name: str
    light: str
    dark: str

    @property
    def css(self) -> str:
        return f"var(--{self.name})"


INK = Colour("ink", "#1b1f24", "#e8eaed")
MUTED = Colour("muted", "#5b6470", "#a0a8b3")
RULE = Colour("rule", "#dfe3e8", "#333a43")
PAPER = Colour("paper", "#ffffff", "#14171b")
PANEL = Colour("panel", "#f6f7f9", "#1c2026")
LINK = Colour("link", "#0b5cad", "#7ab8f5")
GOOD = Colour("good", "#11735a", "#4fc9a4")
BAD = Colour("bad", "#b3261e", "#ff8a80")
DOUBT = Colour("doubt", "#8a5a00", "#f0b849")
THEME = (INK, MUTED, RULE, PAPER, PANEL, LINK, GOOD, BAD, DOUBT)

KNOWN_VARIANTS = {
    "clean": Colour("v-clean", "#9aa3ae", "#7d8792"),
    "ref": Colour("v-ref", "#3d4650", "#cdd4dc"),
    "blk": Colour("v-blk", "#d55e00", "#f0803a"),
    "ovl": Colour("v-ovl", "#009e73", "#2fc79b"),
}
OTHER_VARIANTS = (
    Colour("v-0", "#0072b2", "#4da6dd"),
    Colour("v-1", "#cc79a7", "#dd94bd"),
    Colour("v-2", "#e69f01", "#edb33f"),
    Colour("v-3", "#56b4e9", "#7cc7f0"),
    Colour("v-4", "#7a5195", "#ae86c9"),
    Colour("v-5", "#8c6d31", "#c2a266"),
)

# Recurring series names in studies: outcomes of a trial, from harmless to worst, and the write
# modes.
KNOWN_SERIES = {
    "new": Colour("o-new", "#2a9d72", "#45c795"),
    "previous": Colour("o-previous", "#8fc9b0", "#2f6b54"),
    "detected": Colour("o-detected", "#4c7fb0", "#74a7d8"),
    "empty_ok": Colour("o-empty", "#b9c0c8", "#565f6a"),
    "lost_ack": Colour("o-lost-ack", "#e69a2e", "#efb45c"),
    "lost_all": Colour("o-lost-all", "#c4681f", "#d98444"),
    "silent_wrong": Colour("o-wrong", "#b3202a", "#f0626b"),
    "untyped": Colour("o-untyped", "#8a4f9e", "#b98acb"),
    "hung": Colour("o-hung", "#5a4636", "#b29a86"),
    "unsafe": Colour("w-unsafe", "#d25f10", "#f0843f"),
    "atomic_nodirsync": Colour("w-nodirsync", "#0e72b5", "#4fa8e0"),
    "atomic_dirsync": Colour("w-dirsync", "#0a9a70", "#32c99d"),
}

FAMILIES: dict[str, tuple[str, ...]] = {
    "training": ("compute", "sync"),
    "evaluating": ("evaluate",),
    "checkpointing": ("snapshot", "serialize", "enqueue", "backpressure", "write_wait"),
    "starting": ("detect", "launch", "import", "rendezvous", "load", "warm_up"),
    "replay": ("replay",),
    "rest": ("idle", "residual"),
}
FAMILY_COLOURS = {
    "training": Colour("f-training", "#4477aa", "#6a9bd0"),
    "evaluating": Colour("f-evaluating", "#228833", "#5cb86b"),
    "checkpointing": Colour("f-checkpointing", "#ddaa33", "#e5bb57"),
    "starting": Colour("f-starting", "#cc6677", "#d9808f"),
    "replay": Colour("f-replay", "#771f50", "#b04f87"),
    "rest": Colour("f-rest", "#c4c9cf", "#4a525c"),
}
_SHADES = {
    "compute": ("#4477a9", "#6a9bd1"),
    "sync": ("#99bbdd", "#3f6690"),
    "evaluate": ("#228834", "#5cb86c"),
    "snapshot": ("#ddaa34", "#e5bb58"),
    "serialize": ("#8c6510", "#a98127"),
    "enqueue": ("#f3d78f", "#f6e3b0"),
    "backpressure": ("#b98a1f", "#c99d3c"),
    "write_wait": ("#eec566", "#8a6a1f"),
    "detect": ("#7d2836", "#8f3d4b"),
    "launch": ("#a8404f", "#b55867"),
    "import": ("#cc6678", "#d98090"),
    "rendezvous": ("#e08f9c", "#e5a3ad"),
    "load": ("#eeb8c0", "#f0cbd1"),
    "warm_up": ("#f7dde0", "#6b3a42"),
    "replay": ("#771f51", "#b04f88"),
    "idle": ("#c4c9d0", "#4a525d"),
    "residual": ("#8f979f", "#8a939d"),
}
# Every category and the residual, family by family.
CATEGORY_COLOURS = {
    name: Colour(f"c-{name}", *_SHADES[name]) for names in FAMILIES.values() for name in names
}
FAMILY_OF = {category: family for family, categories in FAMILIES.items() for category in categories}


def variant_colours(labels: list[str]) -> dict[str, Colour]:
    """A colour for each arm's label, in the order given; the four known variants always have their
    own.
    """
    others = [label for label in labels if label not in KNOWN_VARIANTS]
    return {
        label: (
            KNOWN_VARIANTS.get(label) or OTHER_VARIANTS[others.index(label) % len(OTHER_VARIANTS)]
        )
        for label in labels
    }


def series_colours(labels: list[str]) -> dict[str, Colour]:
    """A colour for each series of a study's figure; known names have fixed colours, and a blue
    similar to one of them is then left out.
    """
    others = [label for label in labels if label not in KNOWN_SERIES]
    spare = OTHER_VARIANTS if len(others) == len(labels) else OTHER_VARIANTS[1:]
    return {
        label: KNOWN_SERIES.get(label) or spare[others.index(label) % len(spare)]
        for label in labels
    }


ALL = (
    *THEME,
    *KNOWN_VARIANTS.values(),
    *OTHER_VARIANTS,
    *KNOWN_SERIES.values(),
    *FAMILY_COLOURS.values(),
    *CATEGORY_COLOURS.values(),
)
_BY_LIGHT = {colour.light: colour.css for colour in ALL}


def themed(svg: str) -> str:
    """`svg` with every colour of the palette replaced by its CSS variable, so that it follows the
    page's theme.
    """
    return re.sub(r"#[0-9a-f]{6}", lambda match: _BY_LIGHT.get(match[0], match[0]), svg)


def variables(dark: bool) -> str:
    """The CSS declarations of one theme."""
    return "".join(f"--{colour.name}:{colour.dark if dark else colour.light};" for colour in ALL)
