"""What the runs at hand cannot say, worked out from the runs."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.replication.report.sample import Experiment
from ecrl_cli.replication.report.setting import WORDS, facts, shown
from ecrl_cli.report.formats import count, listed, plural
from ecrl_cli.report.model.paired import floors

KNOBS = ("checkpoint.every", "checkpoint.max_inflight", "world_size", "global_batch", "write_mode.name", "supervision.launcher", "device")
SIZES = ("target_steps", "dataset_size", "model.width", "global_batch", "world_size")
_ENOUGH_SEEDS = 5  # S0 section 9 asks for them


def limits(found: Sequence[Experiment]) -> list[str]:
    """Sentences; those of one experiment begin with its name."""
    return [f"{experiment.ident}: {text}." for experiment in found for look in _LOOKS if (text := look(experiment))]


def _seeds(experiment: Experiment) -> str:
    numbers = sorted({len(arm.metrics) for suite in experiment.suites for arm in experiment.comparison.of(suite)})
    if not numbers or numbers[0] >= _ENOUGH_SEEDS:
        return ""
    few = plural(numbers[0], "seed") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"
    return f"{few} per arm: the intervals of single suites are wide, a bootstrap over so few says little"


def _size(experiment: Experiment) -> str:
    smaller = [difference for difference in experiment.differs_in(experiment.present) if difference.key in SIZES]
    return f"{experiment.scale}: {'; '.join(map(str, smaller))}: sizes of effects do not carry over to the published setting" if smaller else ""


def _fixed(experiment: Experiment) -> str:
    known = [facts(run) for run in experiment.runs]
    values = {key: {shown(item[key]) for item in known if key in item} for key in KNOBS}
    held = [f"{WORDS[key]} {next(iter(found))}" for key, found in values.items() if len(found) == 1]
    return f"held at one value throughout: {listed(held)}" if held else ""


def _machine(experiment: Experiment) -> str:
    machines = {str(run.environment.get("cpu", {}).get("model")) for run in experiment.runs if run.environment}
    if len(machines) != 1:
        return ""
    gpus = max((len(run.environment.get("gpus", ())) for run in experiment.runs), default=0)
    return f"one machine ({next(iter(machines))}, {plural(gpus, 'GPU')})"


def _failures(experiment: Experiment) -> str:
    """Failures on a checkpoint lose nothing and prove little."""
    planned = [(run.config["checkpoint"]["every"], step) for run in experiment.runs if run.config for step in run.config["failure"]["steps"]]
    if not planned or any(step % every for every, step in planned):
        return ""
    return f"all {count(len(planned))} planned failures lie on a checkpoint: nothing is lost by them, and what losing work costs is not seen"


def _arms(experiment: Experiment) -> str:
    variants = {run.variant for run in experiment.runs}
    told = [] if "clean" in variants else ["no arm without checkpoints, so that checkpointing itself has no price"]
    if "ref2" not in variants:
        other = floors(experiment.comparison, "goodput", experiment.suites)
        instead = "the noise floor rests on equal runs of different suites" if other else "there is no noise floor"
        told.append(f"no repeated reference: {instead}")
    return "; ".join(told)


def _gaps(experiment: Experiment) -> str:
    told = [f"not averaged: {suite} ({why})" for suite, why in experiment.refused.items()]
    return "; ".join(told + ([f"not run: {', '.join(experiment.missing)}"] if experiment.missing else []))


_LOOKS = (_seeds, _size, _fixed, _machine, _failures, _arms, _gaps)
