"""The complete published part of the report: tables, figures, artifacts per suite, summaries. `report.build` calls it through `PUBLISHED`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from ecrl_cli.records.layout import SweepLayout
from ecrl_cli.records.safe_read import read_whole
from ecrl_cli.replication.report.experiments import experiment_table
from ecrl_cli.replication.report.figures import published_pictures
from ecrl_cli.replication.report.matrix_tables import table5, table6, table7, table8
from ecrl_cli.replication.report.publishable import publishable_files
from ecrl_cli.replication.report.sample import Experiment, experiments
from ecrl_cli.replication.report.settings_tables import table2, table3, table4
from ecrl_cli.replication.report.summary import ReplicationData, summary_files
from ecrl_cli.replication.report.values import ARMS, repeats
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.replication import Publication, PublishedTable
from ecrl_cli.report.model.study_record import slugs
from ecrl_cli.report.tables.renderers import csv_bytes

MATRIX = (table2, table3, table4, table5, table6, table7, table8)


def publication(comparison: Comparison) -> Publication:
    """Every file by its path in the report's folder. Raises RecordError, or OSError if a sweep's manifest has vanished since it was read."""
    found = tuple(experiments(comparison))
    material = ReplicationData(comparison, found, published_tables(found), published_pictures(found))
    figures = {f"figures/{each.name}.{kind}": data for each in material.pictures for kind, data in (("png", each.png), ("pdf", each.pdf))}
    return Publication(publishable_files(comparison) | summary_files(material) | _manifests(comparison) | figures, material.tables, material.pictures)


def published_tables(found: Sequence[Experiment]) -> tuple[PublishedTable, ...]:
    """The matrix's tables in order, then those of experiments 1 to 3; none for experiments without a suite at hand."""
    matrix = [make(experiment) for experiment in found if experiment.ident == "exp4" for make in MATRIX]
    return tuple(matrix + [experiment_table(experiment) for experiment in found if experiment.ident != "exp4"])


def _manifests(comparison: Comparison) -> dict[str, bytes]:
    """The sweep's current manifest.csv; for several sweeps one each, named after its folder."""
    folders: list[Path] = list(dict.fromkeys(run.input.layout.root.parent.resolve() for run in comparison.runs if run.input.manifest_row))
    names = ["manifest.csv"] if len(folders) == 1 else [f"manifest-{slug}.csv" for slug in slugs(folder.name for folder in folders)]
    return {name: _manifest(folder) for name, folder in zip(names, folders, strict=True)}


def _manifest(folder: Path) -> bytes:
    """A manifest as a table, escaped cell by cell: its content is untrusted."""
    text = read_whole(SweepLayout(folder).manifest).decode("utf-8", "replace")
    header, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    return csv_bytes(header, rows)


class _Published:
    """The `Replication` of the ECRL reports."""

    def publication(self, comparison: Comparison) -> Publication:
        return publication(comparison)

    def experiment(self, suite: str) -> str:
        return repeats(suite)

    def arms(self, experiment: str) -> tuple[str, ...]:
        return ARMS.get(experiment, ())


PUBLISHED = _Published()
