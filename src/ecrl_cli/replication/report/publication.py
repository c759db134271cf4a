"""The complete published part of the report: tables, figures, artifacts per suite, and
publication_summary and new_findings, which have all suites, tables, claims, findings and limits in
one place. `report.build` calls it through `PUBLISHED`.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ecrl_cli.records.layout import SweepLayout
from ecrl_cli.records.safe_read import read_whole
from ecrl_cli.replication.report import claims as claimed
from ecrl_cli.replication.report.claims import Claim
from ecrl_cli.replication.report.experiments import experiment_table
from ecrl_cli.replication.report.figures import published_pictures
from ecrl_cli.replication.report.findings import NewFinding, limits, new_findings
from ecrl_cli.replication.report.matrix_tables import table5, table6, table7, table8
from ecrl_cli.replication.report.publishable import as_json, publishable_files
from ecrl_cli.replication.report.sample import Experiment, experiments
from ecrl_cli.replication.report.setting import revision
from ecrl_cli.replication.report.settings_tables import table1, table2, table3, table4
from ecrl_cli.replication.report.values import ARMS, EXPERIMENTS
from ecrl_cli.report.formats import plural
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.picture import Picture, picture_files
from ecrl_cli.report.model.study_record import slugs
from ecrl_cli.report.model.suite_gates import all_passed
from ecrl_cli.report.render.publication import Publication, PublishedTable
from ecrl_cli.report.tables.records import summary_rows
from ecrl_cli.report.tables.renderers import (
    csv_bytes,
    csv_of,
    escaped,
    markdown_of,
    markdown_section,
)
from ecrl_cli.report.tables.table import Column, Row, Table, records_table, text_of

MATRIX = (table1, table2, table3, table4, table5, table6, table7, table8)
SCHEMA_VERSION = 1
SUITE_COLUMNS = (
    Column("Suite"),
    Column("Accepted"),
    Column("Scale"),
    Column("Arms"),
    Column("Runs", "count"),
    Column("Valid", "count"),
    Column("Gates that failed"),
)


@dataclass(frozen=True)
class ReplicationData:
    """The inputs of a summary."""

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


def publication(comparison: Comparison) -> Publication:
    """Every file by its path in the report's folder. Raises RecordError, or OSError if a sweep's
    manifest has vanished since it was read.
    """
    found = tuple(experiments(comparison))
    replicated = ReplicationData(
        comparison, found, published_tables(found), published_pictures(found)
    )
    files = (
        publishable_files(comparison)
        | summary_files(replicated)
        | _manifests(comparison)
        | picture_files(replicated.pictures)
    )
    return Publication(files, replicated.tables, replicated.pictures)


def published_tables(found: Sequence[Experiment]) -> tuple[PublishedTable, ...]:
    """The matrix's tables in order, then those of experiments 1 to 3; none for experiments without
    a suite at hand.
    """
    matrix = [make(experiment) for experiment in found if experiment.is_matrix for make in MATRIX]
    return tuple(
        matrix + [experiment_table(experiment) for experiment in found if not experiment.is_matrix]
    )


def _manifests(comparison: Comparison) -> dict[str, bytes]:
    """The sweep's current manifest.csv; for several sweeps one each, named after its folder."""
    folders: list[Path] = list(
        dict.fromkeys(
            run.input.layout.root.parent.resolve()
            for run in comparison.runs
            if run.input.manifest_row
        )
    )
    names = (
        ["manifest.csv"]
        if len(folders) == 1
        else [f"manifest-{slug}.csv" for slug in slugs(folder.name for folder in folders)]
    )
    return {name: _manifest(folder) for name, folder in zip(names, folders, strict=True)}


def _manifest(folder: Path) -> bytes:
    """A manifest as a table, escaped cell by cell: its content is untrusted."""
    text = read_whole(SweepLayout(folder).manifest).decode("utf-8", "replace")
    header, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    return csv_bytes(header, rows)


def summary_files(replicated: ReplicationData) -> dict[str, bytes]:
    """publication_summary.json and .md; new_findings.csv and .md where a published experiment was
    repeated.
    """
    files = {
        "publication_summary.json": as_json(_document(replicated)),
        "publication_summary.md": _markdown(replicated).encode(),
    }
    if replicated.experiments:
        names = [field.name for field in fields(NewFinding)]
        files["new_findings.csv"] = csv_of(
            records_table([asdict(entry) for entry in replicated.news], names)
        )
        files["new_findings.md"] = "\n".join(
            ["# New findings", "", *_findings(replicated.news)]
        ).encode()
    return files


