"""What these runs show beyond or against the published experiments: what their records cannot tell, or told wrongly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from ecrl_cli.metrics.statistics import summary
from ecrl_cli.replication.report.cells import estimate, of_means, of_ratios
from ecrl_cli.replication.report.claims import Claim
from ecrl_cli.replication.report.sample import CLOCKS, Experiment, diverged
from ecrl_cli.replication.report.values import (
    DIVERGED_AFTER_FAILURE,
    FIRST_LINE_CLOCK_GAIN,
    MOST_INFLIGHT,
    RESTART_GAP_S,
    SUPERVISOR_CLOCK_GAIN,
    TABLE5,
    WRITES_COUNTED,
    WRITES_SUBMITTED,
)
from ecrl_cli.report.formats import change as relative
from ecrl_cli.report.formats import count, duration, plural, share
from ecrl_cli.report.model.overlap import overlaps
from ecrl_cli.report.model.paired import NoiseFloor, floors, noise_floor, told_apart
from ecrl_cli.report.model.run_record import Run

COLUMNS = ("Experiment", "Finding", "Published", "Measured", "Kind", "n")


@dataclass(frozen=True)
class NewFinding:
    """`kind`: beyond (the published records do not say), against (they say otherwise) or limit (these runs do not say either)."""

    experiment: str
    finding: str
    published: str
    measured: str
    kind: str
    n: int

    @property
    def row(self) -> tuple[str, ...]:
        return tuple(str(value) for value in asdict(self).values())


def new_findings(found: Sequence[Experiment], told: Sequence[Claim]) -> list[NewFinding]:
    """Experiment by experiment; the claims that the runs contradict come first."""
    against = [NewFinding(c.experiment, c.claim, c.published, c.measured, "against", c.n) for c in told if c.verdict == "contradicted" and c.n]
    return against + [entry for experiment in found if experiment.suites for look in _LOOKS for entry in look(experiment)]


def _end_states(experiment: Experiment) -> list[NewFinding]:
    """Over all runs with failures: one that was not compared with its reference is not known to end as it does."""
    ends = [diverged(run, "final_equal") for run in _counted(experiment) if run.fired]
    alike = sum(isinstance(end, dict) and all(end.values()) for end in ends)
    unknown = sum(not isinstance(end, dict) for end in ends)
    if unknown == len(ends):
        return []
    there, of = DIVERGED_AFTER_FAILURE
    matrix = f"{there} of {of} ResNet-50 runs left their reference after the first failure, unseen by its checks (raw logs)"
    published = matrix if experiment.ident == "exp4" else "correct by sample ids, whatever the state"
    measured = f"{alike} of {len(ends)} runs with failures end bit for bit as their reference" + (f", {unknown} not compared" if unknown else "")
    whole, known = alike == len(ends), alike + unknown == len(ends)
    title = (
        "recovery keeps the trajectory" if whole else "recovery is not shown to keep the trajectory" if known else "recovery leaves the trajectory"
    )
    kind = "limit" if known and not whole else "against" if whole and experiment.ident == "exp4" else "beyond"
    return [NewFinding(experiment.ident, title, published, measured, kind, len(ends))]


def _clocks(experiment: Experiment) -> list[NewFinding]:
    pairs = {measure: experiment.pair("ovl", "blk", measure) for measure in CLOCKS}
    measured = "; ".join(f"{CLOCKS[measure]} {of_ratios(pair)}" for measure, pair in pairs.items() if pair)
    published = f"published clock {FIRST_LINE_CLOCK_GAIN:+.2f}%; launch to target {SUPERVISOR_CLOCK_GAIN[0]:+.2f}% (recomputed from its raw logs)"
    n = max((pair.n for pair in pairs.values() if pair), default=0)
    there = published if experiment.ident == "exp4" else "published clock only"
    signs = {_sign(experiment, measure) for measure in CLOCKS}
    if {1, -1} <= signs:
        found = "depends on the clock"
    elif 0 not in signs:
        found = "has one sign on both clocks"
    else:
        found = "is not statistically distinguishable from none" + (" on one of the clocks" if len(signs) > 1 else "")
    return [NewFinding(experiment.ident, f"the gain of overlapped {found} (mean of ratios)", there, measured, "beyond", n)] if n else []


def _sign(experiment: Experiment, measure: str) -> int:
    """Of the gain of overlapped: 1, -1, or 0 where it is not told apart from none."""
    pair = experiment.pair("ovl", "blk", measure)
    if not (pair and pair.mean_of_ratios and told_apart(pair, noise_floor(experiment.comparison, measure, experiment.suites))):
        return 0
    return 1 if pair.mean_of_ratios.mean > 0 else -1


def _accounted(experiment: Experiment) -> list[NewFinding]:
    sums = {key: sum(int(run.metrics.checkpoints[key]) for run in _counted(experiment) if run.metrics) for key in _ENDS}
    ended = ", ".join(f"{count(sums[key])} {key}" for key in _ENDS[1:])
    matrix = experiment.ident == "exp4"
    published = f"{WRITES_COUNTED['ovl']} of {WRITES_SUBMITTED} writes of an overlapped run are in its total (raw logs)" if matrix else "not said"
    measured, kind = f"{count(sums['submitted'])} submitted: {ended}", "against" if matrix else "beyond"
    return [NewFinding(experiment.ident, "every submitted checkpoint is accounted for", published, measured, kind, len(_counted(experiment)))]


_ENDS = ("submitted", "committed", "failed", "lost")


def _inflight(experiment: Experiment) -> list[NewFinding]:
    runs = [run for run in experiment.runs_of("ovl") if run.metrics]
    if not runs:
        return []
    most = max((save.inflight for run in runs for save in run.saves), default=0)
    waited = summary([run.metrics.checkpoints["backpressure_s"] for run in runs if run.metrics])
    measured = f"at most {most} in flight, {duration(waited.mean)} of backpressure per run"
    published = f"at most {MOST_INFLIGHT} of 4 in flight (raw logs)"
    return [NewFinding(experiment.ident, "how far the queue of overlapped writes was used", published, measured, "beyond", len(runs))]


def _saved(experiment: Experiment) -> list[NewFinding]:
    found = []
    stall, wall = TABLE5["stall_s"][3] or 0.0, TABLE5["wall_s"][3] or 0.0
    published = (
        f"{share(wall / stall)} of the stall saved ({-stall:.4f} s) is wall time saved, {CLOCKS['goodput_published_clock']}"
        if experiment.ident == "exp4"
        else "not said"
    )
    for _, _, saved in overlaps(experiment.comparison, experiment.suites):
        measured = (
            f"stall {estimate(saved.stall_saved_s, sign=True)} s, wall {estimate(saved.wall_saved_s, sign=True)} s saved per run, {CLOCKS['goodput']}"
        )
        measured += f": {share(saved.efficiency)}" if saved.efficiency is not None else ""
        found.append(NewFinding(experiment.ident, "what saving stall is worth", published, measured, "beyond", saved.pairs))
    return found


def _restart_costs(experiment: Experiment) -> list[NewFinding]:
    restarts = [restart for run in _counted(experiment) for restart in run.restarts]
    if not restarts:
        return []
    phases = {name: sum(restart.seconds[name] for restart in restarts) / len(restarts) for name in restarts[0].seconds}
    told = ", ".join(f"{name} {duration(seconds)}" for name, seconds in sorted(phases.items(), key=lambda item: -item[1])[:4])
    measured = f"{estimate(summary([restart.total_s for restart in restarts]))} s ({told})"
    published = f"{RESTART_GAP_S} s in one piece (raw logs)" if experiment.ident == "exp4" else "not said"
    return [NewFinding(experiment.ident, "what a restart costs, by phase", published, measured, "beyond", len(restarts))]


def _noise(experiment: Experiment) -> list[NewFinding]:
    found = floors(experiment.comparison, "goodput", experiment.suites)
    if not found:
        return [NewFinding(experiment.ident, "noise between equal runs", "no A/A arm", "no A/A arm either: add variant=...,ref2", "limit", 0)]
    return [
        NewFinding(experiment.ident, f"noise between equal runs ({floor.source})", "no A/A arm", _apart(floor), "beyond", floor.pairs)
        for floor in found
    ]


def _apart(floor: NoiseFloor) -> str:
    pairs = floor.alike + floor.differing
    return f"goodput {relative(floor.relative.mean)} on average, {share(floor.largest)} at most; {floor.alike} of {pairs} end bit for bit alike"


def _price(experiment: Experiment) -> list[NewFinding]:
    pair = experiment.pair("ref", "clean", "goodput")
    what, published = "what checkpointing itself costs (reference against clean)", "not said: the reference checkpoints too"
    if pair is None:
        return [NewFinding(experiment.ident, what, published, "no arm without checkpoints: add variant=clean,...", "limit", 0)]
    return [NewFinding(experiment.ident, what, published, of_means(pair), "beyond", pair.n)]


def _replays(experiment: Experiment) -> list[NewFinding]:
    runs = [run for run in _counted(experiment) if run.fired and run.metrics]
    if not runs:
        return []
    steps = sum(run.metrics.replayed_steps for run in runs if run.metrics)
    kind = "beyond" if steps else "limit"
    published = "0 in all 48 runs with failures (raw logs)" if experiment.ident == "exp4" else "not said"
    why = "" if steps else ": no work was lost, so that losing it is not priced here either"
    return [NewFinding(experiment.ident, "steps done again", published, plural(steps, "step") + why, kind, len(runs))]


_LOOKS: tuple[Callable[[Experiment], list[NewFinding]], ...] = (
    _end_states,
    _clocks,
    _accounted,
    _inflight,
    _saved,
    _restart_costs,
    _noise,
    _price,
    _replays,
)


def _counted(experiment: Experiment) -> list[Run]:
    return [run for run in experiment.runs if run.suite in experiment.suites and run.counted]
