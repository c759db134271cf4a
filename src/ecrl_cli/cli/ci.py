"""Verdicts for continuous integration: JUnit XML, and annotations that GitHub shows beside a commit."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.errors import ConfigError, shown, visible

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Case:
    """One promise of one run. `state`: passed, failed, or skipped (unknown, not checked)."""

    run: str
    promise: str
    state: str
    message: str


def check_report(report: Path | None) -> None:
    """ConfigError before anything is run, if the report could not be written after it."""
    if report is not None and (not report.absolute().parent.is_dir() or report.is_dir()):
        raise ConfigError("--junit", f"{shown(str(report))} cannot be written", "name a file in a folder that there is")


def tell(name: str, cases: Iterable[Case], report: Path | None, *, annotate: bool) -> None:
    """Writes `cases` as JUnit XML into `report`, if there is one, and with `annotate` as GitHub's annotations to standard error."""
    listed = list(cases)
    if report:
        report.write_text(junit(name, listed), encoding="utf-8")
    for text in github(listed) if annotate else ():
        sys.stderr.write(text + "\n")


def junit(name: str, cases: Iterable[Case]) -> str:
    """JUnit XML: one test suite, one test case for each of `cases`."""
    listed = list(cases)
    texts = [f"<testcase classname={_quoted(case.run)} name={_quoted(case.promise)}>{_inner(case)}</testcase>" for case in listed]
    failed, skipped = (sum(case.state == state for case in listed) for state in (FAILED, SKIPPED))
    head = f'<testsuite name={_quoted(name)} tests="{len(listed)}" failures="{failed}" skipped="{skipped}">'
    return '<?xml version="1.0" encoding="utf-8"?>\n' + head + "".join(texts) + "</testsuite>\n"


def github(cases: Iterable[Case]) -> list[str]:
    """GitHub's workflow commands: an error for each broken promise, a warning for each that could not be judged."""
    kinds = {FAILED: "error", SKIPPED: "warning"}
    return [
        f"::{kinds[case.state]} title={_escaped(f'{case.run}: {case.promise}', more=':,')}::{_escaped(case.message)}"
        for case in cases
        if case.state in kinds and not case.message.startswith("not checked")
    ]


def _inner(case: Case) -> str:
    tag = {FAILED: "failure", SKIPPED: "skipped"}.get(case.state)
    return f"<{tag} message={_quoted(case.message)}/>" if tag else ""


def _quoted(text: str) -> str:
    from xml.sax.saxutils import quoteattr  # brings urllib.request, ssl and http

    return quoteattr(visible(text))


def _escaped(text: str, more: str = "") -> str:
    """As GitHub asks: percent signs and line ends by their codes, in properties also `more`."""
    for letter in ("%", "\r", "\n", *more):
        text = text.replace(letter, f"%{ord(letter):02X}")
    return visible(text)
