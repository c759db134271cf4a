"""The acceptance artifact of a suite: everything that its numbers rest on, as JSON and as Markdown."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ecrl_cli.replication.report.cells import estimate, of_means
from ecrl_cli.replication.report.sample import DIVERGENCES, diverged
from ecrl_cli.replication.report.setting import differences, in_full, published_setting
from ecrl_cli.report.formats import NONE, listed, magnitude, printable
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.paired import contrasts, versus
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.study_record import slugs
from ecrl_cli.report.model.suite_gates import whole
from ecrl_cli.report.render.markdown import escaped, grid
from ecrl_cli.report.tables.csv_files import finite
from ecrl_cli.report.tables.statistics_rows import Row, comparison_rows, noise_rows, overlap_rows, restart_cost_rows, summary_rows

SCHEMA_VERSION = 1
_ROWS = {
    "statistics": summary_rows,
    "comparisons": comparison_rows,
    "noise": noise_rows,
    "overlap": overlap_rows,
    "restart_costs": restart_cost_rows,
}
_MEASURES = ("goodput", "goodput_published_clock", "wall_s", "stall_s", "write_s", "durable_write_s", "snapshot_s", "restarts", "replayed_steps")


def publishables(comparison: Comparison) -> dict[str, bytes]:
    """By path, `reports/<suite>_publishable.json` and `.md` of every suite, accepted or not."""
    rows = {name: make(comparison) for name, make in _ROWS.items()}
    files: dict[str, bytes] = {}
    for suite, slug in zip(comparison.suites, slugs(comparison.suites), strict=True):
        own = {name: [row for row in found if row["suite"] == suite] for name, found in rows.items()}
        document = suite_document(comparison, suite, own)
        files[f"reports/{slug}_publishable.json"] = as_json(document)
        files[f"reports/{slug}_publishable.md"] = _markdown(comparison, suite, document).encode()
    return files


def suite_document(comparison: Comparison, suite: str, rows: dict[str, list[Row]]) -> dict[str, Any]:
    """`accepted`: every gate passed; only then do its averages stand anywhere."""
    runs = [run for run in comparison.runs if run.suite == suite]
    gates = comparison.gates[suite]
    known = [run for run in runs if run.environment]
    return {
        "schema_version": SCHEMA_VERSION,
        "suite": suite,
        "accepted": whole(gates),
        "scale": comparison.scale([suite]),
        "gates": [asdict(gate) for gate in gates],
        "published_setting": {key: asdict(said) for key, said in published_setting(suite).items()},
        "differences": [{"key": d.key, "published": d.published, "measured": list(d.measured)} for d in differences(runs)],
        "arms": [{"arm": arm.label, "variant": arm.variant, "seeds": [run.seed for run in arm.runs]} for arm in comparison.of(suite)],
        **rows,
        "runs": [_run(run, comparison) for run in runs],
        "code_revisions": sorted({revision(run) for run in known}),
        "environment": known[0].environment if known else {},
        "configuration": _placeless(known[0].config) if known else {},
    }


def _run(run: Run, comparison: Comparison) -> dict[str, Any]:
    m = run.metrics
    return {
        "run": run.name,
        "arm": comparison.label(run),
        "seed": run.seed,
        "run_id": m.run_id if m else None,
        "reference_id": m.reference_id if m else None,
        "left_out": run.reason,
        "manifest_status": run.place.said.get("status"),
        "verdict": {"status": run.verdict.status, "reference": run.verdict.reference, "findings": [asdict(f) for f in run.verdict.findings]},
        "divergence": run.divergence,
        "final": m.final if m else None,
        "troubles": list(run.troubles),
    }


def revision(run: Run) -> str:
    """The code that a run was made by."""
    return f"ecrl {run.environment.get('ecrl', '?')} {run.environment.get('git_revision') or ''}".strip()


def _markdown(comparison: Comparison, suite: str, document: dict[str, Any]) -> str:
    accepted = "accepted" if document["accepted"] else "not accepted"
    lines = [
        f"# {escaped(suite) or 'no suite'}: {accepted}",
        "",
        f"Scale {escaped(document['scale']) or 'unknown'}. {_setting(comparison, suite)}",
        "",
    ]
    lines += ["## Gates", "", *(f"- {'passed' if g['passed'] else '**failed**'}: {g['name']}: {escaped(g['message'])}" for g in document["gates"])]
    lines += ["", "## Arms", "", *grid(("Arm", "Seeds", *_MEASURES), _arm_rows(comparison, suite), 2), ""]
    compared = _pair_rows(comparison, suite)
    if compared:
        lines += ["## Comparisons", "", "Ratio of means with its bootstrap interval, over pairs of one seed.", ""]
        lines += [*grid(("Arm", "Against", "Pairs", *_MEASURES[:5]), compared, 2), ""]
    lines += ["## Runs", "", *grid(_RUN_COLUMNS, [_run_row(run, comparison) for run in comparison.runs if run.suite == suite], len(_RUN_COLUMNS)), ""]
    code = listed([escaped(name) for name in document["code_revisions"]])
    lines += [f"Code: {code}. Environment, configuration and every number: the JSON file beside this one.", ""]
    return "\n".join(lines)


_RUN_COLUMNS = ("Run", "Arm", "Seed", "Verdict", "Against", "Losses differ from step", "Parameters L2", "Left out")


def _setting(comparison: Comparison, suite: str) -> str:
    if not published_setting(suite):
        return "No published experiment has this name."
    found = differences(run for run in comparison.runs if run.suite == suite)
    return f"Against the published setting: {escaped(in_full(found, [suite]))}"


def _arm_rows(comparison: Comparison, suite: str) -> list[tuple[str, ...]]:
    """Averages only where every gate passed."""
    return [
        (arm.label, ", ".join(run.seed for run in arm.runs), *(estimate(arm.summary(measure)) for measure in _MEASURES))
        for arm in comparison.of(suite)
    ]


def _pair_rows(comparison: Comparison, suite: str) -> list[tuple[str, ...]]:
    rows = []
    for arm, base in contrasts(comparison, [suite]):
        pairs = [versus(comparison, arm, base, measure, [suite]) for measure in _MEASURES[:5]]
        rows.append((arm, base, str(max((pair.n for pair in pairs if pair), default=0)), *map(of_means, pairs)))
    return rows


def _run_row(run: Run, comparison: Comparison) -> tuple[str, ...]:
    first, distance = diverged(run, "loss", "first_differing_step"), DIVERGENCES["l2"](run)
    losses = NONE if diverged(run, "loss") is None else "never" if first is None else str(first)
    names = (run.name, comparison.label(run), run.seed, run.verdict.status, run.verdict.reference or NONE)
    return (*map(printable, names), losses, magnitude(distance), printable(run.reason or NONE))


def _placeless(config: dict[str, Any]) -> dict[str, Any]:
    """`config` without where the data lay: an artifact is read on other machines."""
    return config | {"dataset": {key: value for key, value in config.get("dataset", {}).items() if key != "root"}}


def as_json(document: dict[str, Any]) -> bytes:
    return (json.dumps(finite(document), indent=2, allow_nan=False) + "\n").encode()
