"""What may be claimed of the arms, in words: who wins, what checkpoints and failures cost, how large the noise is.

No winner where the interval (Student's, of the mean of ratios) includes zero or reaches into the noise floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from ecrl_cli.metrics.statistics import Paired, Summary, summary
from ecrl_cli.report.formats import change, duration, listed, plural, share
from ecrl_cli.report.model.comparison import ALL, Comparison
from ecrl_cli.report.model.overlap import overlaps
from ecrl_cli.report.model.paired import AGAIN, NO_FLOOR, NoiseFloor, contrasts, floors, noise_floor, paired_suites, pairs, told_apart, versus

T = TypeVar("T")
_MANY = 3  # settings: more have a table, and one sentence
STRUCK = {"blk": "Failures alone", "ovl": "Failures and overlapping together"}


@dataclass(frozen=True)
class Claim:
    """Goodput of an arm against its base; `suite`: in one, empty over all that passed. `published`: on the published clock."""

    arm: str
    base: str
    suite: str
    pair: Paired
    published: Paired | None
    floor: NoiseFloor | None
    spread: str
    scale: str

    @property
    def where(self) -> str:
        return f" in {self.suite}" if self.suite else ""

    @property
    def told_apart(self) -> bool:
        return told_apart(self.pair, self.floor)

    @property
    def sign(self) -> int:
        """1: the arm is faster, -1: slower, 0: not told apart."""
        return (1 if self.gain > 0 else -1) if self.told_apart else 0

    @property
    def gain(self) -> float:
        """The mean of ratios: what the interval is of."""
        return self.pair.mean_of_ratios.mean if self.pair.mean_of_ratios else 0.0

    def numbers(self) -> str:
        """`+3.4% (mean of ratios, 95% +1.0% to +5.8%, 24 pairs of 8 suites and 3 seeds; ratio of means +3.2%; 21 up, 3 down), scale paper`."""
        found = self.pair.mean_of_ratios
        between = f"95% {change(found.low)} to {change(found.high)}" if found and found.low is not None else "no interval"
        parts = [f"mean of ratios, {between}, {self.spread}", f"ratio of means {change(self.pair.ratio_of_means)}"]
        parts += [f"{self.pair.signs.positive} up, {self.pair.signs.negative} down"]
        if self.published and self.published.mean_of_ratios:
            parts.append(f"on the published clock {change(self.published.mean_of_ratios.mean)}")
        return f"{change(self.gain)} ({'; '.join(parts)}), scale {self.scale}"

    def noise(self) -> str:
        """Where the effect stands to the noise, and why it is not told apart if it is not."""
        if self.told_apart:
            return f"above the noise floor of {share(self.floor.of_mean(self.pair.n))}" if self.floor else NO_FLOOR
        found = self.pair.mean_of_ratios
        if found is None or found.low is None or found.high is None:
            return "a single pair has no interval"
        if found.low <= 0 <= found.high:
            return "the interval includes zero"
        return f"the interval reaches into the noise floor of {share(self.floor.of_mean(self.pair.n))}" if self.floor else NO_FLOOR


def claims(comparison: Comparison, arm: str, base: str) -> list[Claim]:
    """The comparisons of the variant `arm` with the variant `base`: one, or one per setting that sets arms apart.

    One per suite where suites are not pooled, and where one says the opposite of another or of them all: no winner hides a crossover.
    """
    variants = {a.label: a.variant for a in comparison.arms}
    wanted = [(a, b) for a, b in contrasts(comparison) if (variants[a], variants[b]) == (arm, base)]
    return [claim for a, b in wanted for claim in _claims(comparison, a, b)]


def _claims(comparison: Comparison, arm: str, base: str) -> list[Claim]:
    each = [_claim(comparison, arm, base, [suite], suite) for suite in paired_suites(comparison, arm, base)]
    if len(each) > 1 and comparison.apart:
        return each
    whole = _claim(comparison, arm, base, comparison.passed)
    return each if {1, -1} <= {claim.sign for claim in (whole, *each)} else [whole]


def _claim(comparison: Comparison, arm: str, base: str, chosen: Sequence[str], suite: str = "") -> Claim:
    found = pairs(comparison, arm, base, chosen)
    suites = paired_suites(comparison, arm, base, chosen)
    seeds = {run.seed for run, _ in found}
    spread = f"{plural(len(found), 'pair')} of {plural(len(suites), 'suite')} and {plural(len(seeds), 'seed')}"
    pair = versus(comparison, arm, base, "goodput", suites)
    if pair is None:
        raise ValueError(f"no pair of {arm} and {base}")
    published = versus(comparison, arm, base, "goodput_published_clock", suites)
    return Claim(arm, base, suite, pair, published, noise_floor(comparison, "goodput", suites), spread, comparison.scale(suites))


def repeated(comparison: Comparison) -> bool:
    """Whether anything was compared more than once, so that there is an interval to speak of."""
    return any(len(pairs(comparison, arm, base)) > 1 for arm, base in contrasts(comparison))


def winner(comparison: Comparison) -> str:
    """Which strategy wins, for a headline; empty where the two were not compared over several pairs."""
    found = [claim for claim in claims(comparison, "ovl", "blk") if claim.pair.n > 1]
    if not found:
        return ""
    if len(found) > 1:
        return _counted(found)
    if not found[0].told_apart:
        return "Overlapped and blocking are not told apart"
    first, second = ("Overlapped", "blocking") if found[0].sign > 0 else ("Blocking", "overlapped")
    return f"{first} beats {second}: goodput of ovl is {change(found[0].gain)} against blk"


def _counted(found: Sequence[Claim]) -> str:
    ahead, behind = (sum(claim.sign == sign for claim in found) for sign in (1, -1))
    what = "suites" if found[0].suite else "settings"
    return f"Of {len(found)} {what} overlapped wins in {ahead}, blocking in {behind}; in {len(found) - ahead - behind} they are not told apart"


def sentences(comparison: Comparison) -> list[str]:
    """The claims, one sentence each: the strategies, the price of checkpoints, the price of failures, the overlap."""
    told = [*_strategies(comparison), *_checkpoints(comparison), *_failures(comparison), *_efficiency(comparison)]
    return [sentence for sentence in told if sentence]


def _strategies(comparison: Comparison) -> list[str]:
    told = []
    found = claims(comparison, "ovl", "blk")
    if len(found) > _MANY:
        most, least = max(found, key=lambda claim: claim.gain), min(found, key=lambda claim: claim.gain)
        extremes = f"from {change(least.gain)} ({least.arm}{least.where}) to {change(most.gain)} ({most.arm}{most.where})"
        return [f"{_counted(found)}: mean ratios of goodput {extremes}, scale {most.scale}."]
    for claim in found:
        who = "Overlapped wins" if claim.gain > 0 else "Blocking wins"
        result = who if claim.told_apart else "Overlapped and blocking are not told apart"
        told.append(f"{result}: goodput of {claim.arm} against {claim.base}{claim.where} is {claim.numbers()}; {claim.noise()}.")
    return told


def _checkpoints(comparison: Comparison) -> list[str]:
    found = claims(comparison, "ref", "clean")
    if not found and any(arm.variant == "ref" for arm in comparison.arms):
        return ["What checkpoints cost by themselves was not measured: ref saves too, in blocking mode; add variant=clean,..."]
    return [_cost("Checkpoints alone", claim) for claim in _few(found)]


def _few(found: Sequence[T]) -> Sequence[T]:
    return found if len(found) <= _MANY else ()


def _failures(comparison: Comparison) -> list[str]:
    """ref saves in blocking mode: blk against it is the price of failures, ovl against it what is left of that after overlapping."""
    told = [_cost(what, claim) for arm, what in STRUCK.items() for claim in _few(claims(comparison, arm, "ref"))]
    return told + [_restarts(comparison, scope, suites) for scope, suites in _few(comparison.overall)]


def _restarts(comparison: Comparison, scope: str, suites: Sequence[str]) -> str:
    totals = [restart.total_s for suite in suites for arm in comparison.of(suite) for run in arm.runs for restart in run.restarts]
    if not totals:
        return ""
    each, where = summary(totals), _where(comparison, scope)
    between = f", 95% {duration(each.low)} to {duration(each.high)}" if each.low is not None else ""
    return f"A restart{where} takes {duration(each.mean)} on average{between} ({plural(each.n, 'restart')}, scale {comparison.scale(suites)})."


def _where(comparison: Comparison, scope: str) -> str:
    """The suite of a sentence, where there is one for each."""
    return f" in {scope}" if scope != ALL and len(comparison.overall) > 1 else ""


def _cost(what: str, claim: Claim) -> str:
    result = f"{what} {'cost' if claim.gain < 0 else 'gain'} goodput" if claim.told_apart else f"{what}: no cost told apart from none"
    return f"{result}: {claim.arm} against {claim.base}{claim.where} {claim.numbers()}; {claim.noise()}."


def _efficiency(comparison: Comparison) -> list[str]:
    """What became of the stall saved; a wall time saved of which zero is possible is not claimed."""
    scopes = [(_where(comparison, scope), suites) for scope, suites in comparison.overall]
    found = [(where, suites, *saved) for where, suites in scopes for saved in overlaps(comparison, suites)]
    told = []
    for where, suites, arm, base, saved in found if len(found) <= _MANY else ():
        if saved.pairs > 1:
            stall, wall, scale = _between(saved.stall_saved_s), _between(saved.wall_saved_s), comparison.scale(suites)
            back = f"come back as wall time, scale {scale}."
            if not _above_zero(saved.wall_saved_s) or saved.efficiency is None:
                back = f"of wall time come back: not told apart from none, scale {scale}."
            elif saved.efficiency_low is not None:
                back = f"({share(saved.efficiency)}, BCa {share(saved.efficiency_low)} to {share(saved.efficiency_high)}) {back}"
            told.append(f"Of {stall} of stall that {arm} saves against {base} in a run{where}, {wall} {back}")
    return told


def _between(found: Summary) -> str:
    """A mean of seconds with its interval by Student's t."""
    return f"{duration(found.mean)} (95% {duration(found.low)} to {duration(found.high)})" if found.low is not None else duration(found.mean)


def _above_zero(found: Summary) -> bool:
    return found.low is not None and found.low > 0


def noise(comparison: Comparison) -> str:
    """How far runs of one configuration lie apart, and whether they ended alike."""
    found = floors(comparison, "goodput")
    if not found:
        return "How far equal runs lie apart here was not measured: add variant=...,ref2." if repeated(comparison) else ""
    told = [
        f"{'ref2 and ref' if floor.source == AGAIN else 'equal runs of different suites'} differ by up to {share(floor.largest)} in goodput "
        f"({plural(floor.pairs, 'pair')}, {floor.alike} of {floor.alike + floor.differing} ended bit for bit alike)"
        for floor in found
    ]
    return f"The noise floor: {listed(told)}; scale {comparison.scale(comparison.passed)}."
