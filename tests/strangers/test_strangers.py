"""Every row of jobs.yaml gets the right answer from `ecrl audit`: its exit code, the words that
name the cause, and no line against another.

Slow but for the rows that are marked `quick`, whose jobs are started warm: with drawn failures an
audit starts its job a dozen times. Rows whose packages are missing are skipped by name;
ECRL_TEST_PYTHONS names further interpreters that have them.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.strangers.auditor import Auditor
from tests.strangers.contradictions import contradictions
from tests.strangers.table import FOLDER, KINDS, Row, interpreter_of, read_table, wrong_words

ROWS = read_table()


def cases(quick: bool) -> list[pytest.ParameterSet]:
    return [pytest.param(row, id=row.name) for row in ROWS if row.quick == quick]


@pytest.fixture(scope="module")
def warm_auditor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Auditor]:
    with ExitStack() as stack:
        yield Auditor(tmp_path_factory.mktemp("strangers"), False, stack)


@pytest.mark.parametrize("row", cases(quick=True))
def test_a_row_that_stays_in_the_default_run(row: Row, warm_auditor: Auditor) -> None:
    judged_right(row, warm_auditor)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("row", cases(quick=False))
def test_the_answer_is_right(row: Row, tmp_path: Path) -> None:
    """With each process started as the job's user starts it."""
    with ExitStack() as stack:
        judged_right(row, Auditor(tmp_path, True, stack))


def judged_right(row: Row, auditor: Auditor) -> None:
    interpreter, missing = interpreter_of(row)
    if missing:
        pytest.skip(missing)
    done, wrong = auditor.audit(row, interpreter)
    assert (done.returncode, wrong) == (row.code, []), f"{done.stdout}\n{done.stderr[-2000:]}"


def test_the_table_is_well_formed() -> None:
    assert [name for name, count in Counter(row.name for row in ROWS).items() if count > 1] == []
    for row in ROWS:
        assert (
            row.command[0] in ("python", "torchrun")
            and f"{row.job}.py" in row.command
            and "{dir}" in row.command
        ), row.name
        assert row.origin and (row.kind == "healthy" or row.holds), (
            f"{row.name}: who reads it must learn the cause"
        )
        assert row.kind == "broken" or row.code == KINDS[row.kind], (
            f"{row.name}: a row that is not broken has no other code"
        )
    assert {row.code for row in ROWS} == {0, 1, 3}


def test_each_job_has_its_rows_and_says_what_it_is() -> None:
    jobs = {path.stem: path for path in (FOLDER / "jobs").glob("*.py")}
    assert jobs.keys() == {row.job for row in ROWS}
    assert [
        name
        for name, path in jobs.items()
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ] == []
    for job in jobs:
        kinds = {row.kind for row in ROWS if row.job == job}
        assert {"healthy", "broken"} <= kinds, f"{job}: a fault is only shown beside its absence"


def test_a_handful_of_rows_is_quick() -> None:
    quick = [row for row in ROWS if row.quick]
    assert 6 <= len(quick) <= 10 and {row.kind for row in quick} == KINDS.keys()
    assert all(
        "audit.references=1" in row.keys
        and any(key.startswith("failure.steps") for key in row.keys)
        for row in quick
    )


def finding(promise: str, status: str, message: str, arm: str = "struck") -> dict[str, object]:
    return {
        "promise": promise,
        "status": status,
        "message": message,
        "arm": arm,
        "step": None,
        "evidence": [],
    }


TRAJECTORY = finding(
    "same trajectory", "kept", "all 16 steps are bit for bit those of the undisturbed run"
)
BEGAN = finding("restored: parameters", "kept", "attempt 1 began with the parameters of step 4")
OPTIMIZER = finding(
    "restored: optimizer", "kept", "attempt 1 began with the optimizer's state of step 4"
)


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (
            OPTIMIZER,
            finding(
                "same trajectory",
                "broken",
                "step 9 was done twice and differs: the optimizer's state, its settings or the"
                " scaler were not restored",
            ),
            "optimizer: restored and not restored",
        ),
        (
            finding("restored: buffers", "kept", "they are those of the undisturbed run"),
            finding(
                "same trajectory",
                "broken",
                "differs in loss: parameters or buffers were not restored, or a generator that is"
                " not recorded",
            ),
            "buffers: restored and not restored",
        ),
        (
            OPTIMIZER,
            finding(
                "restored: optimizer",
                "broken",
                "the optimizer's state before step 5 is that of no earlier step",
            ),
            "kept and broken",
        ),
        (
            TRAJECTORY,
            finding("restored: parameters", "broken", "those of no earlier step"),
            "bit for bit",
        ),
        (
            BEGAN,
            finding(
                "right checkpoint",
                "not checked",
                "no finished checkpoint is on record before a death",
            ),
            "nothing was saved",
        ),
        (
            BEGAN,
            finding("restored: optimizer", "unknown", "nothing", arm="no-checkpoint") | {"arm": ""},
            "",
        ),
        (
            finding("exactly once", "kept", "16 steps consumed the samples of the undisturbed run"),
            finding(
                "same trajectory",
                "broken",
                "differs in samples: the data position was not restored",
            ),
            "exactly once",
        ),
        (
            finding("deterministic", "kept", "2 runs are equal", arm=""),
            finding("same end", "unknown", "the job is not deterministic"),
            "deterministic",
        ),
        (
            finding("same end", "kept", "ended at step 16"),
            finding("progress", "broken", "the job did not come to its end"),
            "came to its end",
        ),
    ],
)
def test_two_lines_that_deny_each_other_are_found(
    one: dict[str, object], other: dict[str, object], why: str
) -> None:
    assert contradictions([other, one]) == contradictions([one, other])
    told = contradictions([one, other])
    assert any(why in line for line in told) if why else told == []


@pytest.mark.parametrize(
    "findings",
    [
        [
            OPTIMIZER,
            finding(
                "restored: optimizer", "broken", "the optimizer's state of attempt 2 was not loaded"
            ),
        ],
        [
            OPTIMIZER,
            finding(
                "restored: optimizer",
                "broken",
                "attempt 1: the optimizer's state was not loaded",
                arm="later-epoch",
            ),
        ],
        [
            OPTIMIZER,
            finding(
                "restored: scaler", "broken", "in step 5: the gradient scaler was not restored"
            ),
        ],
        [TRAJECTORY, finding("same files", "broken", "best.pt differs")],
        [
            TRAJECTORY,
            finding(
                "right checkpoint",
                "broken",
                "attempt 1 went on after step 9, and a checkpoint of step 12 had been finished",
            ),
        ],
        [BEGAN, OPTIMIZER, TRAJECTORY],
    ],
)
def test_lines_that_agree_are_left_alone(findings: list[dict[str, object]]) -> None:
    assert contradictions(findings) == []


def test_a_word_counts_only_where_something_is_wrong() -> None:
    row = next(row for row in ROWS if row.job == "best_lost" and row.kind == "broken")
    kept = {
        "diagnosis": "all is well",
        "findings": [finding("same files", "kept", "best.pt is equal")],
    }
    assert wrong_words(row, kept) == ["lacks best.pt"]
    assert wrong_words(row, {"diagnosis": "best.pt differs", "findings": []}) == []
