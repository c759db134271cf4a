"""Bad input gets one clear line and exit code 2; nothing is written, nothing is lost."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ecrl_cli.cli.main import main
from ecrl_cli.config import machine
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.supervision.run_lock import run_lock
from tests.conftest import Ecrl, command
from tests.e2e.bad_input_rows import BASE, EXCEPTED, ROWS, Row, recorded


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below `folder`: kind and mode, and content of small files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and status.st_size < 2**20 else b""
        found[str(path)] = (status.st_mode, status.st_size, content)
    return found


def answer(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and what stands on standard error; standard output stays empty."""
    code = main(["train", *arguments])
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err


def assert_one_line(text: str, *says: str) -> None:
    assert text.startswith("ecrl: error: E-"), text
    assert text.count("\n") == 1 and text.endswith("\n"), text
    for fragment in says:
        assert fragment in text


def test_every_row_is_answered_or_excepted_with_a_reason() -> None:
    assert {row.number for row in ROWS} | set(EXCEPTED) == set(range(1, 61))
    assert not {row.number for row in ROWS} & set(EXCEPTED)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_bad_input(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in row.environment.items():
        monkeypatch.setenv(name, value)
    if row.setup:
        row.setup(tmp_path)
    before = tree(tmp_path)
    code, text = answer(row.arguments, capsys)
    assert_one_line(text, *row.says)
    assert code == row.code
    assert tree(tmp_path) == before


@pytest.mark.parametrize("number", [3, 34, 56, 60])
def test_the_real_command_answers_alike(number: int, ecrl: Ecrl, tmp_path: Path) -> None:
    row = next(row for row in ROWS if row.number == number)
    if row.setup:
        row.setup(tmp_path)
    before = tree(tmp_path)
    result = ecrl("train", *row.arguments, check=row.code)
    assert result.stdout == ""
    assert_one_line(result.stderr, *row.says)
    assert tree(tmp_path) == before


def test_debug_adds_the_traceback(ecrl: Ecrl) -> None:
    result = ecrl("train", "seed=-1", "--debug", check=2)
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("ecrl: error: E-config seed:")


def test_a_port_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, text = answer((f"supervision.master_port={port}",), capsys)
    assert code == 2
    assert_one_line(text, f"port {port} is not free (Address already in use)")


def test_more_ranks_than_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "visible_gpus", lambda: 1)
    monkeypatch.setattr(machine, "_torch_build", lambda: "2.15.0")
    code, text = answer(("device=cuda", "world_size=64", "global_batch=64"), capsys)
    assert code == 2
    assert_one_line(text, "world_size: 64 ranks asked, 1 CUDA device visible", "set device=cpu")


def test_a_file_system_that_cannot_sync_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EINVAL, "Invalid argument", str(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ecrl_cli.runs.run_dir.sync_directory", refuse)
    code, text = answer(("global_batch=64",), capsys)
    assert code == 2
    assert_one_line(
        text, "write_mode: directory sync is not supported", "EINVAL", "write_mode=atomic_nodirsync"
    )


def test_a_read_only_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = os.statvfs(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        os,
        "statvfs",
        lambda path: os.statvfs_result((*tuple(real)[:8], os.ST_RDONLY, real.f_namemax)),
    )
    code, text = answer(("global_batch=64",), capsys)
    assert code == 2
    assert_one_line(text, "run_dir:", "is mounted read-only", "choose another run_dir")


def _give_up_the_right_to_write_anywhere() -> None:
    """Before the command starts: root keeps its name but not the capability that overrides file
    modes.
    """
    import ctypes

    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "fixed"
    folder.mkdir()
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


def test_no_write_permission(unwritable: Path) -> None:
    result = subprocess.run(
        command("train", "global_batch=64", "run_dir=run"),
        cwd=unwritable,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        preexec_fn=_give_up_the_right_to_write_anywhere,
    )
    assert result.returncode == 2
    assert_one_line(
        result.stderr, "run_dir: no write permission on", "mode 0555", "choose another run_dir"
    )


def test_a_run_directory_that_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path)
    with run_lock(RunLayout(tmp_path / "run")):
        before = tree(tmp_path)
        code, text = answer(BASE, capsys)
        assert tree(tmp_path) == before
    assert code == 8
    assert_one_line(text, f"held by pid {os.getpid()} on", "use another run directory")
