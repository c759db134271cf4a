"""publication_summary and new_findings: all suites, tables, claims, findings and limits in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from functools import cached_property
from typing import Any

from ecrl_cli.replication.report import claims as claimed
from ecrl_cli.replication.report.claims import Claim
from ecrl_cli.replication.report.findings import NewFinding, limits, new_findings
from ecrl_cli.replication.report.publishable import as_json, revision
from ecrl_cli.replication.report.sample import Experiment
from ecrl_cli.report.figures.export import Picture
from ecrl_cli.report.formats import plural
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.replication import PublishedTable
from ecrl_cli.report.model.suite_gates import all_passed
from ecrl_cli.report.tables.records import summary_rows
from ecrl_cli.report.tables.renderers import csv_of, escaped, markdown_of, markdown_section
from ecrl_cli.report.tables.table import Column, Row, Table, records_table, text_of

SCHEMA_VERSION = 1
SUITE_COLUMNS = (
    *(Column("Suite"), Column("Accepted"), Column("Scale"), Column("Arms"), Column("Runs", "count"), Column("Valid", "count")),
    Column("Gates that failed"),
)


@dataclass(frozen=True)
class ReplicationData:
    """Input of a summary."""

    comparison: Comparison
    experiments: tuple[Experiment, ...]
    tables: tuple[PublishedTable, ...]
    pictures: tuple[Picture, ...]

    @cached_property
    def claims(self) -> list[Claim]:
        return claimed.claims(self.experiments)

    @cached_property
    def news(self) -> list[NewFinding]:
        return new_findings(self.experiments, self.claims)


def summary_files(material: ReplicationData) -> dict[str, bytes]:
    """publication_summary.json and .md; new_findings.csv and .md where a published experiment was repeated."""
    files = {"publication_summary.json": as_json(_document(material)), "publication_summary.md": _markdown(material).encode()}
    if material.experiments:
        names = [field.name for field in fields(NewFinding)]
        files["new_findings.csv"] = csv_of(records_table([asdict(entry) for entry in material.news], names))
        files["new_findings.md"] = "\n".join(["# New findings", "", *_findings(material.news)]).encode()
    return files


def _document(material: ReplicationData) -> dict[str, Any]:
    shown = material.comparison
    return {
        "schema_version": SCHEMA_VERSION,
        "exit_code": shown.exit_code,
        "code_revisions": sorted({revision(run) for run in shown.runs if run.environment}),
        "suites": [dict(zip(_KEYS, [str(value) for value in row], strict=True)) for row in _suite_rows(shown)],
        "experiments": [
            {"experiment": e.ident, "scale": e.scale, "averaged": e.suites, "refused": e.refused, "missing": e.missing, "setting": e.setting}
            for e in material.experiments
        ],
        "tables": [table_document(table) for table in material.tables],
        "statistics": summary_rows(shown),
        "claims": [asdict(claim) for claim in material.claims],
        "new_findings": [asdict(entry) for entry in material.news],
        "limits": limits(material.experiments),
        "figures": [{"name": picture.name, "title": picture.title} for picture in material.pictures],
    }


_KEYS = ("suite", "accepted", "scale", "arms", "runs", "valid", "failed_gates")


def table_document(published: PublishedTable) -> dict[str, Any]:
    """A published table in publication_summary.json, with its cells as displayed."""
    table = published.table
    rows = [[text_of(value, column) for value, column in zip(row, table.columns, strict=True)] for row in table.rows]
    labels = [column.label for column in table.columns]
    return {"ident": published.ident, "title": table.title, "note": table.note, "columns": labels, "rows": rows, "setting": published.setting}


def _suite_rows(shown: Comparison) -> list[Row]:
    rows: list[Row] = []
    for suite, gates in shown.gates.items():
        runs = [run for run in shown.runs if run.suite == suite]
        valid = sum(run.verdict.status == "valid" for run in runs)
        failed = ", ".join(gate.name for gate in gates if not gate.passed) or "-"
        arms = ", ".join(arm.label for arm in shown.of(suite))
        rows.append((suite or "-", "yes" if all_passed(gates) else "no", shown.scale([suite]), arms, len(runs), valid, failed))
    return rows


def _markdown(material: ReplicationData) -> str:
    shown = material.comparison
    lines = ["# Publication summary", "", *_sentences(material), "", "## Suites", ""]
    lines += [*markdown_of(Table("Suites", SUITE_COLUMNS, tuple(_suite_rows(shown)))), ""]
    if material.claims:
        columns = tuple(map(Column, ("Experiment", "Claim", "Published", "Measured", "Verdict", "Why")))
        lines += markdown_section(Table("Published claims", columns, tuple(claim.row for claim in material.claims)))
    if material.news:
        lines += ["## New findings", "", *_findings(material.news)]
    for table in material.tables:
        lines += [f"## {escaped(table.table.title)}", "", escaped(table.table.note), "", f"What differs: {escaped(table.setting)}", ""]
        lines += [*markdown_of(table.table), ""]
    lines += [*_section("Figures", [f"![{escaped(p.title)}](figures/{p.name}.png)" for p in material.pictures], "")]
    lines += [*_section("Limits", [escaped(text) for text in limits(material.experiments)], "- ")]
    return "\n".join(lines)


def _sentences(material: ReplicationData) -> list[str]:
    """Sentences that must precede any number."""
    suites = material.comparison.gates
    accepted = sum(all_passed(gates) for gates in suites.values())
    lines = [f"{accepted} of {plural(len(suites), 'suite')} accepted; what is not accepted is listed and not averaged."]
    if not material.experiments:
        return [*lines, "None of them is a suite of a published experiment."]
    verdicts = Counter(claim.verdict for claim in material.claims)
    counted = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    where = "; ".join(f"{e.ident} at {e.scale}" for e in material.experiments)
    return [*lines, f"Published experiments repeated: {where}. Of {plural(len(material.claims), 'published claim')}: {counted}."]


def _findings(news: Sequence[NewFinding]) -> list[str]:
    columns = (*map(Column, ("Experiment", "Finding", "Published", "Measured", "Kind")), Column("n", "count"))
    return [*markdown_of(Table("New findings", columns, tuple(astuple(entry) for entry in news))), ""]


def _section(title: str, items: Sequence[str], bullet: str) -> list[str]:
    return [f"## {title}", "", *(f"{bullet}{item}" for item in items), ""] if items else []
