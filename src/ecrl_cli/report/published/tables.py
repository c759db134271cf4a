"""Every published table that there are runs for."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.report.published.aggregates import table5, table7
from ecrl_cli.report.published.experiments import experiment_table
from ecrl_cli.report.published.model import PublishedTable
from ecrl_cli.report.published.sample import Experiment
from ecrl_cli.report.published.settings_tables import table2, table3, table4
from ecrl_cli.report.published.suites import table6, table8

MATRIX = (table2, table3, table4, table5, table6, table7, table8)


def published_tables(found: Sequence[Experiment]) -> tuple[PublishedTable, ...]:
    """The matrix's tables in their order, then those of experiments 1 to 3; none where no suite of an experiment is at hand."""
    matrix = [make(experiment) for experiment in found if experiment.ident == "exp4" for make in MATRIX]
    return tuple(matrix + [experiment_table(experiment) for experiment in found if experiment.ident != "exp4"])
