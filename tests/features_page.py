"""`python -m tests.features_page` writes docs/results/features.md anew from
docs/results/features.yaml.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
SOURCE, PAGE = (ROOT / "docs" / "results" / name for name in ("features.yaml", "features.md"))
STATES = {
    "shown": "the page, result or test that is named shows it on two cores, without a GPU",
    "partial": "what is missing is said",
    "not run": (
        "the command is given; it was not run at the published size or on such a machine, or no"
        " result is kept"
    ),
    "contradicted": "what was measured here, or the works' own numbers, say otherwise",
    "not built": "why is said",
}
LEAD = """---
hide: [toc]
---
# What the published works contain

Row by row, in the order of the works: what the reports and studies after ECRL contain, the \
command that shows it, and how far it is shown.
This page is made from `docs/results/features.yaml` by `python -m tests.features_page`; a test \
composes every command and looks for every file and
test that is named.

SF-001 to SF-308 are this project's own numbers of what the works contain; they never change, so \
that a row can be referred to.
Below each stands where in the works it is (`S0 4.1`: section 4.1 of S0). What a work says is told \
in our words.
"""
LIMITS = """The published matrix is kept whole at `scale=cpu` (`docs/results/exp4/`): 80 of \
1,600 steps, an eighth of the batch, half the width.
A test shows that a feature works, not that a published number comes out.
"""
HEADER = (
    "| row | what | command | state | where; what is missing or otherwise |",
    "| --- | --- | --- | --- | --- |",
)


@dataclass(frozen=True)
class Row:
    """`place`: work and section. `what`: in a few words. `run`: a key of `Features.commands`, or
    empty. `see`: paths of the repository, with `::test` after the name of a test file where one
    test is meant. `note`: what is missing, why, or what is done otherwise.
    """

    id: str
    place: str
    what: str
    state: str
    run: str = ""
    see: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Section:
    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Part:
    title: str
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Features:
    works: dict[str, str]
    commands: dict[str, str]
    parts: tuple[Part, ...]

    @property
    def rows(self) -> list[Row]:
        return [row for part in self.parts for section in part.sections for row in section.rows]


@cache
def features() -> Features:
    document = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    parts = tuple(
        Part(
            part["title"],
            tuple(
                Section(section["title"], tuple(map(_row, section["rows"])))
                for section in part["sections"]
            ),
        )
        for part in document["parts"]
    )
    return Features(document["works"], document["commands"], parts)


def _row(entry: dict[str, Any]) -> Row:
    rest = {key: value for key, value in entry.items() if key not in ("in", "see")}
    return Row(place=entry["in"], see=tuple(entry.get("see", ())), **rest)


def rendered(found: Features) -> str:
    """The page as Markdown."""
    works = [f"- {key}: {title}" for key, title in found.works.items()]
    counts = Counter(row.state for row in found.rows)
    states = [f"| {state} | {counts[state]} | {meaning} |" for state, meaning in STATES.items()]
    lines = [
        LEAD,
        *works,
        "",
        "| state | rows | meaning |",
        "| --- | ---: | --- |",
        *states,
        "",
        LIMITS,
    ]
    for part in found.parts:
        lines += [f"## {part.title}", ""]
        for section in part.sections:
            lines += [f"### {section.title}", "", *HEADER]
            lines += [_line(row, found.commands) for row in section.rows]
            lines += [""]
    return "\n".join(lines)


def _line(row: Row, commands: dict[str, str]) -> str:
    command = f"`{commands[row.run]}`" if row.run else "-"
    told = "; ".join(text for text in (", ".join(map(_shown, row.see)), row.note) if text)
    return f"| {row.id}<br>{row.place} | {row.what} | {command} | {row.state} | {told} |"


def _shown(path: str) -> str:
    """A page of the site as a link, as seen from docs/results/; anything else by its path."""
    if path == "docs/results/README.md":
        return "[results](README.md)"
    if path.startswith("docs/") and path.endswith(".md") and not path.startswith("docs/results/"):
        name = path.removeprefix("docs/")
        return f"[{name.removesuffix('.md')}](../{name})"
    return f"`{path}`"


if __name__ == "__main__":
    PAGE.write_text(rendered(features()), encoding="utf-8")
