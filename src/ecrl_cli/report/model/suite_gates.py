"""The quality gates of each suite: some from the metrics, and four that need all runs and their
folders.

Whether the report can be written is no gate: failing that is an error (exit code 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ecrl_cli.history.load import RUNS_AT_ONCE
from ecrl_cli.metrics.gates import Gate, gate, quality_gates
from ecrl_cli.records.events import CHECKPOINT_ENDS
from ecrl_cli.report.formats import by_value, listed
from ecrl_cli.report.model.arms import arms_of
from ecrl_cli.report.model.replication import replication
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.supervision.attempts.restart_policy import restarts


def gates_of(runs: Sequence[Run], every: Sequence[Run] = ()) -> tuple[Gate, ...]:
    """The gates of one suite's `runs`, a subset of `every` run."""
    documents = {run.name: run.document for run in runs}
    judged = {
        run.name: run.verdict for run in runs if run.verdict.status != "missing" or run.verdict.why
    }
    verdicts = {
        name: f"not judged ({verdict.why})" if verdict.why else verdict.status
        for name, verdict in judged.items()
    }
    of_metrics = quality_gates(documents, verdicts)
    return (
        _arms(runs, every),
        *of_metrics,
        _artifacts(runs),
        _records(runs),
        _environment(runs),
        _alone(runs),
    )


def all_passed(gates: Sequence[Gate]) -> bool:
    return all(gate.passed for gate in gates)


def failed_gates(gates: Mapping[str, Sequence[Gate]]) -> list[tuple[str, Gate]]:
    """The suite, in words, and the gate, of those that failed."""
    return [
        (suite or "no suite", each)
        for suite, found in gates.items()
        for each in found
        if not each.passed
    ]


def only_unverified(gates: Sequence[Gate], runs: Sequence[Run]) -> bool:
    """Whether the only gate that failed is `verified`, and no verdict is invalid."""
    return all(gate.passed or gate.name == "verified" for gate in gates) and all(
        run.verdict.status != "invalid" for run in runs
    )


def _arms(runs: Sequence[Run], every: Sequence[Run]) -> Gate:
    """Every arm has every seed that any arm has; no arm and no planned run is missing."""
    unfinished = [f"{run.name}: {run.reason}" for run in runs if run.reason]
    arms = {arm.label: {run.seed for run in arm.runs} for arm in arms_of(runs)}
    seeds = {seed for held in arms.values() for seed in held}
    lacking = [
        f"{label} lacks seed {listed(sorted(seeds - held, key=by_value))}"
        for label, held in arms.items()
        if seeds - held
    ]
    return gate("arms", [*unfinished, *_absent(runs, every), *lacking], "every arm has every seed")


def _absent(runs: Sequence[Run], every: Sequence[Run]) -> list[str]:
    """Arms without a run: those of the published matrix that the sweep repeats, and those of
    related suites in the sweep.

    A sweep repeats a matrix if it compares at least two of its arms; a lone run of a published
    suite, and a sweep over other settings of it, do not.
    """
    published = replication()
    missing = []
    for sweep in dict.fromkeys(run.sweep for run in runs):
        here = [run for run in runs if run.sweep == sweep]
        experiment = published.experiments.get(here[0].suite, "")
        siblings = [
            run
            for run in every
            if run.sweep == sweep and published.experiments.get(run.suite, "") == experiment
        ]
        swept = dict.fromkeys(run.variant for run in siblings)
        arms = published.arms.get(experiment, ())
        wanted = dict.fromkeys([*(arms if len(swept.keys() & set(arms)) > 1 else ()), *swept])
        missing += [
            f"no {variant}" for variant in wanted if not any(run.variant == variant for run in here)
        ]
    return missing


def _artifacts(runs: Sequence[Run]) -> Gate:
    """The records of every counted run exist; other runs already fail a gate above."""
    missing = [
        f"{run.name} lacks {listed(list(names))}"
        for run in runs
        if run.counted and (names := run.missing)
    ]
    return gate("artifacts", missing, "the records of every run are there")


def _records(runs: Sequence[Run]) -> Gate:
    troubles = [
        f"{run.name}: {trouble}"
        for run in runs
        for trouble in (*run.problems, *_disagreements(run))
    ]
    return gate("records", troubles, "metrics, supervisor and checkpoint records agree")


def _disagreements(run: Run) -> list[str]:
    metrics, supervisor = run.metrics, run.supervisor
    if metrics is None:
        return []
    if supervisor is None:
        return ["no supervisor.json"]
    counted: list[tuple[str, object, object]] = [
        (f"{end} checkpoints", metrics.checkpoints[end], sum(save.end == end for save in run.saves))
        for end in CHECKPOINT_ENDS
    ]
    pairs = [
        ("run_id", metrics.run_id, supervisor.run_id),
        ("restarts", metrics.restarts, supervisor.restarts),
        ("restarts of the attempts", metrics.restarts, restarts(supervisor.attempts)),
        ("submitted checkpoints", metrics.checkpoints["submitted"], len(run.saves)),
        *counted,
    ]
    return [
        f"{what} is {a} in metrics.json and {b} in its source" for what, a, b in pairs if a != b
    ]


def _environment(runs: Sequence[Run]) -> Gate:
    """All runs are of one machine and one set of versions; others are not averaged."""
    known = [run for run in runs if run.metrics]
    others = [
        f"{run.name}: {listed(found)}"
        for run in known
        if (found := [f"another {key}" for key in environment_changes(known[0], run)])
    ]
    return gate("environment", others, "one machine, one set of versions, one source")


def _alone(runs: Sequence[Run]) -> Gate:
    """No run trained beside another of its sweep (hydra.launcher.n_jobs): their times would be
    those of a shared machine.
    """
    beside = [
        f"{run.name} trained as one of {at_once} at once"
        for run in runs
        if isinstance(at_once := run.environment.get(RUNS_AT_ONCE, 1), int) and at_once > 1
    ]
    return gate("alone", beside, "one run at a time")


def pooling_obstacles(a: Run, b: Run) -> list[str]:
    """Why the suites of two runs cannot be pooled: another machine, version, source or scale. The
    file system may differ.
    """
    found = [key for key in environment_changes(a, b) if key != "file_system"]
    ours, theirs = (run.metrics.scale if run.metrics else "" for run in (a, b))
    return found + (["scale"] if (ours, shares_gpu(a)) != (theirs, shares_gpu(b)) else [])


def shares_gpu(run: Run) -> bool:
    """Whether ranks share a GPU: gloo named explicitly on a machine with GPUs (NCCL refuses to
    share).
    """
    return bool(
        run.config.get("device") != "cpu"
        and run.environment.get("gpus")
        and run.config.get("backend") == "gloo"
    )


def environment_changes(a: Run, b: Run) -> list[str]:
    """The differences between the environments of two runs; the git revision counts only if a
    source digest is missing, the file system only if both runs were to be on the same storage.
    """
    ours, theirs = a.environment, b.environment
    ignored = (
        {"git_revision"}
        if "source_sha256" in ours and "source_sha256" in theirs
        else {"source_sha256"}
    )
    ignored |= {"file_system"} if a.config.get("storage") != b.config.get("storage") else set()
    return [key for key in sorted({*ours, *theirs} - ignored) if ours.get(key) != theirs.get(key)]
