"""How the ways to recover compare: a line per run, where ranks stay while others die."""

from __future__ import annotations

from ecrl_cli.config.recoveries import RECOVERIES
from ecrl_cli.config.schema import RecoveryConfig
from ecrl_cli.metrics.statistics import summary
from ecrl_cli.report.formats import NONE, count, duration, plural, rate
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.tables.statistics import Table, between

_COUNTED = ("recoveries", "survived", "replayed", "given up", "lost samples")
COLUMNS = ("suite", "arm", "seed", "recovery", "goodput (steps/s)", "wall", *_COUNTED, "per recovery", "range")


def recoveries_table(comparison: Comparison) -> Table:
    """Rows only where a run of the comparison was live: with spares, or with another recovery than a restart."""
    title = f"Recoveries, run by run: from each blow to the first new step (scale {comparison.scale()})"
    runs = [run for suite in comparison.suites for arm in comparison.of(suite) for run in arm.runs if run.metrics]
    rows = [_row(run, comparison) for run in runs] if any(_live(run) for run in runs) else []
    return Table(title, COLUMNS, rows, 4)


def recovery_of(run: Run) -> str:
    """The way the run was to recover, and with how many spares."""
    spares = run.config.get("supervision", {}).get("spares", 0)
    name = str(run.config.get("recovery", {}).get("name", "")).replace("_", " ")
    return f"{name}, {plural(spares, 'spare')}" if spares else name


def _live(run: Run) -> bool:
    named, spares = run.config.get("recovery", {}).get("name", RecoveryConfig.name), run.config.get("supervision", {}).get("spares", 0)
    return RECOVERIES.of(named).survivors_stay(spares)


def _row(run: Run, comparison: Comparison) -> list[str]:
    m = run.metrics
    assert m is not None
    found = m.recoveries
    seconds = [float(each["seconds"]) for each in found]
    given_up = sum(int(each["given_up_steps"]) for each in found)
    return [
        *(run.suite, comparison.label(run), run.seed, recovery_of(run), rate(m.goodput), duration(m.wall_s)),
        *(count(value) for value in (len(found), m.survivals, m.replayed_steps, given_up, m.lost_samples)),
        duration(summary(seconds).mean) if seconds else NONE,
        between(duration, min(seconds), max(seconds)) if len(seconds) > 1 else NONE,
    ]