def _document(replicated: ReplicationData) -> dict[str, Any]:
    comparison = replicated.comparison
    return {
        "schema_version": SCHEMA_VERSION,
        "exit_code": comparison.exit_code,
        "code_revisions": sorted({revision(run) for run in comparison.runs if run.environment}),
        "suites": [
            dict(zip(_KEYS, [str(value) for value in row], strict=True))
            for row in _suite_rows(comparison)
        ],
        "experiments": [
            {
                "experiment": e.ident,
                "scale": e.scale,
                "averaged": e.suites,
                "refused": e.refused,
                "missing": e.missing,
                "setting": e.setting,
            }
            for e in replicated.experiments
        ],
        "tables": [table_document(table) for table in replicated.tables],
        "statistics": summary_rows(comparison),
        "claims": [asdict(claim) for claim in replicated.claims],
        "new_findings": [asdict(entry) for entry in replicated.news],
        "limits": limits(replicated.experiments),
        "figures": [
            {"name": picture.name, "title": picture.title} for picture in replicated.pictures
        ],
    }


_KEYS = ("suite", "accepted", "scale", "arms", "runs", "valid", "failed_gates")


def table_document(published: PublishedTable) -> dict[str, Any]:
    """A published table in publication_summary.json, with its cells as displayed."""
    table = published.table
    rows = [
        [text_of(value, column) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]
    labels = [column.label for column in table.columns]
    return {
        "ident": published.ident,
        "title": table.title,
        "note": table.note,
        "columns": labels,
        "rows": rows,
        "setting": published.setting,
    }


def _suite_rows(comparison: Comparison) -> list[Row]:
    rows: list[Row] = []
    for suite, gates in comparison.gates.items():
        runs = [run for run in comparison.runs if run.suite == suite]
        valid = sum(run.verdict.status == "valid" for run in runs)
        failed = ", ".join(gate.name for gate in gates if not gate.passed) or "-"
        arms = ", ".join(arm.label for arm in comparison.of(suite))
        rows.append(
            (
                suite or "-",
                "yes" if all_passed(gates) else "no",
                comparison.scale([suite]),
                arms,
                len(runs),
                valid,
                failed,
            )
        )
    return rows


def _markdown(replicated: ReplicationData) -> str:
    comparison = replicated.comparison
    lines = ["# Publication summary", "", *_sentences(replicated), "", "## Suites", ""]
    lines += [*markdown_of(Table("Suites", SUITE_COLUMNS, tuple(_suite_rows(comparison)))), ""]
    if replicated.claims:
        columns = tuple(
            map(Column, ("Experiment", "Claim", "Published", "Measured", "Verdict", "Why"))
        )
        lines += markdown_section(
            Table("Published claims", columns, tuple(claim.row for claim in replicated.claims))
        )
    if replicated.news:
        lines += ["## New findings", "", *_findings(replicated.news)]
    for table in replicated.tables:
        lines += [
            f"## {escaped(table.table.title)}",
            "",
            escaped(table.table.note),
            "",
            f"What differs: {escaped(table.setting)}",
            "",
        ]
        lines += [*markdown_of(table.table), ""]
    lines += [
        *_section(
            "Figures",
            [f"![{escaped(p.title)}](figures/{p.name}.png)" for p in replicated.pictures],
            "",
        )
    ]
    lines += [*_section("Limits", [escaped(text) for text in limits(replicated.experiments)], "- ")]
    return "\n".join(lines)


def _sentences(replicated: ReplicationData) -> list[str]:
    """Sentences that must precede any number."""
    suites = replicated.comparison.gates
    accepted = sum(all_passed(gates) for gates in suites.values())
    lines = [
        f"{accepted} of {plural(len(suites), 'suite')} accepted; what is not accepted is listed and"
        " not averaged."
    ]
    if not replicated.experiments:
        return [*lines, "None of them is a suite of a published experiment."]
    verdicts = Counter(claim.verdict for claim in replicated.claims)
    counted = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    where = "; ".join(f"{e.ident} at {e.scale}" for e in replicated.experiments)
    return [
        *lines,
        (
            f"Published experiments repeated: {where}. Of"
            f" {plural(len(replicated.claims), 'published claim')}: {counted}."
        ),
    ]


def _findings(news: Sequence[NewFinding]) -> list[str]:
    columns = (
        *map(Column, ("Experiment", "Finding", "Published", "Measured", "Kind")),
        Column("n", "count"),
    )
    return [
        *markdown_of(Table("New findings", columns, tuple(astuple(entry) for entry in news))),
        "",
    ]


def _section(title: str, items: Sequence[str], bullet: str) -> list[str]:
    return [f"## {title}", "", *(f"{bullet}{item}" for item in items), ""] if items else []


class _Published:
    """The `Replication` of the ECRL reports."""

    experiments: Mapping[str, str] = EXPERIMENTS
    arms: Mapping[str, tuple[str, ...]] = ARMS

    def publication(self, comparison: Comparison) -> Publication:
        return publication(comparison)


PUBLISHED = _Published()
