"""What the two reports claim, and whether the runs at hand bear it out: by paired intervals and the noise floor, never by eye."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ecrl_cli.metrics.statistics import Paired, Summary
from ecrl_cli.replication.report.cells import change, estimate, of_means, of_ratios
from ecrl_cli.replication.report.experiments import ARM_WORDS
from ecrl_cli.replication.report.sample import CLOCKS, WALLS, Experiment, losses_equal
from ecrl_cli.replication.report.suites import gains
from ecrl_cli.replication.report.values import (
    EXPERIMENTS,
    STALL_REDUCTION,
    SUITES,
    SUPERVISOR_CLOCK_GAIN,
    TABLE5,
    WALL_REDUCTION,
    WRITE_REDUCTION,
    WRITES_COUNTED,
    ExperimentValues,
)
from ecrl_cli.report.formats import NONE, listed, plural, share
from ecrl_cli.report.model.paired import NO_FLOOR, NoiseFloor, against_floor, noise_floor, told_apart

TOO_SMALL: Literal["scale too small to say"] = "scale too small to say"
ASKED_AT = "paper"  # the scale of the published experiments
Verdict = Literal["supported", "contradicted", "undecided", "not measured", "scale too small to say"]
_CLOCK_OF = CLOCKS | {wall: CLOCKS[clock] for clock, wall in WALLS.items()}
COLUMNS = ("Experiment", "Claim", "Published", "Measured", "Verdict", "Why")


@dataclass(frozen=True)
class Claim:
    """`published`, `measured`: in words. `verdict`: of the claim's direction. `why`: what it rests on, the size against the published one too.
    `n`: how many pairs, or runs where it is about each run, the verdict rests on."""

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
        return (self.experiment, f"{self.claim} ({self.source})", self.published, self.measured, self.verdict, self.why)


Size = Literal["ratio of means", "mean of ratios", ""]
MEANS: Size = "ratio of means"


@dataclass(frozen=True)
class _Effect:
    """A claim that one arm lies above or below another, on the clock of `measure`.

    `published`: percent; its sign is the claim. `size`: the ratio that it is, or empty where its number belongs to another clock.
    """

    claim: str
    source: str
    arm: str
    base: str
    measure: str
    published: float
    size: Size = MEANS


_MATRIX = (
    _Effect("overlapped has more goodput than blocking", "S0 abstract", "ovl", "blk", "goodput", SUPERVISOR_CLOCK_GAIN[0], "mean of ratios"),
    _Effect("overlapped has more goodput than blocking", "S0 abstract", "ovl", "blk", "goodput_published_clock", TABLE5["goodput"][3] or 0.0),
    _Effect("overlapped stalls less than blocking", "S0 section 7.1", "ovl", "blk", "stall_s", -STALL_REDUCTION),
    _Effect(
        "overlapped spends less time writing than blocking, per counted write",
        "S0 section 7.1",
        "ovl",
        "blk",
        "durable_write_per_checkpoint_s",
        100 * ((TABLE5["write_s"][2] / WRITES_COUNTED["ovl"]) / (TABLE5["write_s"][1] / WRITES_COUNTED["blk"]) - 1),
    ),
    _Effect("overlapped ends sooner than blocking", "S0 section 6.1", "ovl", "blk", "wall_published_clock_s", -WALL_REDUCTION),
    _Effect("blocking with failures lies below the reference", "S0 Table 5", "blk", "ref", "goodput_published_clock", TABLE5["drop"][1]),
    _Effect("overlapped with failures lies below the reference", "S0 Table 5", "ovl", "ref", "goodput_published_clock", TABLE5["drop"][2]),
)


def claims(found: Sequence[Experiment]) -> list[Claim]:
    """Every claim of the experiments at hand, in the order of the reports. A verdict is given only at the scale that the claim was made at."""
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
        if experiment.ident == "exp4":
            effects = [_effect(experiment, effect) for effect in _MATRIX]
            told += [_passed(experiment), *effects, _unanimous(experiment), _heavier(experiment), _write_and_wall(experiment), _restarted(experiment)]
        else:
            told += _project(experiment, next(values for values in EXPERIMENTS if values.ident == experiment.ident))
    return told


def _project(experiment: Experiment, values: ExperimentValues) -> list[Claim]:
    told = [_passed(experiment)]
    for arm, drop in values.drops.items():
        effect = _Effect(f"{ARM_WORDS[arm]} lies below the reference", values.source, arm, "ref", "goodput_published_clock", drop)
        told.append(_effect(experiment, effect))
    if "ovl" in values.goodput:
        published = 100 * (values.goodput["ovl"] / values.goodput["blk"] - 1)
        sizes: dict[str, Size] = {"goodput": "", "goodput_published_clock": MEANS}
        for measure, size in sizes.items():
            told.append(_effect(experiment, _Effect("overlapped does not beat blocking", "S1 section 11.2", "ovl", "blk", measure, published, size)))
    return told + _trajectories(experiment, values)


def _effect(experiment: Experiment, effect: _Effect) -> Claim:
    """The direction is judged: the interval of the paired ratios excludes zero and, where there is a noise floor, lies above it."""
    pair = experiment.pair(effect.arm, effect.base, effect.measure)
    floor = noise_floor(experiment.comparison, effect.measure, experiment.suites)
    on = f", {_CLOCK_OF[effect.measure]}" if effect.measure in _CLOCK_OF else ""
    verdict: Verdict = "not measured"
    if pair and pair.mean_of_ratios:
        agrees = (pair.mean_of_ratios.mean > 0) == (effect.published > 0)
        verdict = "undecided" if not told_apart(pair, floor) else "supported" if agrees else "contradicted"
    why = f"{plural(pair.n, 'pair')}; {_noise(pair, floor)}; {_size(pair, effect)}" if pair else "no pair of these arms"
    published = f"{effect.published:+.4g}% ({effect.size})" if effect.size else NONE
    return Claim(experiment.ident, effect.claim + on, effect.source, published, _both(pair), verdict, why, pair.n if pair else 0)


def _both(pair: Paired | None) -> str:
    """Both ratios, named: the verdict rests on the mean of ratios, most published sizes are ratios of means."""
    return f"mean of ratios {of_ratios(pair)}; ratio of means {of_means(pair)}" if pair else NONE


def _noise(pair: Paired, floor: NoiseFloor | None) -> str:
    said = against_floor(pair, floor) or NO_FLOOR
    return f"{said} (means of equal runs differ by up to {share(floor.of_mean(pair.n))})" if floor else said


def _size(pair: Paired, effect: _Effect) -> str:
    """Whether the published size lies within the interval of the same ratio; it was measured in another setting."""
    if not effect.size:
        return "no size was published on this clock"
    typical = pair.mean_of_ratios
    low, high = (pair.ratio_low, pair.ratio_high) if effect.size == MEANS else (typical.low, typical.high) if typical else (None, None)
    if low is None or high is None:
        return "no interval for its size"
    inside = low <= effect.published / 100 <= high
    return f"the published size lies {'inside' if inside else 'outside'} the interval"


def _passed(experiment: Experiment) -> Claim:
    """Of all runs, those of refused suites too."""
    states = [run.verdict.status for run in experiment.runs]
    valid, broken = states.count("valid"), states.count("invalid")
    verdict: Verdict = "contradicted" if broken else "supported" if states and valid == len(states) else "undecided"
    source = "S0 abstract" if experiment.ident == "exp4" else "S1 section 10"
    why = f"{broken} broke a promise, {len(states) - valid - broken} not judged; verdicts are ecrl verify's, which check more than sample ids"
    return Claim(experiment.ident, "every run is correct", source, "1.0000", f"{valid} of {len(states)} valid", verdict, why, len(states))


def _unanimous(experiment: Experiment) -> Claim:
    found = gains(experiment)
    positive = sum(gain > 0 for gain in found.values())
    apart = {suite: experiment.pair("ovl", "blk", "goodput", [suite]) for suite in found}
    told = [suite for suite, pair in apart.items() if pair and told_apart(pair, noise_floor(experiment.comparison, "goodput", [suite]))]
    worse = [suite for suite in told if found[suite] < 0]
    every = len(told) == len(SUITES) and positive == len(SUITES)
    verdict: Verdict = "not measured" if not found else "contradicted" if worse else "supported" if every else "undecided"
    why = f"{len(told)} of {len(found)} told apart from zero and noise; launch to target"
    measured = f"{positive} of {len(found)} above zero" if found else NONE
    n = sum(pair.n for pair in apart.values() if pair)
    return Claim("exp4", "overlapped beats blocking in every suite", "S0 section 7.1", f"8 of {len(SUITES)}", measured, verdict, why, n)


def _heavier(experiment: Experiment) -> Claim:
    """ResNet-50 suites save more stall than ResNet-18 suites: by intervals of the paired differences."""
    groups = [[v.suite for v in SUITES if v.model == model] for model in ("r18", "r50")]
    pairs = [experiment.pair("ovl", "blk", "stall_s", suites) for suites in groups]
    small, large = (pair.difference if pair else None for pair in pairs)
    sure = all(_sure(experiment, pair, "stall_s", suites) for pair, suites in zip(pairs, groups, strict=True))
    verdict: Verdict = "not measured" if not (small and large) else _ordered(large, small) if sure else "undecided"
    measured = f"{change(pairs[1])} s and {change(pairs[0])} s" if small and large else NONE
    why = "intervals of the stall change per run, ResNet-50 against ResNet-18"
    return Claim(
        "exp4",
        "more stall is saved on ResNet-50 than on ResNet-18",
        "S0 section 6.4",
        "-14.7396 s and -6.3918 s",
        measured,
        verdict,
        why,
        _least(pairs),
    )


def _write_and_wall(experiment: Experiment) -> Claim:
    """Saving writes is not enough: the wall time falls by less, relatively."""
    write, wall = (experiment.pair("ovl", "blk", measure) for measure in ("durable_write_s", "wall_published_clock_s"))
    verdict: Verdict = "not measured"
    if write and wall and write.mean_of_ratios and wall.mean_of_ratios:
        sure = _sure(experiment, write, "durable_write_s")
        verdict = _ordered(write.mean_of_ratios, wall.mean_of_ratios) if sure else "undecided"
        if verdict == "contradicted" and not _sure(experiment, wall, "wall_published_clock_s"):
            verdict = "undecided"  # that the wall time falls by more needs a wall time that is known to fall
    measured = f"write: {_both(write)}; wall, {CLOCKS['goodput_published_clock']}: {_both(wall)}" if verdict != "not measured" else NONE
    published = f"write {-WRITE_REDUCTION}%, wall {-WALL_REDUCTION}%"
    why = "intervals of two mean ratios; the published write total counts 3 of 32 writes of overlapped, so that its fall is not one of writing"
    return Claim(
        "exp4", "the wall time falls by less than the write time", "S0 section 7.2", published, measured, verdict, why, _least([write, wall])
    )


def _sure(experiment: Experiment, pair: Paired | None, measure: str, suites: Sequence[str] | None = None) -> bool:
    """Whether the report calls this difference distinguishable: from zero and from the noise between equal runs."""
    chosen = experiment.suites if suites is None else [suite for suite in suites if suite in experiment.suites]
    return pair is not None and told_apart(pair, noise_floor(experiment.comparison, measure, chosen))


def _least(pairs: Sequence[Paired | None]) -> int:
    return min((pair.n if pair else 0 for pair in pairs), default=0)


def _ordered(lower: Summary, higher: Summary) -> Verdict:
    """Whether `lower` is below `higher`: undecided unless their intervals lie apart."""
    if lower.low is None or lower.high is None or higher.low is None or higher.high is None:
        return "undecided"
    return "supported" if lower.high < higher.low else "contradicted" if higher.high < lower.low else "undecided"


def _restarted(experiment: Experiment) -> Claim:
    counts = [run.counted.restarts for arm in ("blk", "ovl") for run in experiment.runs_of(arm) if run.counted]
    right = sum(number == TABLE5["restarts"][1] for number in counts)
    verdict: Verdict = "not measured" if not counts else "supported" if right == len(counts) else "contradicted"
    measured = f"in {right} of {plural(len(counts), 'run')}" if counts else NONE
    return Claim(
        "exp4", "two restarts in every run with failures", "S0 abstract", "2.0", measured, verdict, "exact, in every averaged run", len(counts)
    )


def _trajectories(experiment: Experiment, values: ExperimentValues) -> list[Claim]:
    """Whether failures (or a change of ranks) change the losses: the published area under the loss difference is zero, or it is not."""
    told = []
    for arm, distances in values.divergence.items():
        runs = [run for name in (values.drops if arm == "pooled" else (arm,)) for run in experiment.runs_of(name)]
        found, same = experiment.divergence(runs, "auc"), distances["auc"] == 0
        equal = [losses_equal(run) for run in runs]
        who = "arms with failures" if arm == "pooled" else ARM_WORDS[arm]
        claim = f"{who}: the losses {'equal' if same else 'leave'} the reference's"
        verdict: Verdict = "not measured"
        if set(equal) - {None}:  # one that differs decides; that all are equal only all can say
            verdict = "undecided" if None in equal and False not in equal else "supported" if all(equal) == same else "contradicted"
        measured = f"{equal.count(True)} of {plural(len(runs), 'run')} equal in every step, {equal.count(None)} not compared; {estimate(found)}"
        why = "area of the absolute loss difference over the committed steps; 0 is exact equality in every step"
        told.append(Claim(experiment.ident, claim, values.source, f"{distances['auc']:.4f}", measured, verdict, why, len(runs) - equal.count(None)))
    return told
