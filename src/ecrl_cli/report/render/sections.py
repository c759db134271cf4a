"""The sections of the page behind the figures: all statistics, the published experiments beside the measured ones, another sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ecrl_cli.report.figures.export import Picture
from ecrl_cli.report.model.arms import MEASURES
from ecrl_cli.report.model.comparison import ALL, Comparison
from ecrl_cli.report.model.replication import Publication, PublishedTable
from ecrl_cli.report.model.sweep_diff import Against
from ecrl_cli.report.render.sweep_diff import against_sentences, against_tables
from ecrl_cli.report.tables.html_table import Line, Sheet, plain_sheet
from ecrl_cli.report.tables.statistics import SHORT, Table, arms_table, compared_table, noise_table, overlap_table, restarts_table

_KNOWN = {"suite": "suite", "arm": "arm", "comparison": "arm", "variant": "arm", "seed": "seed"}  # what the filter knows of a row, by its column


@dataclass(frozen=True)
class Part:
    """A section: `ident` as in the address. `folded`: its tables open when asked to. `files`: where more of it stands."""

    ident: str
    title: str
    lead: str
    tables: Sequence[Sheet] = ()
    pictures: Sequence[Picture] = ()
    files: Sequence[str] = ()
    folded: bool = False


def parts(comparison: Comparison, published: Publication | None = None, beside: Against | None = None) -> list[Part]:
    """The sections that have something to show."""
    found = [against_part(beside)] if beside else []
    found += [published_part(published)] if published and published.tables else []
    found += [statistics_part(comparison)]
    known = {"suite": {*comparison.suites, ALL}, "arm": {*comparison.labels}, "seed": {run.seed for run in comparison.runs}}
    return [replace(part, tables=[_known(table, known) for table in part.tables]) for part in found if part.tables]


def statistics_part(comparison: Comparison) -> Part:
    """Every number of comparisons.csv and its neighbours that a table can hold, over all suites in one table each."""
    scopes = [(scope, suites) for scope, suites in reversed(comparison.scopes) if set(suites) <= set(comparison.passed)]
    arms = [(scope, arms_table(comparison, scope, suites)) for scope, suites in scopes]
    compared = [(scope, compared_table(comparison, scope, suites, SHORT if n else tuple(MEASURES))) for n, (scope, suites) in enumerate(scopes)]
    tables = [
        *_joined(arms, f"Arms, measure by measure, scale {comparison.scale()}", "summary.csv"),
        *_joined(compared, f"Arms compared, pair by pair, scale {comparison.scale()}", "comparisons.csv"),
        _sheet(overlap_table(comparison), "report.json"),
        _sheet(restarts_table(comparison), "restarts.csv"),
        _sheet(noise_table(comparison), "report.json"),
    ]
    lead = "All measures with their means, deviations and intervals by Student's t and by BCa bootstrap. Folded, because they are many."
    return Part("statistics", "Statistics", lead, [table for table in tables if table.lines], folded=True)


def published_part(published: Publication) -> Part:
    """The published tables with the measured numbers beside the printed ones, and its figures."""
    lead = "What was published, as printed, beside what was measured here on another machine and at another scale; each table says what differs."
    files = sorted(name for name in published.files if "/" not in name and name.endswith(".md"))
    first = {table.setting: table for table in reversed(published.tables)}
    tables = [_published(table, first[table.setting]) for table in published.tables]
    return Part("published", "Published and measured", lead, tables, published.pictures, files)


def against_part(beside: Against) -> Part:
    """This sweep against another one."""
    tables = [_sheet(table, "against.csv") for table in against_tables(beside)]
    return Part("against", f"Against {beside.theirs_name}", " ".join(against_sentences(beside)), tables, files=("against.md", "against_effects.csv"))


def _joined(scoped: Sequence[tuple[str, Table]], title: str, file: str) -> list[Sheet]:
    """The same table of several scopes as one, with the scope in front."""
    rows = [[scope, *row] for scope, table in scoped for row in table.rows]
    return [_sheet(Table(title, ("suite", *scoped[0][1].columns), rows), file)] if rows else []


def _sheet(table: Table, file: str) -> Sheet:
    return plain_sheet(table.title, table.columns, table.rows, file=file)


def _published(table: PublishedTable, first: PublishedTable) -> Sheet:
    """The setting is long and mostly the same: it stands under the first table that has it."""
    setting = f"What differs: {table.setting}" if table is first else f"What differs: as under {first.title.partition(':')[0]}."
    return plain_sheet(table.title, table.columns, table.rows, f"{table.note} {setting}".strip())


def _known(sheet: Sheet, known: dict[str, set[str]]) -> Sheet:
    """`sheet` with its rows known to the filter, where a column names a suite, an arm or a seed as the runs do."""
    keys = {i: _KNOWN[column.label.lower()] for i, column in enumerate(sheet.columns) if column.label.lower() in _KNOWN}

    def of(line: Line) -> dict[str, str]:
        said = {key: line.cells[i].text.partition(" against ")[0] for i, key in keys.items()}
        return {key: text for key, text in said.items() if text in known[key]}

    return replace(sheet, lines=tuple(replace(line, of=of(line)) for line in sheet.lines))
