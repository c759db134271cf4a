"""The sections of the page after the figures: statistics, published experiments beside the measured ones, comparison with another sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ecrl_cli.report.figures.export import Picture
from ecrl_cli.report.model.arms import MEASURES
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.replication import Publication
from ecrl_cli.report.model.sweep_diff import SweepDiff
from ecrl_cli.report.render.sweep_diff import against_sentences, against_tables
from ecrl_cli.report.tables.comparisons import SHORT, compared_table, noise_table, overlap_table
from ecrl_cli.report.tables.runs import measures_table, restarts_table
from ecrl_cli.report.tables.table import Table


@dataclass(frozen=True)
class Section:
    """A section: `ident` is its anchor. `folded`: its tables are closed at first. `files`: files with more data."""

    ident: str
    title: str
    lead: str
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    files: Sequence[str] = ()
    folded: bool = False


def sections(comparison: Comparison, published: Publication | None = None, beside: SweepDiff | None = None) -> list[Section]:
    """The sections that have a table."""
    found = [_against(beside)] if beside else []
    found += [_published(published)] if published else []
    return [part for part in [*found, _statistics(comparison)] if part.tables]


def _statistics(comparison: Comparison) -> Section:
    """The statistics of comparisons.csv and its neighbours, over all scopes in one table each."""
    scopes = [(scope, suites) for scope, suites in reversed(comparison.scopes) if set(suites) <= set(comparison.passed)]
    arms = [measures_table(comparison, scope, suites) for scope, suites in scopes]
    compared = [compared_table(comparison, scope, suites, SHORT if n else tuple(MEASURES)) for n, (scope, suites) in enumerate(scopes)]
    tables = [
        *_joined(arms, f"Arms, measure by measure, scale {comparison.scale()}"),
        *_joined(compared, f"Arms compared, pair by pair, scale {comparison.scale()}"),
        *(overlap_table(comparison), restarts_table(comparison), noise_table(comparison)),
    ]
    lead = "All measures with their means, deviations and intervals by Student's t and by BCa bootstrap. Folded, because they are many."
    return Section("statistics", "Statistics", lead, [table for table in tables if table], folded=True)


def _joined(tables: Sequence[Table], title: str) -> list[Table]:
    """Joins the same table of several scopes, and shows the scope, which each hides in its first column."""
    if not tables:
        return []
    columns = (replace(tables[0].columns[0], hidden=False), *tables[0].columns[1:])
    return [replace(tables[0], title=title, columns=columns, rows=tuple(row for table in tables for row in table.rows))]


def _published(published: Publication) -> Section:
    """The published tables with measured numbers beside the published ones, and their figures.

    The text on the setting is long and mostly the same: it is printed under the first table only.
    """
    lead = "What was published, as printed, beside what was measured here on another machine and at another scale; each table says what differs."
    files = sorted(name for name in published.files if "/" not in name and name.endswith(".md"))
    first = {table.setting: table for table in reversed(published.tables)}
    tables = []
    for table in published.tables:
        of = first[table.setting]
        differs = table.setting if table is of else f"as under {of.table.title.partition(':')[0]}."
        tables.append(replace(table.table, note=f"{table.table.note} What differs: {differs}".strip()))
    return Section("published", "Published and measured", lead, tables, published.pictures, files)


def _against(beside: SweepDiff) -> Section:
    """This sweep compared with another one."""
    title, lead = f"Against {beside.theirs_name}", " ".join(against_sentences(beside))
    return Section("against", title, lead, against_tables(beside), files=("against.md", "against_effects.csv"))
