"""What every test may use: the real command in its own process, and a look for processes it left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

Ecrl = Callable[..., subprocess.CompletedProcess[str]]

settings.register_profile("any-machine", deadline=None)  # how fast an example is depends on what else runs
settings.load_profile("any-machine")


def run_ecrl(
    folder: Path, *arguments: str, check: int | None = 0, environment: dict[str, str] | None = None, timeout: float = 170
) -> subprocess.CompletedProcess[str]:
    """Run `ecrl ARGS...` in `folder` as a user would; gives the finished process with its text. `check`: the exit code that is due."""
    settings = {**os.environ, **(environment or {})}
    result = subprocess.run(command(*arguments), cwd=folder, capture_output=True, text=True, timeout=timeout, check=False, env=settings)
    if check is not None:
        assert result.returncode == check, f"exit {result.returncode}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    return result


@pytest.fixture
def ecrl(tmp_path: Path) -> Ecrl:
    """`run_ecrl` in `tmp_path`."""
    return partial(run_ecrl, tmp_path)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ecrl_cli.cli.main", *arguments]


def processes_of(folder: Path) -> list[str]:
    """Every living process whose command line or working environment names `folder`, this one excepted."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()] if process.pid != os.getpid() else []
            if process.status() != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in words):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path) -> Iterator[None]:
    """After each test no process works in its folder, and no shared-memory object has come to stay."""
    before = {path.name for path in Path("/dev/shm").iterdir()}
    yield
    left = processes_of(tmp_path)
    for line in left:
        os.kill(int(line.split()[0]), signal.SIGKILL)
    assert not left, f"processes left behind: {left}"
    leaked = [name for name in {path.name for path in Path("/dev/shm").iterdir()} - before if name.startswith("ecrl")]
    assert not leaked, f"shared memory left behind: {leaked}"
