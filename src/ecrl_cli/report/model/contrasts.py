"""The contrasts that the page opens with: one arm against another, over all suites and suite by suite, and against the noise floor."""

from __future__ import annotations

from dataclasses import dataclass

from ecrl_cli.metrics.statistics import Paired, Signs
from ecrl_cli.report.formats import plural, share
from ecrl_cli.report.model.comparison import ALL, Comparison
from ecrl_cli.report.model.paired import NoiseFloor, against_floor, contrasts, noise_floor, paired_suites, versus


@dataclass(frozen=True)
class Effect:
    """Goodput of one arm against its base in one suite, or in all of them. `published`: the same on the published clock.

    `suites`: those of the pairs; `floor`: theirs.
    """

    suite: str
    pair: Paired
    published: Paired | None
    floor: NoiseFloor | None
    suites: tuple[str, ...]

    @property
    def noise(self) -> str:
        return against_floor(self.pair, self.floor)


@dataclass(frozen=True)
class Contrast:
    """`effects`: the pooled one first, then one per suite where there are several."""

    arm: str
    base: str
    effects: tuple[Effect, ...]

    @property
    def floor(self) -> NoiseFloor | None:
        return self.effects[0].floor

    @property
    def title(self) -> str:
        return f"{self.arm} against {self.base}"


def contrasted(comparison: Comparison) -> list[Contrast]:
    """Every comparison of arms that has a pair; the repeated reference is the floor and no contrast of its own."""
    found = [(arm, base) for arm, base in contrasts(comparison) if not (arm.startswith("ref2") and base.startswith("ref"))]
    return [Contrast(arm, base, tuple(_effects(comparison, arm, base))) for arm, base in found]


def _effects(comparison: Comparison, arm: str, base: str) -> list[Effect]:
    """Each against the floor of its own suites."""
    found = []
    for scope, suites in sorted(comparison.scopes, key=lambda scope: scope[0] != ALL):
        pair = versus(comparison, arm, base, "goodput", suites)
        if pair:
            members = paired_suites(comparison, arm, base, suites)
            published, floor = versus(comparison, arm, base, "goodput_published_clock", suites), noise_floor(comparison, "goodput", members)
            found.append(Effect(scope, pair, published, floor, tuple(members)))
    return found


def sign_words(signs: Signs) -> str:
    """`23 of 24 up`, ties apart."""
    told = signs.positive + signs.negative
    ties = f", {signs.ties} equal" if signs.ties else ""
    return f"{signs.positive} of {told} up{ties}"


def sign_share(signs: Signs) -> str:
    """The exact interval of the share that is up, and the sign test's p."""
    if signs.low is None or signs.high is None or signs.p is None:
        return ""
    return f"{share(signs.low)} to {share(signs.high)}, p {'<' if signs.p < 0.001 else '='} {max(signs.p, 0.001):.3f}"


def floor_words(floor: NoiseFloor | None) -> str:
    """What the floor rests on."""
    if floor is None:
        return ""
    return f"{plural(floor.pairs, 'pair')}, at most {share(floor.largest)}"


def floor_note(floor: NoiseFloor | None) -> str:
    """Where the floor comes from, and how many of its pairs ended in the same state."""
    if floor is None:
        return "Nothing ran twice, so that there is no noise floor; the variant ref2 repeats ref."
    ended = f"{floor.alike} of {plural(floor.alike + floor.differing, 'pair')} ended bit for bit alike"
    return f"Noise floor: what the mean of as many pairs of {floor.source} may differ by (95%); {ended}."
