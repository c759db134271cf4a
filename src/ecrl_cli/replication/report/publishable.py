"""The acceptance artifact of a suite: everything its numbers rest on, as JSON and as Markdown."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ecrl_cli.replication.report.cells import estimate, of_means
from ecrl_cli.replication.report.sample import DIVERGENCES, diverged
from ecrl_cli.replication.report.setting import differences, in_full, revision
from ecrl_cli.replication.report.values import published_setting
from ecrl_cli.report.formats import listed
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.contrast import compared_arms, versus
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.study_record import slugs
from ecrl_cli.report.model.suite_gates import all_passed
from ecrl_cli.report.render.markdown import gate_lines
from ecrl_cli.report.tables.records import (
    Record,
    comparison_rows,
    finite,
    noise_rows,
    overlap_rows,
    restart_cost_rows,
    summary_rows,
)
from ecrl_cli.report.tables.renderers import escaped, markdown_of
from ecrl_cli.report.tables.table import Column, Row, Table

SCHEMA_VERSION = 1
_ROWS = {
    "statistics": summary_rows,
    "comparisons": comparison_rows,
    "noise": noise_rows,
    "overlap": overlap_rows,
    "restart_costs": restart_cost_rows,
}
_MEASURES = (
    "goodput",
    "goodput_published_clock",
    "wall_s",
    "stall_s",
    "write_s",
    "durable_write_s",
    "snapshot_s",
    "restarts",
    "replayed_steps",
)


def publishable_files(comparison: Comparison) -> dict[str, bytes]:
    """`reports/<suite>_publishable.json` and `.md` of every suite, accepted or not, by path."""
    rows = {name: make(comparison) for name, make in _ROWS.items()}
    files: dict[str, bytes] = {}
    for suite, slug in zip(comparison.suites, slugs(comparison.suites), strict=True):
        own = {
            name: [row for row in found if row["suite"] == suite] for name, found in rows.items()
        }
        document = suite_document(comparison, suite, own)
        files[f"reports/{slug}_publishable.json"] = as_json(document)
        files[f"reports/{slug}_publishable.md"] = _markdown(comparison, suite, document).encode()
    return files


def suite_document(
    comparison: Comparison, suite: str, rows: dict[str, list[Record]]
) -> dict[str, Any]:
    """The document of a suite. `accepted`: every gate passed; only then does it contain
    averages.
    """
    runs = [run for run in comparison.runs if run.suite == suite]
    gates = comparison.gates[suite]
    known = [run for run in runs if run.environment]
    config = known[0].config if known else {}
    if config:  # without data paths: the artifact is read on other machines
        config = config | {
            "dataset": {
                key: value for key, value in config.get("dataset", {}).items() if key != "root"
            }
        }
    return {
        "schema_version": SCHEMA_VERSION,
        "suite": suite,
        "accepted": all_passed(gates),
        "scale": comparison.scale([suite]),
        "gates": [asdict(gate) for gate in gates],
        "published_setting": {key: asdict(said) for key, said in published_setting(suite).items()},
        "differences": [
            {"key": d.key, "published": d.published, "measured": list(d.measured)}
            for d in differences(runs)
        ],
        "arms": [
            {"arm": arm.label, "variant": arm.variant, "seeds": [run.seed for run in arm.runs]}
            for arm in comparison.of(suite)
        ],
        **rows,
        "runs": [_run(run, comparison) for run in runs],
        "code_revisions": sorted({revision(run) for run in known}),
        "environment": known[0].environment if known else {},
        "configuration": config,
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
        "manifest_status": run.input.manifest_row.get("status"),
        "verdict": {
            "status": run.verdict.status,
            "reference": run.verdict.reference,
            "findings": [asdict(f) for f in run.verdict.findings],
        },
        "divergence": run.divergence,
        "final": m.final if m else None,
        "troubles": list(run.problems),
    }


def _markdown(comparison: Comparison, suite: str, document: dict[str, Any]) -> str:
    accepted = "accepted" if document["accepted"] else "not accepted"
    lines = [
        f"# {escaped(suite) or 'no suite'}: {accepted}",
        "",
        f"Scale {escaped(document['scale']) or 'unknown'}. {_setting(comparison, suite)}",
        "",
    ]
    lines += ["## Gates", "", *gate_lines(comparison.gates[suite])]
    lines += ["", "## Arms", "", *markdown_of(_arms(comparison, suite)), ""]
    compared = _pairs(comparison, suite)
    if compared:
        lines += [
            "## Comparisons",
            "",
            "Ratio of means with its bootstrap interval, over pairs of one seed.",
            "",
            *markdown_of(compared),
            "",
        ]
    runs = Table(
        "Runs",
        _RUN_COLUMNS,
        tuple(_run_row(run, comparison) for run in comparison.runs if run.suite == suite),
    )
    lines += ["## Runs", "", *markdown_of(runs), ""]
    code = listed([escaped(name) for name in document["code_revisions"]])
    lines += [
        (
            f"Code: {code}. Environment, configuration and every number: the JSON file beside this"
            " one."
        ),
        "",
    ]
    return "\n".join(lines)


_RUN_COLUMNS = (
    *map(Column, ("Run", "Arm", "Seed", "Verdict", "Against", "Losses differ from step")),
    *(Column("Parameters L2", "magnitude"), Column("Left out")),
)


def _setting(comparison: Comparison, suite: str) -> str:
    if not published_setting(suite):
        return "No published experiment has this name."
    found = differences(run for run in comparison.runs if run.suite == suite)
    return f"Against the published setting: {escaped(in_full(found, [suite]))}"


def _arms(comparison: Comparison, suite: str) -> Table:
    """The arms; averages only if every gate passed."""
    rows = [
        (
            arm.label,
            ", ".join(run.seed for run in arm.runs),
            *(estimate(arm.summary(m)) for m in _MEASURES),
        )
        for arm in comparison.of(suite)
    ]
    return Table(
        "Arms",
        (Column("Arm"), Column("Seeds"), *(Column(measure, "measured") for measure in _MEASURES)),
        tuple(rows),
    )


def _pairs(comparison: Comparison, suite: str) -> Table:
    rows = []
    for arm, base in compared_arms(comparison, [suite]):
        pairs = [versus(comparison, arm, base, measure, [suite]) for measure in _MEASURES[:5]]
        rows.append(
            (arm, base, max((pair.n for pair in pairs if pair), default=0), *map(of_means, pairs))
        )
    columns = (
        Column("Arm"),
        Column("Against"),
        Column("Pairs", "count"),
        *(Column(measure, "measured") for measure in _MEASURES[:5]),
    )
    return Table("Comparisons", columns, tuple(rows))


def _run_row(run: Run, comparison: Comparison) -> Row:
    first = diverged(run, "loss", "first_differing_step")
    losses = None if diverged(run, "loss") is None else "never" if first is None else str(first)
    return (
        run.name,
        comparison.label(run),
        run.seed,
        run.verdict.status,
        run.verdict.reference,
        losses,
        DIVERGENCES["l2"](run),
        run.reason,
    )


def as_json(document: dict[str, Any]) -> bytes:
    return (json.dumps(finite(document), indent=2, allow_nan=False) + "\n").encode()
