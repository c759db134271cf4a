"""publication_summary and new_findings: all suites, tables, claims, findings and limits in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from ecrl_cli.replication.report import claims as claimed
from ecrl_cli.replication.report import findings
from ecrl_cli.replication.report.claims import Claim
from ecrl_cli.replication.report.findings import NewFinding
from ecrl_cli.replication.report.limits import limits
from ecrl_cli.replication.report.publishable import as_json, revision
from ecrl_cli.replication.report.sample import Experiment
from ecrl_cli.report.figures.export import Picture
from ecrl_cli.report.formats import NONE, plural
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.replication import PublishedTable
from ecrl_cli.report.model.suite_gates import whole
from ecrl_cli.report.render.markdown import escaped, grid
from ecrl_cli.report.tables.csv_files import as_csv
from ecrl_cli.report.tables.statistics_rows import summary_rows

SCHEMA_VERSION = 1
SUITE_COLUMNS = ("Suite", "Accepted", "Scale", "Arms", "Runs", "Valid", "Gates that failed")


@dataclass(frozen=True)
class ReplicationData:
    """What a summary is made of."""

    comparison: Comparison
    experiments: tuple[Experiment, ...]
    tables: tuple[PublishedTable, ...]
    pictures: tuple[Picture, ...]

    @cached_property
    def claims(self) -> list[Claim]:
        return claimed.claims(self.experiments)

    @cached_property
    def news(self) -> list[NewFinding]:
        return findings.new_findings(self.experiments, self.claims)


def summary_files(material: ReplicationData) -> dict[str, bytes]:
    """publication_summary.json and .md; new_findings.csv and .md where a published experiment was repeated."""
    files = {"publication_summary.json": as_json(_document(material)), "publication_summary.md": _markdown(material).encode()}
    if material.experiments:
        header = ",".join(field.name for field in fields(NewFinding)) + "\r\n"
        files["new_findings.csv"] = as_csv([asdict(entry) for entry in material.news]) if material.news else header.encode()
        files["new_findings.md"] = "\n".join(["# New findings", "", *_findings(material.news)]).encode()
    return files


def _document(material: ReplicationData) -> dict[str, Any]:
    shown = material.comparison
    return {
        "schema_version": SCHEMA_VERSION,
        "exit_code": shown.exit_code,
        "code_revisions": sorted({revision(run) for run in shown.runs if run.environment}),
        "suites": [dict(zip(("suite", *_KEYS), row, strict=True)) for row in _suite_rows(shown)],
        "experiments": [
            {"experiment": e.ident, "scale": e.scale, "averaged": e.suites, "refused": e.refused, "missing": e.missing, "setting": e.setting}
            for e in material.experiments
        ],
        "tables": [asdict(table) for table in material.tables],
        "statistics": summary_rows(shown),
        "claims": [asdict(claim) for claim in material.claims],
        "new_findings": [asdict(entry) for entry in material.news],
        "limits": limits(material.experiments),
        "figures": [{"name": picture.name, "title": picture.title} for picture in material.pictures],
    }


_KEYS = ("accepted", "scale", "arms", "runs", "valid", "failed_gates")


def _suite_rows(shown: Comparison) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for suite, gates in shown.gates.items():
        runs = [run for run in shown.runs if run.suite == suite]
        valid = sum(run.verdict.status == "valid" for run in runs)
        failed = ", ".join(gate.name for gate in gates if not gate.passed) or NONE
        arms = ", ".join(arm.label for arm in shown.of(suite))
        rows.append((suite or NONE, "yes" if whole(gates) else "no", shown.scale([suite]), arms, str(len(runs)), str(valid), failed))
    return rows


def _markdown(material: ReplicationData) -> str:
    shown = material.comparison
    lines = ["# Publication summary", "", *_sentences(material), "", "## Suites", ""]
    lines += [*grid(SUITE_COLUMNS, _suite_rows(shown), 4), ""]
    if material.claims:
        lines += ["## Published claims", "", *grid(claimed.COLUMNS, [claim.row for claim in material.claims], len(claimed.COLUMNS)), ""]
    if material.news:
        lines += ["## New findings", "", *_findings(material.news)]
    for table in material.tables:
        lines += [f"## {escaped(table.title)}", "", escaped(table.note), "", f"What differs: {escaped(table.setting)}", ""]
        lines += [*grid(table.columns, table.rows, 2), ""]
    lines += [*_section("Figures", [f"![{escaped(p.title)}](figures/{p.name}.png)" for p in material.pictures], "")]
    lines += [*_section("Limits", [escaped(text) for text in limits(material.experiments)], "- ")]
    return "\n".join(lines)


def _sentences(material: ReplicationData) -> list[str]:
    """What the reader must know before any number."""
    suites = material.comparison.gates
    accepted = sum(whole(gates) for gates in suites.values())
    lines = [f"{accepted} of {plural(len(suites), 'suite')} accepted; what is not accepted is listed and not averaged."]
    if not material.experiments:
        return [*lines, "None of them is a suite of a published experiment."]
    verdicts = Counter(claim.verdict for claim in material.claims)
    counted = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    where = "; ".join(f"{e.ident} at {e.scale}" for e in material.experiments)
    return [*lines, f"Published experiments repeated: {where}. Of {plural(len(material.claims), 'published claim')}: {counted}."]


def _findings(news: Sequence[NewFinding]) -> list[str]:
    return [*grid(findings.COLUMNS, [entry.row for entry in news], len(findings.COLUMNS) - 1), ""]


def _section(title: str, items: Sequence[str], bullet: str) -> list[str]:
    return [f"## {title}", "", *(f"{bullet}{item}" for item in items), ""] if items else []
