"""What a verdict says in all: the worst of its findings, what was not checked counted apart, and a
check that crashes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError, RecordError, plural
from ecrl_cli.verify.registry import guarded
from ecrl_cli.verify.verdict import (
    INVALID,
    NOT_CHECKED,
    UNKNOWN,
    VALID,
    Finding,
    FindingBuilder,
    Verdict,
    render,
)
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.verify_run import verify_run
from tests.runs.builder import build_ref


def verdict(*statuses: str) -> Verdict:
    return Verdict(
        "blk",
        "0" * 64,
        "ref",
        tuple(Finding(f"promise-{n}", status, f"said {n}") for n, status in enumerate(statuses)),
    )


@pytest.mark.parametrize(
    ("statuses", "status", "headline"),
    [
        (
            (VALID, VALID, NOT_CHECKED),
            VALID,
            "blk: valid (2 promises kept, 1 not checked) (against ref)",
        ),
        ((VALID,), VALID, "blk: valid (1 promise kept) (against ref)"),
        (
            (VALID, UNKNOWN, NOT_CHECKED),
            UNKNOWN,
            "blk: unknown (1 promise not proven, 1 kept, 1 not checked) (against ref)",
        ),
        (
            (VALID, UNKNOWN, INVALID, INVALID),
            INVALID,
            "blk: invalid (2 promises broken, 1 not proven, 1 kept) (against ref)",
        ),
        (
            (NOT_CHECKED, NOT_CHECKED),
            UNKNOWN,
            "blk: unknown (2 promises not checked) (against ref)",
        ),
        ((), UNKNOWN, "blk: unknown (no promise checked) (against ref)"),
    ],
)
def test_the_headline_counts_what_was_kept_and_what_was_not_checked(
    statuses: tuple[str, ...], status: str, headline: str
) -> None:
    found = verdict(*statuses)
    assert found.status == status == found.to_json()["status"]
    assert render(found).splitlines()[0] == headline


def test_evidence_is_shown_of_each_promise_kept_or_not() -> None:
    findings = [
        Finding("input", status, f"{status} it is", (f"{status} because",))
        for status in (VALID, NOT_CHECKED, UNKNOWN, INVALID)
    ]
    assert [
        line.strip() for line in render(Verdict("blk", "", "", tuple(findings))).splitlines()[2::2]
    ] == [
        "invalid because",
        "unknown because",
        "valid because",
        "not checked because",
    ]


@pytest.mark.parametrize(
    ("reference", "headline"),
    [("ref", "blk: valid (1 promise kept) (against ref)"), ("", "blk: valid (1 promise kept)")],
)
def test_the_headline_names_the_reference_if_there_was_one(reference: str, headline: str) -> None:
    verdict = Verdict("blk", "0" * 16, reference, (Finding("exactly-once", VALID, ""),))
    assert render(verdict).splitlines()[0] == headline


def test_what_was_not_checked_never_reads_valid() -> None:
    finding = FindingBuilder("promise").finding("nothing to compare with", checked=False)
    assert finding.status == NOT_CHECKED
    line = render(Verdict("blk", "", "", (finding,))).splitlines()[1]
    assert line == "  not checked promise: nothing to compare with"


def test_a_note_outweighs_that_nothing_was_checked() -> None:
    notes = FindingBuilder("promise")
    notes.missing("no record")
    assert notes.finding("", checked=False).status == UNKNOWN


@pytest.mark.parametrize(
    "error", [ValueError("out of range"), RecordError("logs", "out of range", "look")]
)
def test_a_check_that_crashes_is_unknown(error: Exception) -> None:
    def crash(case: Case) -> Finding:
        raise error

    case = SimpleNamespace(run=SimpleNamespace(stored=SimpleNamespace(config=RunConfig())))
    finding = guarded("promise", crash, cast(Case, case))
    assert finding.status == UNKNOWN and finding.message.startswith("promise - the check failed (")
    assert "out of range" in finding.message


@pytest.mark.parametrize(
    ("config", "error", "fact"),
    [
        (replace(RunConfig(), seed=-1), ValueError("out of range"), "must be in 0 .. "),
        (
            RunConfig(),
            ConfigError("model.name", "no model is called x", "name another"),
            "no model is called x",
        ),
    ],
)
def test_a_check_that_crashes_over_a_configuration_that_is_none_says_so(
    config: RunConfig, error: Exception, fact: str
) -> None:
    def crash(case: Case) -> Finding:
        raise error

    finding = guarded(
        "promise",
        crash,
        cast(Case, SimpleNamespace(run=SimpleNamespace(stored=SimpleNamespace(config=config)))),
    )
    assert finding.status == UNKNOWN
    assert finding.message.startswith(
        f"promise - config.json is none that ECRL runs here: {fact}"
    ), finding.message


@pytest.mark.parametrize(("number", "text"), [(0, "0 runs"), (1, "1 run"), (2000, "2000 runs")])
def test_one_is_no_plural(number: int, text: str) -> None:
    assert plural(number, "run") == text


def test_a_run_of_one_attempt_has_one_attempt(tmp_path: Path) -> None:
    """Nowhere in a verdict is there one of several."""
    said = render(verify_run(build_ref(tmp_path).root))
    assert "1 attempt agrees with its logs" in said
    assert not re.search(
        r"(?<![\d.,])1"
        r" (?:attempts|steps|samples|checkpoints|lines|restarts|ranks|files|failures|promises"
        r"|runs|losses|times)\b",
        said,
    ), said


@pytest.mark.parametrize(
    ("digits", "shown"), [(40, "9" * 40), (300, "9" * 20 + "... (300 digits)")]
)
def test_a_number_of_hundreds_of_digits_is_cut(digits: int, shown: str) -> None:
    notes = FindingBuilder("once")
    notes.broken(f"step {'9' * digits} is none")
    assert notes.finding("").message == f"Broke promise: once - step {shown} is none"
