"""The quality gates of each suite: the house's five, and two that only a look at all runs together can answer."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.metrics.gates import Gate, quality_gates
from ecrl_cli.report.evidence import Run


def gates_of(runs: Sequence[Run]) -> tuple[Gate, ...]:
    """The gates of one suite's runs. The report that shows them is the evidence that a report was written."""
    documents = {run.name: run.document for run in runs}
    verdicts = {run.name: run.verdict.status for run in runs if run.verdict.status != "missing"}
    return (*quality_gates(documents, verdicts, report_written=True), _records(runs), _environment(runs))


def whole(gates: Sequence[Gate]) -> bool:
    return all(gate.passed for gate in gates)


def only_unverified(gates: Sequence[Gate], runs: Sequence[Run]) -> bool:
    """Whether nothing failed except that a verdict is missing or unknown."""
    return all(gate.passed or gate.name == "verified" for gate in gates) and all(run.verdict.status != "invalid" for run in runs)


def _records(runs: Sequence[Run]) -> Gate:
    troubles = [f"{run.name}: {trouble}" for run in runs for trouble in (*run.troubles, *_disagreements(run))]
    return Gate("records", not troubles, "; ".join(troubles) or "metrics, supervisor and checkpoint records agree")


def _disagreements(run: Run) -> list[str]:
    metrics, supervisor = run.metrics, run.supervisor
    if metrics is None:
        return []
    if supervisor is None:
        return ["no supervisor.json"]
    submitted = sum(line.event == "submitted" for line in run.checkpoints)
    pairs = [
        ("run_id", metrics.run_id, supervisor.run_id),
        ("restarts", metrics.restarts, supervisor.restarts),
        ("submitted checkpoints", metrics.checkpoints["submitted"], submitted),
    ]
    return [f"{what} is {a} in metrics.json and {b} in its source" for what, a, b in pairs if a != b]


def _environment(runs: Sequence[Run]) -> Gate:
    """Numbers of two machines or two versions are not averaged."""
    known = [run for run in runs if run.metrics]
    first = known[0].environment if known else {}
    others = [f"{run.name}: {', '.join(_changed(first, run.environment))}" for run in known if run.environment != first]
    return Gate("environment", not others, "; ".join(others) or "one machine, one set of versions")


def _changed(a: dict[str, object], b: dict[str, object]) -> list[str]:
    return [f"another {key}" for key in sorted(set(a) | set(b)) if a.get(key) != b.get(key)]
