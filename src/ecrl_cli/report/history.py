"""Builds the history of several builds as a page, as Markdown and for a terminal; called by `ecrl
report --history`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ecrl_cli.errors import ConfigError, visible
from ecrl_cli.report.build import ReportResult, write_files
from ecrl_cli.report.formats import date, harmless, plural, printable
from ecrl_cli.report.model.history import History, build_folders, read_history
from ecrl_cli.report.model.picture import Picture, picture_files
from ecrl_cli.report.model.run_record import ON_FILE, Judging
from ecrl_cli.report.palette import variant_colours
from ecrl_cli.report.render.markdown import statement_lines
from ecrl_cli.report.render.page import in_page, page_of
from ecrl_cli.report.tables.history import (
    builds_table,
    csv_tables,
    history_document,
    now_table,
    wrong_table,
)
from ecrl_cli.report.tables.renderers import csv_of, escaped, markdown_section, terminal_of
from ecrl_cli.report.text.history import summarize_history
from ecrl_cli.report.text.summary import ReportSummary

BRIEF = (
    "suite",
    "arm",
    "verdict",
    "since",
    "before",
    "goodput",
    "goodput, change",
    "stall per checkpoint",
    "save, to durable",
)


def history_report(
    dirs: Sequence[Path], out: Path | None = None, judging: Judging = ON_FILE
) -> ReportResult:
    """Writes the history of the builds in `dirs` into `history_folder`. The exit code is that of
    the newest build.

    Errors as of `read_history` and `history_folder`; StorageError if it cannot be written.
    """
    folder = history_folder(dirs, out)
    history = read_history(dirs, judging)
    write_files(folder, _contents(history), out is not None)
    page, said = folder / "index.html", summarize_history(history)
    return ReportResult(
        page,
        "\n".join([*history_lines(history, said), f"history: {visible(page)}"]),
        exit_code(history),
    )


def exit_code(history: History) -> int:
    """Exit code for the newest build: 1 where an arm fails or a gate did, 3 where a verdict is
    missing.
    """
    return 1 if history.failing or not history.newest.runs else history.newest.comparison.exit_code


def history_folder(dirs: Sequence[Path], out: Path | None) -> Path:
    """`out`, or history/ in the only folder given, which holds the builds; ConfigError for several,
    and for a single build, without `out`.
    """
    if out is not None:
        return out
    if len(dirs) == 1 and build_folders(dirs) != [dirs[0]]:
        return dirs[0] / "history"
    raise ConfigError(
        "--out",
        (
            f"{len(dirs)} folders and no place for their history"
            if len(dirs) > 1
            else "one build is no history"
        ),
        "add --out DIR",
    )


def _contents(history: History) -> dict[str, bytes]:
    """Every file by its path in the folder; the page last, so that all its links exist."""
    from ecrl_cli.report.figures.history import history_pictures  # imports what draws

    said, drawn = summarize_history(history), history_pictures(history)
    files = picture_files(drawn) | {
        name: csv_of(table) for name, table in csv_tables(history).items()
    }
    document = history_document(history, said.headline, list(said.sentences)) | {
        "exit_code": exit_code(history)
    }
    files["history.json"] = (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()
    files["history.md"] = history_markdown(
        history, said, [picture.name for picture in drawn]
    ).encode(errors="replace")
    files["index.html"] = history_page(history, said, drawn).encode(errors="replace")
    return {
        name: harmless(data.decode()).encode() if name.endswith((".md", ".html")) else data
        for name, data in files.items()
    }


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
    return [
        printable(line)
        for line in [f"{said.headline}.", *said.sentences, "", table.title, *terminal_of(table), ""]
    ]
