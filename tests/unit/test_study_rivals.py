"""The race of tools that judge recovery, and the table of libraries: their jobs are there, an
answer is scored as it is, a tool's output is read as the tool writes it.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ecrl_cli.config.studies import RACE_JOBS, RACERS
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.study import Record, StudyContext, Trial, TrialResults
from ecrl_cli.studies.libraries.study import (
    NOT_TRIED,
    _answered,
    _judged,
    _python,
    _run,
    libraries,
)
from ecrl_cli.studies.rivals.bench import RaceBench, python_of
from ecrl_cli.studies.rivals.ckpt_chaos import _ROW
from ecrl_cli.studies.rivals.ecrl import run_audit
from ecrl_cli.studies.rivals.study import TOOLS, _ours, _word
from ecrl_cli.studies.rivals.subjects import CHECKOUT, subjects
from ecrl_cli.studies.rivals.tool import CAUGHT, NOT_APPLICABLE, PASSED, ToolAnswer, found, written

BROKEN = next(row for row in subjects() if row.switch == "--bug optimizer")
HEALTHY = next(row for row in subjects() if row.job == "plain" and row.healthy)


def test_each_job_of_the_race_is_there_and_a_broken_one_says_what_names_its_cause() -> None:
    assert tuple(dict.fromkeys(row.job for row in subjects())) == RACE_JOBS
    assert len({row.key for row in subjects()}) == len(subjects())
    assert all(row.script.is_file() for row in subjects())
    assert all(bool(row.named) != row.healthy for row in subjects())
    assert tuple(TOOLS) == RACERS


@pytest.mark.parametrize(
    ("row", "outcome", "text", "word"),
    [
        (BROKEN, CAUGHT, "the optimizer's state was not loaded", "caught and named"),
        (BROKEN, CAUGHT, "SILENT_DIVERGENCE", "caught"),
        (BROKEN, PASSED, "the optimizer is right", "missed"),
        (BROKEN, NOT_APPLICABLE, "the optimizer", "not applicable"),
        (HEALTHY, PASSED, "", "right"),
        (HEALTHY, CAUGHT, "the optimizer", "false alarm"),
    ],
)
def test_an_answer_is_scored(row, outcome: str, text: str, word: str) -> None:  # type: ignore[no-untyped-def]
    told = found(row, ToolAnswer(outcome, text))
    assert _word(Record("", {}, told, 0.0)) == word
    assert told["named"] == (word == "caught and named")


def test_no_answer_names_a_folder_of_this_machine() -> None:
    told = found(BROKEN, ToolAnswer(CAUGHT, "ValueError: no /a/b/.scratch/main/tmp_1x/out/last.pt"))
    assert told["text"] == "ValueError: no out/last.pt"


def test_a_catch_without_its_cause_misses_our_own_gate() -> None:
    class Results:
        @staticmethod
        def of(arm: str) -> list[Record]:
            told = found(BROKEN, ToolAnswer(CAUGHT, "something differs"))
            return [Record("", {"tool": "ECRL", "kind": "broken", "subject": "it"}, told, 0.0)]

    (gate,) = _ours(Results)  # type: ignore[arg-type]
    assert not gate.passed and "not it" in gate.message


def test_the_rows_that_ckpt_chaos_prints_are_read() -> None:
    printed = (
        "crash point                        newest ok  resume result      weights diff  verdict\n"
        "no crash (control)                         -  resumed from step None  0.00e+00  PASS\n"
        "#14 torch.save:scheduler.pt [before]      10  RAISED ExitCode1        -  HARD_FAIL\n"
        "#33 torch.save:state.pt [term]   -  resumed from step None  0.00e+00  PASS  [PLAN DRIFT]\n"
        "#34 os.mkdir:out [term]          -  resumed from step None  0.00e+00  PASS\n"
    )
    assert _ROW.findall(printed) == [
        ("no crash (control)", "PASS", ""),
        ("#14 torch.save:scheduler.pt [before]", "HARD_FAIL", ""),
        ("#33 torch.save:state.pt [term]", "PASS", "PLAN DRIFT"),
        ("#34 os.mkdir:out [term]", "PASS", ""),
    ]


def test_lines_that_a_user_writes_are_counted_without_words_about_them() -> None:
    path = CHECKOUT / "examples" / "rivals" / "tell_step.py"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert 10 < written("tell_step.py") < len(lines)


def test_each_library_has_a_script_and_each_package_a_pinned_version() -> None:
    rows, folder = libraries(), CHECKOUT / "examples"
    pinned = {
        line.partition("==")[0]
        for line in (folder / "libraries" / "constraints.txt").read_text().splitlines()
    }
    assert len({row.library for row in rows}) == len(rows)
    assert all((folder / row.script).is_file() for row in rows)
    names = {re.sub(r"[-_.]+", "-", name).lower() for row in rows for name in row.packages}
    assert names <= pinned


def test_a_row_with_keys_is_audited_with_them(tmp_path: Path) -> None:
    bench: Any = SimpleNamespace(run=lambda command, folder: command)
    row = next(row for row in libraries() if row.library == "Ray Train")
    command: Any = run_audit(row.command(), "", ["python"], bench, tmp_path, row.keys)
    assert "audit.only=[off-boundary]" in command[: command.index("--")]


def test_an_interpreter_named_from_here_is_found_from_a_jobs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "environments" / "ckpt-chaos" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.chdir(tmp_path)
    assert python_of("environments", "ckpt-chaos") == str(python)
    keys = SimpleNamespace(python="environments/ckpt-chaos/bin/python")
    assert _python(cast(StudyContext, SimpleNamespace(keys=keys))) == str(python)


def test_only_a_library_whose_optimizer_is_none_of_torchs_may_have_no_answer() -> None:
    def gate(*silent: str) -> Gate:
        records = [
            Record(row.library, {}, {"status": status}, 1.0)
            for row in libraries()
            for status in ["no answer" if row.library in silent else "valid"]
        ]
        (answered,) = _answered(cast(TrialResults, SimpleNamespace(of=lambda arm: records)))
        return answered

    assert gate("fastai", "Keras 3 on torch").passed
    assert not gate("fastai", "Ignite").passed and "not Ignite" in gate("Ignite").message


def test_a_promise_is_as_good_as_its_worst_arm_and_untried_where_no_arm_has_it() -> None:
    findings = [
        {"promise": "restored: optimizer", "status": "kept", "arm": "twice"},
        {"promise": "restored: generators", "status": "broken", "arm": "twice"},
        {"promise": "same files", "status": "not checked", "arm": "off-boundary"},
    ]
    judged = _judged(findings, "invalid", f"{CHECKOUT}/examples/x.py")
    assert judged["restored"] == judged["second_restart"] == "broken"
    assert judged["files"] == "not checked" and judged["inside_save"] == NOT_TRIED
    assert judged["diagnosis"] == "/examples/x.py"


def test_scripts_of_the_race_stand_where_their_tools_look() -> None:
    assert {path.name for path in (CHECKOUT / "examples" / "rivals").glob("*.py")} == {
        *("content_digest.py", "tell_step.py", "stop_after.py", "parity_case.py", "test_plain.py")
    }


def test_a_library_that_cannot_be_imported_is_a_row_without_an_answer(tmp_path: Path) -> None:
    """An interpreter that ends at once; the other rows are still tried."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    context: Any = SimpleNamespace(keys=SimpleNamespace(python=str(python)), scratch=tmp_path)
    bench = RaceBench(context)
    context.shared = lambda kind: bench
    row = next(row for row in libraries() if row.library == "Lightning")
    told = _run(context, Trial(row.library, {"library": row.library}))
    assert (told["status"], told["diagnosis"]) == (
        "no answer",
        f"cannot import {', '.join(row.modules)}",
    )
