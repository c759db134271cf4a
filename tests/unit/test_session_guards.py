"""The test session itself: a test that reaches its limit fails alone, and an interrupted session
leaves nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import MARK, comes_true, processes_of
from tests.reaper import RUNNING, marked

ROOT = Path(__file__).parents[2]
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-p",
    "tests.conftest",
    "-p",
    "no:cacheprovider",
    "-c",
    str(ROOT / "pyproject.toml"),
    "--rootdir",
    ".",
]
# begins the name of a variable in the environment of a session that is interrupted
MINE = "ECRL_TEST_OF_INTERRUPTION_BY_"
A_WORKER = ["-n", "1", "--dist", "loadfile", "--no-loadscope-reorder"]

HANGING = """
import signal, subprocess, threading, time
import pytest
from tests import time_limit

time_limit.AGAIN_S = 0.2
limited = pytest.mark.timeout(0.5)


def test_before(): pass


@limited
def test_in_python():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@limited
def test_waiting_for_a_child():
    subprocess.run(["sleep", "1000"])


@limited
def test_catching_everything():
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # what pytest-timeout would use
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        time.sleep(1000)
    finally:
        time.sleep(1000)


@limited
def test_that_nothing_interrupts():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(1000)


def test_after(): pass
"""

WAITING = """
import subprocess
import tempfile
from pathlib import Path


def test_waiting():
    tempfile.mkdtemp(prefix="torchelastic_")
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path("child.tmp").write_text(str(child.pid))
    Path("child.tmp").rename("child")
    child.wait()
"""


def environment() -> dict[str, str]:
    """As if no session of ours were around."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name != RUNNING and not name.startswith(("PYTEST_", MARK))
    }
    return inherited | {"PYTHONPATH": str(ROOT)}


def test_a_test_that_reaches_its_limit_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    command = [*PYTEST, *A_WORKER, "-rA", "--tb=line", "test_hanging.py", "test_other.py"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    outcomes = {
        line.split(" - ")[0]
        for line in ended.stdout.splitlines()
        if line.startswith(("PASSED", "FAILED", "ERROR"))
    }
    hanging = ["in_python", "waiting_for_a_child", "catching_everything", "that_nothing_interrupts"]
    assert outcomes == {
        *(
            "PASSED test_other.py::test_other",
            "PASSED test_hanging.py::test_before",
            "PASSED test_hanging.py::test_after",
        ),
        *(f"FAILED test_hanging.py::test_{name}" for name in hanging),
    }, ended.stdout + ended.stderr
    assert "reached its limit of 0.5 s" in ended.stdout and "cannot be interrupted" in ended.stderr


INTERRUPTIONS = (signal.SIGINT, signal.SIGKILL)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[signal.Signals, Path]:
    """The folder of a session for each signal, which has got it while a test waited for a process.
    All at once: what they leave is waited for.
    """
    folders = {number: tmp_path_factory.mktemp(number.name) for number in INTERRUPTIONS}
    with ExitStack() as stack:
        sessions = {}
        for number, folder in folders.items():
            (folder / "test_waiting.py").write_text(WAITING)
            sessions[number] = stack.enter_context(
                subprocess.Popen(
                    [*PYTEST, *A_WORKER, "test_waiting.py"],
                    cwd=folder,
                    env={**environment(), f"{MINE}{number.name}": "1", "TMPDIR": str(folder)},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        for number, folder in folders.items():
            assert comes_true((folder / "child").exists)
            assert int((folder / "child").read_text()) in marked(f"{MINE}{number.name}")
            sessions[number].send_signal(number)
    return folders


@pytest.mark.parametrize("number", INTERRUPTIONS)
def test_an_interrupted_session_leaves_no_process(
    interrupted: dict[signal.Signals, Path], number: signal.Signals
) -> None:
    folder = interrupted[number]
    assert comes_true(lambda: not marked(f"{MINE}{number.name}"))
    assert comes_true(lambda: not processes_of(folder)) and not list(folder.glob("ecrl-tests-*"))


def test_signals_are_as_on_a_terminal_wherever_pytest_was_started(tmp_path: Path) -> None:
    """As under `nohup pytest &` in a script; what pytest itself ignored does not end it."""
    looks = (
        "import os, signal, subprocess\ndef test_it():\n    assert signal.getsignal(signal.SIGINT)"
        " is signal.default_int_handler\n    assert signal.getsignal(signal.SIGHUP) is not"
        " signal.SIG_IGN\n    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())\n    ignored"
        " = subprocess.run(['grep', 'SigIgn', '/proc/self/status'], capture_output=True,"
        " text=True).stdout.split()[1]\n    assert not int(ignored, 16) & sum(1 << number - 1 for"
        " number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM))\n    os.kill(os.getpid(),"
        " signal.SIGHUP)\n"
    )
    (tmp_path / "test_looks.py").write_text(looks)
    begin = (
        "import os, signal, sys\n"
        "for number in (signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", begin, *PYTEST, "-n", "0", "test_looks.py"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
