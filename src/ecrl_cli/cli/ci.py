"""Verdicts for continuous integration: JUnit XML, and what GitHub shows: annotations beside a
commit, and the summary of a step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ecrl_cli import __version__
from ecrl_cli.errors import ConfigError, shown, visible

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class CiCase:
    """One promise of one run. `state`: passed, failed, or skipped (unknown, not checked).
    `seconds`: that the run took, on one of its cases.
    """

    run: str
    promise: str
    state: str
    message: str
    evidence: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Suite:
    """Facts about all cases together. `verdict`: one word; `diagnosis`: one sentence; `seconds`: of
    the command; `more`: further properties.
    """

    name: str
    verdict: str = ""
    diagnosis: str = ""
    seconds: float = 0.0
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        found = {
            "ecrl": __version__,
            "verdict": self.verdict,
            "diagnosis": self.diagnosis,
            **self.more,
        }
        return {name: value for name, value in found.items() if value}


def check_report(report: Path | None) -> None:
    """ConfigError before anything is run, if the report could not be written after it."""
    if report is not None and (not report.absolute().parent.is_dir() or report.is_dir()):
        raise ConfigError(
            "--junit",
            f"{shown(str(report))} cannot be written",
            "name a file in a folder that there is",
        )


def tell(suite: Suite, cases: Iterable[CiCase], report: Path | None, *, annotate: bool) -> None:
    """Writes `cases` as JUnit XML into `report`, if there is one, and with `annotate` as GitHub's
    annotations to standard error and, where GitHub names a file for it, as the summary of the step.
    """
    listed = list(cases)
    if report:
        report.write_text(junit(suite, listed), encoding="utf-8")
    if not annotate:
        return
    for text in github(listed):
        sys.stderr.write(text + "\n")
    if summary_file := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary_file).open("a", encoding="utf-8") as file:
            file.write(summary(suite, listed))


def junit(suite: Suite, cases: Iterable[CiCase]) -> str:
    """JUnit XML: one test suite, one test case for each of `cases`."""
    listed, name = list(cases), suite.name
    texts = [
        f"<testcase classname={_quoted(case.run)} name={_quoted(case.promise)}"
        f' time="{case.seconds:.3f}">{_inner(case)}</testcase>'
        for case in listed
    ]
    said = "".join(
        f"<property name={_quoted(key)} value={_quoted(value)}/>"
        for key, value in suite.properties.items()
    )
    failed, skipped = (sum(case.state == state for case in listed) for state in (FAILED, SKIPPED))
    head = (
        f'<testsuite name={_quoted(name)} tests="{len(listed)}" failures="{failed}"'
        f' skipped="{skipped}" time="{suite.seconds:.3f}">'
    )
    head += f"<properties>{said}</properties>"
    return '<?xml version="1.0" encoding="utf-8"?>\n' + head + "".join(texts) + "</testsuite>\n"


def github(cases: Iterable[CiCase]) -> list[str]:
    """GitHub's workflow commands: an error for each broken promise, a warning for each that could
    not be judged.
    """
    kinds = {FAILED: "error", SKIPPED: "warning"}
    return [
        f"::{kinds[case.state]}"
        f" title={_escaped(f'{case.run}: {case.promise}', more=':,')}::{_escaped(case.message)}"
        for case in cases
        if case.state in kinds and not case.message.startswith("not checked")
    ]


def _inner(case: CiCase) -> str:
    tag = {FAILED: "failure", SKIPPED: "skipped"}.get(case.state)
    if not tag:
        return ""
    evidence = (
        "\n".join(visible(line) for line in case.evidence)
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )
    return f"<{tag} message={_quoted(case.message)}>{evidence}</{tag}>"


_LISTED = 50  # rows of a summary: GitHub shows at most a megabyte of it


def summary(suite: Suite, cases: Iterable[CiCase]) -> str:
    """Markdown for GitHub's page of a step: the verdict, its diagnosis, and each case that did not
    pass with its evidence.
    """
    listed = list(cases)
    open_ones = [case for case in listed if case.state != PASSED]
    passed = len(listed) - len(open_ones)
    failed = any(case.state == FAILED for case in listed)
    verdict = suite.verdict or ("invalid" if failed else "done")
    lines = [f"### {_cell(suite.name)}: {_cell(verdict)}", ""]
    lines += [_cell(suite.diagnosis), ""] if suite.diagnosis else []
    if open_ones:
        lines += ["| | run | promise | what was found |", "| --- | --- | --- | --- |"]
        rows = sorted(open_ones, key=lambda case: case.state != FAILED)[:_LISTED]
        texts = [
            (case, "<br>".join(_cell(text) for text in (case.message, *case.evidence[:3])))
            for case in rows
        ]
        lines += [
            f"| {case.state} | {_cell(case.run)} | {_cell(case.promise)} | {text} |"
            for case, text in texts
        ]
        lines += (
            [f"| | | | and {len(open_ones) - _LISTED} more |"] if len(open_ones) > _LISTED else []
        )
        lines += [""]
    took = f" in {suite.seconds:.0f} s" if suite.seconds else ""
    return "\n".join(
        [*lines, f"{passed} of {len(listed)} promises kept{took}; ECRL {__version__}", "", ""]
    )


def _cell(text: str) -> str:
    """`text` in a table of Markdown, as plain text: a stranger's run may be named like markup."""
    shown_text = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{letter}" if letter in "\\|`*_[]#!" else letter for letter in shown_text)


def _quoted(text: str) -> str:
    from xml.sax.saxutils import quoteattr  # brings urllib.request, ssl and http

    return quoteattr(visible(text))


def _escaped(text: str, more: str = "") -> str:
    """Escapes a text as GitHub asks: percent signs and line ends by their codes, in properties also
    `more`.
    """
    for letter in ("%", "\r", "\n", *more):
        text = text.replace(letter, f"%{ord(letter):02X}")
    return visible(text)
