"""`ecrl doctor`: each answer says what follows from it; what a run cannot work without ends in exit
code 1.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.cli import doctor
from ecrl_cli.cli.main import main

FACTS = {
    "version": "2.14",
    "import_s": 1.0,
    "cuda_build": None,
    "capability": "AVX2",
    "threads": 1,
    "gpus": [],
    "gloo": True,
    "nccl": False,
}


@pytest.fixture
def answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Runs the command over a folder with an invented answer of torch: its exit code and its lines
    by name.
    """

    def run(
        folder: Path = tmp_path, torch: str = f"print({json.dumps({**FACTS, 'reduced': True})!r})"
    ) -> tuple[int, dict[str, dict[str, str]]]:
        monkeypatch.setattr(doctor, "_TORCH", torch)
        code = main(["doctor", str(folder), "--json"])
        document = json.loads(capsys.readouterr().out)
        assert document["exit_code"] == code
        return code, {line["name"]: line for line in document["lines"]}

    return run


def test_a_machine_that_runs_the_tests_passes_and_nothing_stays_behind(
    answers: Any, tmp_path: Path
) -> None:
    code, lines = answers()
    assert code == 0
    assert [
        lines[name]["level"] for name in ("python", "loopback", "parent death", "torch", "gloo")
    ] == ["ok"] * 5
    assert {
        "cores",
        "instructions",
        "memory",
        "shared memory",
        "open files",
        "clocks",
        "disk",
        "fsync",
        "direct I/O",
        "nccl",
        "gpu",
    } <= set(lines)
    assert not list(tmp_path.iterdir())


def test_the_questions_to_torch_are_answered_by_the_real_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor", str(tmp_path)]) == 0
    assert "a group of one reduced a tensor" in capsys.readouterr().out


def test_without_torch_it_says_what_works_all_the_same(answers: Any) -> None:
    code, lines = answers(torch="import no_such_torch")
    assert code == 1 and lines["torch"]["level"] == "bad"
    assert (
        "no_such_torch" in lines["torch"]["fact"]
        and "verify, report and audit work without" in lines["torch"]["follows"]
    )


def test_torch_is_imported_when_nothing_else_is_measured_any_more(
    answers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its import takes the processor and the disk from what is measured."""
    measured = tmp_path / "measured"
    monkeypatch.setattr(
        doctor,
        "_fsync",
        lambda path, kind: [measured.touch(), doctor.DoctorLine("ok", "fsync", "fast")][1],
    )
    answer = (
        f"import os; assert os.path.exists({str(measured)!r});"
        f" print({json.dumps({**FACTS, 'reduced': True})!r})"
    )
    assert answers(torch=answer)[1]["torch"]["level"] == "ok"


@pytest.mark.parametrize(
    ("gpus", "nccl", "level", "fact"),
    [
        ([], False, "note", "not in this build, no GPU to use it on"),
        ([], True, "note", "in this build, no GPU to use it on"),
        (["H100"], False, "note", "not in this build"),
        (["H100"], True, "ok", "in this build"),
    ],
)
def test_nccl_is_told_with_what_ranks_use_instead(
    answers: Any, gpus: list[str], nccl: bool, level: str, fact: str
) -> None:
    code, lines = answers(
        torch=f"print({json.dumps({**FACTS, 'reduced': True, 'gpus': gpus, 'nccl': nccl})!r})"
    )
    found = lines["nccl"]
    assert code == 0 and (found["level"], found["fact"]) == (level, fact)
    assert found["follows"] == ("" if level == "ok" else "ranks exchange gradients by gloo")


def test_a_group_that_cannot_be_made_is_bad_with_its_reason(answers: Any) -> None:
    code, lines = answers(torch=f"print({json.dumps({**FACTS, 'gloo_error': 'no interface'})!r})")
    assert code == 1 and lines["gloo"] == {
        "level": "bad",
        "name": "gloo",
        "fact": "no interface",
        "follows": "ranks exchange gradients by it",
    }


def test_an_fsync_that_reaches_no_disk_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "sync", lambda fd: None)
    assert doctor._fsync(tmp_path / "block", "tmpfs").follows.startswith("tmpfs is memory")
    line = doctor._fsync(tmp_path / "block", "ext4")
    assert line.level == "note" and "faster than a disk can be" in line.follows


def test_a_folder_that_cannot_be_written_is_bad(
    answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, kind: str) -> doctor.DoctorLine:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(doctor, "_fsync", refuse)
    code, lines = answers()
    assert code == 1 and lines["write"]["fact"].endswith("Permission denied")


def test_a_missing_loopback_is_bad(answers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refuse)
    code, lines = answers()
    assert (
        code == 1
        and lines["loopback"]["level"] == "bad"
        and "bring the loopback interface up" in lines["loopback"]["follows"]
    )


def test_an_old_python_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    assert [line.level for line in doctor._python()] == ["bad"]


def test_a_folder_that_is_not_there_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err
