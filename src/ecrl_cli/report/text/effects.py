"""The claims that may be made about the axes of a sweep: a sentence for each effect, and the
statistics behind it.
"""

from __future__ import annotations

from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.contrast import Contrast
from ecrl_cli.report.model.effects import effects, swept
from ecrl_cli.report.text.claims import GOODPUT, Statement, fields

MOST_EFFECTS = 8  # sentences: the tables have all
DIFFERS = "{axis}: {arm} has {size} {more} goodput than {base}, seen in {seen}."
NO_DIFFERENCE = "{axis}: no difference between {arm} and {base} that {seen} could show."


def effect_statements(comparison: Comparison) -> list[Statement]:
    """A sentence for each effect that has more than one pair, up to MOST_EFFECTS."""
    found = [effect for effect in swept(effects(comparison)) if effect.whole.pair.n > 1]
    return [_statement(effect.axis.name, effect.whole) for effect in found[:MOST_EFFECTS]]


def _statement(axis: str, found: Contrast) -> Statement:
    words = {**fields(found), "where": "", "more": "more" if found.effect > 0 else "less"}
    template = DIFFERS if found.distinguishable else NO_DIFFERENCE
    name = axis[:1].upper() + axis[1:]
    return Statement(template.format(axis=name, **words), GOODPUT.format(**words))
