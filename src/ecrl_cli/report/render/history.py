"""Renders a history as a page, as Markdown and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.report.figures.export import Picture
from ecrl_cli.report.figures.palette import variant_colours
from ecrl_cli.report.formats import plural, printable
from ecrl_cli.report.model.history import History
from ecrl_cli.report.render.markdown import statement_lines
from ecrl_cli.report.render.page import in_page, page_of
from ecrl_cli.report.tables.history import builds_table, date, now_table, wrong_table
from ecrl_cli.report.tables.renderers import escaped, markdown_section, terminal_of
from ecrl_cli.report.text.summary import ReportSummary

BRIEF = ("suite", "arm", "verdict", "since", "before", "goodput", "goodput, change", "stall per checkpoint", "save, to durable")


def history_page(history: History, said: ReportSummary, drawn: Sequence[Picture]) -> str:
    """index.html. Names come from records and folders and are escaped."""
    return page_of(
        "history.html.j2",
        history=history,
        said=said,
        now=now_table(history),
        wrong=wrong_table(history),
        builds=builds_table(history),
        figures=in_page(drawn),
        colours=variant_colours(sorted({track.arm for track in history.tracks})),
        date=date,
        made_of=plural(len(history.builds), "build"),
        when=date(history.newest.when),
    )


def history_markdown(history: History, said: ReportSummary, figures: Sequence[str]) -> str:
    """history.md."""
    lines = [f"# {escaped(said.headline)}", "", *statement_lines(said), ""]
    for table in (wrong_table(history), now_table(history), builds_table(history)):
        lines += markdown_section(table) if table else []
    return "\n".join([*lines, *(f"![{name}](figures/{name}.png)" for name in figures), ""])


def history_lines(history: History, said: ReportSummary) -> list[str]:
    """For a terminal: the sentences, and every arm of the newest build."""
    table = now_table(history).only(BRIEF)
    return [printable(line) for line in [f"{said.headline}.", *said.sentences, "", table.title, *terminal_of(table), ""]]
