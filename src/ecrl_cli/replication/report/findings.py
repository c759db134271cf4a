"""Derives from the runs what they show beyond or against the published experiments, and their
limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ecrl_cli.metrics.statistics import summary
from ecrl_cli.replication.report.cells import estimate, of_means, of_ratios, words
from ecrl_cli.replication.report.claims import Claim
from ecrl_cli.replication.report.sample import CLOCKS, Experiment, diverged
from ecrl_cli.replication.report.setting import WORDS, facts, shown
from ecrl_cli.replication.report.values import PUBLISHED
from ecrl_cli.report.formats import change as relative
from ecrl_cli.report.formats import count, duration, listed, plural, share
from ecrl_cli.report.model.contrast import floors, overlaps
from ecrl_cli.report.model.run_record import Run

KNOBS = (
    "checkpoint.every",
    "checkpoint.max_inflight",
    "world_size",
    "global_batch",
    "write_mode.name",
    "supervision.launcher",
    "device",
)
SIZES = ("target_steps", "dataset_size", "model.width", "global_batch", "world_size")
_ENOUGH_SEEDS = 5  # S0 section 9 asks for them
_ENDS = ("submitted", "committed", "failed", "lost")


@dataclass(frozen=True)
class NewFinding:
    """`kind`: beyond (not in the published records), against (contradicts them) or limit (not shown
    by these runs either).
    """

    experiment: str
    finding: str
    published: str
    measured: str
    kind: str
    n: int


def new_findings(found: Sequence[Experiment], told: Sequence[Claim]) -> list[NewFinding]:
    """Findings experiment by experiment; contradicted claims come first."""
    against = [
        NewFinding(c.experiment, c.claim, c.published, c.measured, "against", c.n)
        for c in told
        if c.verdict == "contradicted" and c.n
    ]
    return against + [
        NewFinding(experiment.ident, *entry)
        for experiment in found
        if experiment.suites
        for look in _FINDINGS
        for entry in look(experiment)
    ]


Entry = tuple[str, str, str, str, int]  # a finding without its experiment


def _end_states(experiment: Experiment) -> list[Entry]:
    """End states of all runs with failures; a run not compared with its reference counts as
    unknown.
    """
    ends = [diverged(run, "final_equal") for run in _counted(experiment) if run.fired]
    alike = sum(isinstance(end, dict) and all(end.values()) for end in ends)
    unknown = sum(not isinstance(end, dict) for end in ends)
    if unknown == len(ends):
        return []
    there, of = PUBLISHED.diverged_after_failure.runs, PUBLISHED.diverged_after_failure.of
    matrix = (
        f"{there} of {of} ResNet-50 runs left their reference after the first failure, unseen by"
        " its checks (its logs: ecrl published exp4)"
    )
    published = matrix if experiment.is_matrix else "correct by sample ids, whatever the state"
    measured = f"{alike} of {len(ends)} runs with failures end bit for bit as their reference" + (
        f", {unknown} not compared" if unknown else ""
    )
    whole, known = alike == len(ends), alike + unknown == len(ends)
    title = (
        "recovery keeps the trajectory"
        if whole
        else (
            "recovery is not shown to keep the trajectory"
            if known
            else "recovery leaves the trajectory"
        )
    )
    kind = (
        "limit"
        if known and not whole
        else "against"
        if whole and experiment.is_matrix
        else "beyond"
    )
    return [(title, published, measured, kind, len(ends))]


def _clocks(experiment: Experiment) -> list[Entry]:
    pairs = {measure: experiment.pair("ovl", "blk", measure) for measure in CLOCKS}
    measured = "; ".join(
        f"{CLOCKS[measure]} {words(of_ratios(pair))}" for measure, pair in pairs.items() if pair
    )
    ours, theirs = PUBLISHED.supervisor_clock_gain.mean, PUBLISHED.first_line_clock_gain
    published = (
        f"published clock {theirs:+.2f}%; launch to target {ours:+.2f}% (recomputed from its raw"
        " logs)"
    )
    n = max((pair.n for pair in pairs.values() if pair), default=0)
    there = published if experiment.is_matrix else "published clock only"
    contrasts = [experiment.contrast("ovl", "blk", measure) for measure in CLOCKS]
    signs = {each.sign if each else 0 for each in contrasts}
    if {1, -1} <= signs:
        found = "depends on the clock"
    elif 0 not in signs:
        found = "has one sign on both clocks"
    else:
        found = "is not statistically distinguishable from none" + (
            " on one of the clocks" if len(signs) > 1 else ""
        )
    return (
        [(f"the gain of overlapped {found} (mean of ratios)", there, measured, "beyond", n)]
        if n
        else []
    )


def _accounted(experiment: Experiment) -> list[Entry]:
    sums = {
        key: sum(int(run.metrics.checkpoints[key]) for run in _counted(experiment) if run.metrics)
        for key in _ENDS
    }
    ended = ", ".join(f"{count(sums[key])} {key}" for key in _ENDS[1:])
    matrix = experiment.is_matrix
    written = (
        f"{PUBLISHED.writes_counted['ovl']} of {PUBLISHED.writes_submitted} writes of an overlapped"
        " run are in its total (its logs: ecrl published exp4)"
    )
    published = written if matrix else "not said"
    measured, kind = (
        f"{count(sums['submitted'])} submitted: {ended}",
        ("against" if matrix else "beyond"),
    )
    return [
        (
            "every submitted checkpoint is accounted for",
            published,
            measured,
            kind,
            len(_counted(experiment)),
        )
    ]


def _inflight(experiment: Experiment) -> list[Entry]:
    runs = [run for run in experiment.runs_of("ovl") if run.metrics]
    if not runs:
        return []
    most = max((save.inflight for run in runs for save in run.saves), default=0)
    waited = summary([run.metrics.checkpoints["backpressure_s"] for run in runs if run.metrics])
    measured = f"at most {most} in flight, {duration(waited.mean)} of backpressure per run"
    published = f"at most {PUBLISHED.most_inflight} of 4 in flight (its logs: ecrl published exp4)"
    return [
        (
            "how far the queue of overlapped writes was used",
            published,
            measured,
            "beyond",
            len(runs),
        )
    ]


def _saved(experiment: Experiment) -> list[Entry]:
    found = []
    stall, wall = (
        PUBLISHED.table5["stall_s"].difference or 0.0,
        PUBLISHED.table5["wall_s"].difference or 0.0,
    )
    published = (
        f"{share(wall / stall)} of the stall saved ({-stall:.4f} s) is wall time saved,"
        f" {CLOCKS['goodput_published_clock']}"
        if experiment.is_matrix
        else "not said"
    )
    for _, _, saved in overlaps(experiment.comparison, experiment.suites):
        stall_saved, wall_saved = (
            words(estimate(seconds, sign=True))
            for seconds in (saved.stall_saved_s, saved.wall_saved_s)
        )
        measured = f"stall {stall_saved} s, wall {wall_saved} s saved per run, {CLOCKS['goodput']}"
        measured += f": {share(saved.efficiency)}" if saved.efficiency is not None else ""
        found.append(("what saving stall is worth", published, measured, "beyond", saved.pairs))
    return found


def _restart_costs(experiment: Experiment) -> list[Entry]:
    restarts = [restart for run in _counted(experiment) for restart in run.restarts]
    if not restarts:
        return []
    phases = {
        name: sum(restart.seconds[name] for restart in restarts) / len(restarts)
        for name in restarts[0].seconds
    }
    told = ", ".join(
        f"{name} {duration(seconds)}"
        for name, seconds in sorted(phases.items(), key=lambda item: -item[1])[:4]
    )
    measured = f"{words(estimate(summary([restart.total_s for restart in restarts])))} s ({told})"
    published = (
        f"{PUBLISHED.restart_gap_s} s in one piece (its logs: ecrl published exp4)"
        if experiment.is_matrix
        else "not said"
    )
    return [("what a restart costs, by phase", published, measured, "beyond", len(restarts))]


def _noise(experiment: Experiment) -> list[Entry]:
    found = floors(experiment.comparison, "goodput", experiment.suites)
    if not found:
        return [
            (
                "noise between equal runs",
                "no A/A arm",
                "no A/A arm either: add variant=...,ref2",
                "limit",
                0,
            )
        ]
    told = []
    for floor in found:
        alike = f"{floor.alike} of {floor.alike + floor.differing} end bit for bit alike"
        measured = (
            f"goodput {relative(floor.relative.mean)} on average, {share(floor.largest)} at most;"
            f" {alike}"
        )
        told.append(
            (
                f"noise between equal runs ({floor.source})",
                "no A/A arm",
                measured,
                "beyond",
                floor.pairs,
            )
        )
    return told


def _price(experiment: Experiment) -> list[Entry]:
    pair = experiment.pair("ref", "clean", "goodput")
    what, published = (
        "what checkpointing itself costs (reference against clean)",
        "not said: the reference checkpoints too",
    )
    if pair is None:
        return [(what, published, "no arm without checkpoints: add variant=clean,...", "limit", 0)]
    return [(what, published, words(of_means(pair)), "beyond", pair.n)]


def _replays(experiment: Experiment) -> list[Entry]:
    runs = [run for run in _counted(experiment) if run.fired and run.metrics]
    if not runs:
        return []
    steps = sum(run.metrics.replayed_steps for run in runs if run.metrics)
    kind = "beyond" if steps else "limit"
    published = (
        "0 in all 48 runs with failures (its logs: ecrl published exp4)"
        if experiment.is_matrix
        else "not said"
    )
    why = "" if steps else ": no work was lost, so that losing it is not priced here either"
    return [("steps done again", published, plural(steps, "step") + why, kind, len(runs))]


_FINDINGS: tuple[Callable[[Experiment], list[Entry]], ...] = (
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


def limits(found: Sequence[Experiment]) -> list[str]:
    """Limits as sentences; those of one experiment start with its name."""
    return [
        f"{experiment.ident}: {text}."
        for experiment in found
        for look in _LIMITS
        if (text := look(experiment))
    ]


def _seeds(experiment: Experiment) -> str:
    numbers = sorted(
        {len(arm.metrics) for suite in experiment.suites for arm in experiment.comparison.of(suite)}
    )
    if not numbers or numbers[0] >= _ENOUGH_SEEDS:
        return ""
    few = (
        plural(numbers[0], "seed") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"
    )
    return (
        f"{few} per arm: the intervals of single suites are wide, a bootstrap over so few says"
        " little"
    )


def _size(experiment: Experiment) -> str:
    smaller = [
        difference
        for difference in experiment.differs_in(experiment.present)
        if difference.key in SIZES
    ]
    return (
        f"{experiment.scale}: {'; '.join(map(str, smaller))}: sizes of effects do not carry over to"
        " the published setting"
        if smaller
        else ""
    )


def _fixed(experiment: Experiment) -> str:
    known = [facts(run) for run in experiment.runs]
    values = {key: {shown(item[key]) for item in known if key in item} for key in KNOBS}
    held = [f"{WORDS[key]} {next(iter(found))}" for key, found in values.items() if len(found) == 1]
    return f"held at one value throughout: {listed(held)}" if held else ""


def _machine(experiment: Experiment) -> str:
    machines = {
        str(run.environment.get("cpu", {}).get("model"))
        for run in experiment.runs
        if run.environment
    }
    if len(machines) != 1:
        return ""
    gpus = max((len(run.environment.get("gpus", ())) for run in experiment.runs), default=0)
    return f"one machine ({next(iter(machines))}, {plural(gpus, 'GPU')})"


def _failures(experiment: Experiment) -> str:
    """How many failures fell on a checkpoint: those lose nothing and prove little."""
    planned = [
        (run.config["checkpoint"]["every"], step)
        for run in experiment.runs
        if run.config
        for step in run.config["failure"]["steps"]
    ]
    if not planned or any(step % every for every, step in planned):
        return ""
    return (
        f"all {count(len(planned))} planned failures lie on a checkpoint: nothing is lost by them,"
        " and what losing work costs is not seen"
    )


def _arms(experiment: Experiment) -> str:
    variants = {run.variant for run in experiment.runs}
    told = (
        []
        if "clean" in variants
        else ["no arm without checkpoints, so that checkpointing itself has no price"]
    )
    if "ref2" not in variants:
        other = floors(experiment.comparison, "goodput", experiment.suites)
        instead = (
            "the noise floor rests on equal runs of different suites"
            if other
            else "there is no noise floor"
        )
        told.append(f"no repeated reference: {instead}")
    return "; ".join(told)


def _gaps(experiment: Experiment) -> str:
    told = [f"not averaged: {suite} ({why})" for suite, why in experiment.refused.items()]
    return "; ".join(
        told + ([f"not run: {', '.join(experiment.missing)}"] if experiment.missing else [])
    )


_LIMITS = (_seeds, _size, _fixed, _machine, _failures, _arms, _gaps)
