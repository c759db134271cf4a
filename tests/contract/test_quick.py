"""`make quick` runs what `tests/quick.py` lists, and its guard fails a test that starts a process
or imports torch.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import quick

TESTS = Path(__file__).parents[1]
SOME = """
import os, subprocess, sys

def test_started(): subprocess.run(["true"], check=True)
def test_started_and_caught():
    try:
        os.system("true")
    except BaseException:
        pass
def test_forked():
    if not os.fork():
        os._exit(0)
def test_torch(): import torch
def test_neither(): assert "torch" not in sys.modules
"""


def test_each_file_is_there_once() -> None:
    assert sorted({*quick.QUICK}) == sorted(quick.QUICK) and all(
        (TESTS / name).is_file() for name in quick.QUICK
    )


def test_a_test_that_starts_a_process_or_imports_torch_fails_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SOME)
    options = [
        "-q",
        "-p",
        "tests.quick",
        "-p",
        "no:cacheprovider",
        "--tb=line",
        "--rootdir",
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=quick.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    failed = {
        line.split("::")[1].split()[0]
        for line in done.stdout.splitlines()
        if line.startswith("FAILED")
    }
    assert failed == {
        "test_started",
        "test_started_and_caught",
        "test_forked",
        "test_torch",
    }, done.stdout
    assert (
        done.stdout.count("a quick test must not start a process") >= 3
        and "a quick test must not import torch" in done.stdout
    )
