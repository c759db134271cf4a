"""Every published table that there are runs for."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.replication.report.aggregates import table5, table7
from ecrl_cli.replication.report.experiments import experiment_table
from ecrl_cli.replication.report.sample import Experiment
from ecrl_cli.replication.report.settings_tables import table2, table3, table4
from ecrl_cli.replication.report.suites import table6, table8
from ecrl_cli.report.model.replication import PublishedTable

MATRIX = (table2, table3, table4, table5, table6, table7, table8)


def published_tables(found: Sequence[Experiment]) -> tuple[PublishedTable, ...]:
    """The matrix's tables in their order, then those of experiments 1 to 3; none where no suite of an experiment is at hand."""
    matrix = [make(experiment) for experiment in found if experiment.ident == "exp4" for make in MATRIX]
    return tuple(matrix + [experiment_table(experiment) for experiment in found if experiment.ident != "exp4"])
