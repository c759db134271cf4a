"""Judges the claims of the two reports against the runs at hand, by paired intervals and the noise
floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ecrl_cli.metrics.statistics import Summary
from ecrl_cli.replication.report.cells import change, estimate, of_means, of_ratios, words
from ecrl_cli.replication.report.experiments import ARM_WORDS
from ecrl_cli.replication.report.matrix_tables import gains
from ecrl_cli.replication.report.sample import CLOCKS, WALLS, Experiment, same_losses
from ecrl_cli.replication.report.values import BY_EXPERIMENT, PUBLISHED, SUITES, ExperimentValues
from ecrl_cli.report.formats import NONE, listed, plural, share
from ecrl_cli.report.model.contrast import NO_FLOOR, Contrast

TOO_SMALL: Literal["scale too small to say"] = "scale too small to say"
ASKED_AT = "paper"  # the scale of the published experiments
Verdict = Literal[
    "supported", "contradicted", "undecided", "not measured", "scale too small to say"
]
_CLOCK_OF = CLOCKS | {wall: CLOCKS[clock] for clock, wall in WALLS.items()}


@dataclass(frozen=True)
class Claim:
    """`published`, `measured`: in words. `verdict`: on the claim's direction. `why`: its basis,
    including the size against the published one. `n`: number of pairs (or of runs, for claims on
    single runs) behind the verdict.
    """

    experiment: str
    claim: str
    source: str
    published: str
    measured: str
    verdict: Verdict
    why: str
    n: int = 0

    @property
    def row(self) -> tuple[str, ...]:
        return (
            self.experiment,
            f"{self.claim} ({self.source})",
            self.published,
            self.measured,
            self.verdict,
            self.why,
        )


Size = Literal["ratio of means", "mean of ratios", ""]
MEANS: Size = "ratio of means"


@dataclass(frozen=True)
class _Effect:
    """A claim that one arm lies above or below another on the clock of `measure`.

    `published`: percent; its sign is the claim. `size`: the ratio it is compared with, or empty if
    its number belongs to another clock.
    """

    claim: str
    source: str
    arm: str
    base: str
    measure: str
    published: float
    size: Size = MEANS


_WRITES = {
    arm: total / PUBLISHED.writes_counted[arm]
    for arm, total in zip(("ref", "blk", "ovl"), PUBLISHED.table5["write_s"].arms, strict=True)
}
_GAIN, _DROP = PUBLISHED.table5["goodput"].difference or 0.0, PUBLISHED.table5["drop"]
_CLOCK_GAIN = PUBLISHED.supervisor_clock_gain.mean
_MATRIX = (
    _Effect(
        "overlapped has more goodput than blocking",
        "S0 abstract",
        "ovl",
        "blk",
        "goodput",
        _CLOCK_GAIN,
        "mean of ratios",
    ),
    _Effect(
        "overlapped has more goodput than blocking",
        "S0 abstract",
        "ovl",
        "blk",
        "goodput_published_clock",
        _GAIN,
    ),
    _Effect(
        "overlapped stalls less than blocking",
        "S0 section 7.1",
        "ovl",
        "blk",
        "stall_s",
        -PUBLISHED.stall_reduction,
    ),
    _Effect(
        "overlapped spends less time writing than blocking, per counted write",
        "S0 section 7.1",
        "ovl",
        "blk",
        "durable_write_per_checkpoint_s",
        100 * (_WRITES["ovl"] / _WRITES["blk"] - 1),
    ),
    _Effect(
        "overlapped ends sooner than blocking",
        "S0 section 6.1",
        "ovl",
        "blk",
        "wall_published_clock_s",
        -PUBLISHED.wall_reduction,
    ),
    _Effect(
        "blocking with failures lies below the reference",
        "S0 Table 5",
        "blk",
        "ref",
        "goodput_published_clock",
        _DROP.blk,
    ),
    _Effect(
        "overlapped with failures lies below the reference",
        "S0 Table 5",
        "ovl",
        "ref",
        "goodput_published_clock",
        _DROP.ovl,
    ),
)


def claims(found: Sequence[Experiment]) -> list[Claim]:
    """Every claim of the experiments at hand, in the order of the reports. A verdict is given only
    at the scale at which the claim was made.
    """
    return [_at_scale(claim, experiment) for experiment in found for claim in _claims([experiment])]


def _at_scale(claim: Claim, experiment: Experiment) -> Claim:
    scales = experiment.scales
    if claim.verdict == "not measured" or scales == [ASKED_AT]:
        return claim
    asked = f"claimed at scale {ASKED_AT}, measured at {listed(scales) or 'no scale on record'}"
    return replace(claim, verdict=TOO_SMALL, why=f"{asked}; {claim.why}")


def _claims(found: Sequence[Experiment]) -> list[Claim]:
    told: list[Claim] = []
    for experiment in found:
        if experiment.is_matrix:
            effects = [_effect(experiment, effect) for effect in _MATRIX]
            told += [
                _passed(experiment),
                *effects,
                _unanimous(experiment),
                _heavier(experiment),
                _write_and_wall(experiment),
                _restarted(experiment),
            ]
        else:
            told += _project(experiment, BY_EXPERIMENT[experiment.ident])
    return told


def _project(experiment: Experiment, values: ExperimentValues) -> list[Claim]:
    told = [_passed(experiment)]
    for arm, drop in values.drops.items():
        effect = _Effect(
            f"{ARM_WORDS[arm]} lies below the reference",
            values.source,
            arm,
            "ref",
            "goodput_published_clock",
            drop,
        )
        told.append(_effect(experiment, effect))
    if "ovl" in values.goodput:
        published = 100 * (values.goodput["ovl"] / values.goodput["blk"] - 1)
        sizes: dict[str, Size] = {"goodput": "", "goodput_published_clock": MEANS}
        for measure, size in sizes.items():
            told.append(
                _effect(
                    experiment,
                    _Effect(
                        "overlapped does not beat blocking",
                        "S1 section 11.2",
                        "ovl",
                        "blk",
                        measure,
                        published,
                        size,
                    ),
                )
            )
    return told + _trajectories(experiment, values)


def _effect(experiment: Experiment, effect: _Effect) -> Claim:
    """Judges the direction: the interval of the paired ratios must exclude zero and, with a noise
    floor, lie above it.
    """
    found = experiment.contrast(effect.arm, effect.base, effect.measure)
    on = f", {_CLOCK_OF[effect.measure]}" if effect.measure in _CLOCK_OF else ""
    verdict: Verdict = "not measured"
    if found and found.pair.mean_of_ratios:
        agrees = (found.effect > 0) == (effect.published > 0)
        verdict = (
            "undecided" if not found.distinguishable else "supported" if agrees else "contradicted"
        )
    why = (
        f"{plural(found.pair.n, 'pair')}; {_noise(found)}; {_size(found, effect)}"
        if found
        else "no pair of these arms"
    )
    published = f"{effect.published:+.4g}% ({effect.size})" if effect.size else NONE
    return Claim(
        experiment.ident,
        effect.claim + on,
        effect.source,
        published,
        _both(found),
        verdict,
        why,
        found.pair.n if found else 0,
    )


def _both(found: Contrast | None) -> str:
    """Both ratios, named: the verdict uses the mean of ratios, most published sizes are ratios of
    means.
    """
    return (
        f"mean of ratios {words(of_ratios(found.pair))}; ratio of means"
        f" {words(of_means(found.pair))}"
        if found
        else NONE
    )


def _noise(found: Contrast) -> str:
    said = found.against_floor or NO_FLOOR
    return (
        f"{said} (means of equal runs differ by up to {share(found.noise)})"
        if found.noise is not None
        else said
    )


def _size(found: Contrast, effect: _Effect) -> str:
    """Whether the published size lies within the interval of the same ratio; it was measured in
    another setting.
    """
    if not effect.size:
        return "no size was published on this clock"
    low, high = (
        (found.pair.ratio_low, found.pair.ratio_high)
        if effect.size == MEANS
        else found.interval or (None, None)
    )
    if low is None or high is None:
        return "no interval for its size"
    inside = low <= effect.published / 100 <= high
    return f"the published size lies {'inside' if inside else 'outside'} the interval"


def _passed(experiment: Experiment) -> Claim:
    """Passed gates over all runs, including those of refused suites."""
    states = [run.verdict.status for run in experiment.runs]
    valid, broken = states.count("valid"), states.count("invalid")
    verdict: Verdict = (
        "contradicted"
        if broken
        else "supported"
        if states and valid == len(states)
        else "undecided"
    )
    source = "S0 abstract" if experiment.is_matrix else "S1 section 10"
    why = (
        f"{broken} broke a promise, {len(states) - valid - broken} not judged; verdicts are ecrl"
        " verify's, which check more than sample ids"
    )
    return Claim(
        experiment.ident,
        "every run is correct",
        source,
        "1.0000",
        f"{valid} of {len(states)} valid",
        verdict,
        why,
        len(states),
    )


def _unanimous(experiment: Experiment) -> Claim:
    found = gains(experiment)
    positive = sum(gain > 0 for gain in found.values())
    each = {suite: experiment.contrast("ovl", "blk", "goodput", [suite]) for suite in found}
    told = [suite for suite, one in each.items() if one and one.distinguishable]
    worse = [suite for suite in told if found[suite] < 0]
    every = len(told) == len(SUITES) and positive == len(SUITES)
    verdict: Verdict = (
        "not measured"
        if not found
        else "contradicted"
        if worse
        else "supported"
        if every
        else "undecided"
    )
    why = (
        f"{len(told)} of {len(found)} statistically distinguishable from zero and from the noise;"
        " launch to target"
    )
    measured = f"{positive} of {len(found)} above zero" if found else NONE
    n = sum(one.pair.n for one in each.values() if one)
    return Claim(
        "exp4",
        "overlapped beats blocking in every suite",
        "S0 section 7.1",
        f"8 of {len(SUITES)}",
        measured,
        verdict,
        why,
        n,
    )


def _heavier(experiment: Experiment) -> Claim:
    """ResNet-50 suites save more stall than ResNet-18 suites, by intervals of the paired
    differences.
    """
    groups = [[v.suite for v in SUITES if v.model == model] for model in ("r18", "r50")]
    found = [experiment.contrast("ovl", "blk", "stall_s", suites) for suites in groups]
    pairs = [each.pair if each else None for each in found]
    small, large = (pair.difference if pair else None for pair in pairs)
    sure = all(each and each.distinguishable for each in found)
    verdict: Verdict = (
        "not measured" if not (small and large) else _ordered(large, small) if sure else "undecided"
    )
    measured = (
        f"{words(change(pairs[1]))} s and {words(change(pairs[0]))} s" if small and large else NONE
    )
    why = "intervals of the stall change per run, ResNet-50 against ResNet-18"
    return Claim(
        "exp4",
        "more stall is saved on ResNet-50 than on ResNet-18",
        "S0 section 6.4",
        "-14.7396 s and -6.3918 s",
        measured,
        verdict,
        why,
        _least(found),
    )


def _write_and_wall(experiment: Experiment) -> Claim:
    """Fewer writes are not enough: wall time falls by less, relatively."""
    write, wall = (
        experiment.contrast("ovl", "blk", measure)
        for measure in ("durable_write_s", "wall_published_clock_s")
    )
    verdict: Verdict = "not measured"
    if write and wall and write.pair.mean_of_ratios and wall.pair.mean_of_ratios:
        verdict = (
            _ordered(write.pair.mean_of_ratios, wall.pair.mean_of_ratios)
            if write.distinguishable
            else "undecided"
        )
        if verdict == "contradicted" and not wall.distinguishable:
            # that the wall time falls by more can only be said of a wall time known to fall
            verdict = "undecided"
    measured = (
        f"write: {_both(write)}; wall, {CLOCKS['goodput_published_clock']}: {_both(wall)}"
        if verdict != "not measured"
        else NONE
    )
    published = f"write {-PUBLISHED.write_reduction}%, wall {-PUBLISHED.wall_reduction}%"
    why = (
        "intervals of two mean ratios; the published write total counts 3 of 32 writes of"
        " overlapped, so that its fall is not one of writing"
    )
    return Claim(
        "exp4",
        "the wall time falls by less than the write time",
        "S0 section 7.2",
        published,
        measured,
        verdict,
        why,
        _least([write, wall]),
    )


def _least(found: Sequence[Contrast | None]) -> int:
    return min((each.pair.n if each else 0 for each in found), default=0)


def _ordered(lower: Summary, higher: Summary) -> Verdict:
    """Whether `lower` is below `higher`: undecided unless their intervals are disjoint."""
    if lower.low is None or lower.high is None or higher.low is None or higher.high is None:
        return "undecided"
    return (
        "supported"
        if lower.high < higher.low
        else "contradicted"
        if higher.high < lower.low
        else "undecided"
    )


def _restarted(experiment: Experiment) -> Claim:
    counts = [
        run.counted.restarts
        for arm in ("blk", "ovl")
        for run in experiment.runs_of(arm)
        if run.counted
    ]
    right = sum(number == PUBLISHED.table5["restarts"].blk for number in counts)
    verdict: Verdict = (
        "not measured" if not counts else "supported" if right == len(counts) else "contradicted"
    )
    measured = f"in {right} of {plural(len(counts), 'run')}" if counts else NONE
    return Claim(
        "exp4",
        "two restarts in every run with failures",
        "S0 abstract",
        "2.0",
        measured,
        verdict,
        "exact, in every averaged run",
        len(counts),
    )


def _trajectories(experiment: Experiment, values: ExperimentValues) -> list[Claim]:
    """Whether failures (or a change of ranks) change the losses: whether the published area under
    the loss difference is zero.
    """
    told = []
    for arm, distances in values.divergence.items():
        runs = [
            run
            for name in (values.drops if arm == "pooled" else (arm,))
            for run in experiment.runs_of(name)
        ]
        found, same = experiment.divergence(runs, "auc"), distances["auc"] == 0
        equal = [same_losses(run) for run in runs]
        who = "arms with failures" if arm == "pooled" else ARM_WORDS[arm]
        claim = f"{who}: the losses {'equal' if same else 'leave'} the reference's"
        verdict: Verdict = "not measured"
        if set(equal) - {None}:  # one differing run decides; equality needs all of them
            verdict = (
                "undecided"
                if None in equal and False not in equal
                else "supported"
                if all(equal) == same
                else "contradicted"
            )
        measured = (
            f"{equal.count(True)} of {plural(len(runs), 'run')} equal in every step,"
            f" {equal.count(None)} not compared"
        )
        measured = f"{measured}; {words(estimate(found))}"
        why = (
            "area of the absolute loss difference over the committed steps; 0 is exact equality in"
            " every step"
        )
        told.append(
            Claim(
                experiment.ident,
                claim,
                values.source,
                f"{distances['auc']:.4f}",
                measured,
                verdict,
                why,
                len(runs) - equal.count(None),
            )
        )
    return told
