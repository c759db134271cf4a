"""Shared by all tools of the race: the environment of each, jobs that start without importing
torch again, commands within a time limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ecrl_cli.errors import EvidenceMissing
from ecrl_cli.linux.pdeathsig import with_pdeathsig
from ecrl_cli.studies.frame.study import StudyContext
from ecrl_cli.studies.rivals.subjects import CHECKOUT, RacedJob

_WARM = CHECKOUT / "tests" / "strangers" / "warm.py"
LIMIT_S = 1200.0


@dataclass(frozen=True)
class Ended:
    """A command that has ended: exit code (-9: at its time limit), all it printed, seconds."""

    code: int
    text: str
    seconds: float


class RaceBench:
    """Shared by all trials; `close` ends its servers."""

    def __init__(self, context: StudyContext) -> None:
        self._context = context
        self._servers: dict[tuple[str, tuple[str, ...]], tuple[subprocess.Popen[bytes], str]] = {}
        self.kept: dict[Any, Any] = {}  # what a tool makes once for several rows of a job

    @property
    def points(self) -> int:
        return int(self._context.keys.points)

    def folder(self) -> Path:
        """An empty folder."""
        return Path(tempfile.mkdtemp(dir=self._context.scratch))

    def python(self, tool: str) -> str:
        """The interpreter of the environment that has `tool`."""
        return python_of(self._context.keys.environments, tool)

    def start(self, subject: RacedJob, python: str = sys.executable) -> list[str]:
        """The words that stand for `python` in a command that starts `subject`."""
        return self.start_with(python, subject.modules)

    def start_with(self, python: str, modules: tuple[str, ...], ranks: int = 0) -> list[str]:
        """The words that stand for `python`, or for torchrun with `ranks`, before a script."""
        key = (python, modules)
        if key not in self._servers:
            socket = str(self.folder() / "socket")
            self._servers[key] = (_server(python, socket, modules), socket)
        return [python, "-IS", str(_WARM), self._servers[key][1], str(ranks)]

    def run(
        self, command: list[str], folder: Path, environment: dict[str, str] | None = None
    ) -> Ended:
        """Run a command in `folder` to its end."""
        began = time.monotonic()
        variables = {k: v for k, v in os.environ.items() if not k.startswith("ECRL_")}
        try:
            done = subprocess.run(
                with_pdeathsig(command),
                cwd=folder,
                env=variables | (environment or {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
                check=False,
            )
            code, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            code, text = -9, str(late.stdout or "")
        return Ended(code, text, time.monotonic() - began)

    def bare(self, subject: RacedJob) -> float:
        """Seconds of the job by itself, started like everywhere here; measured once."""
        key = ("bare", subject.script)
        if key not in self.kept:
            folder = self.folder()
            words = [word.replace("{dir}", str(folder / "out")) for word in subject.first()]
            self.kept[key] = self.run([*self.start(subject), *words], folder).seconds
        seconds: float = self.kept[key]
        return seconds

    def close(self) -> None:
        for server, _ in self._servers.values():
            server.kill()
            server.wait()
            if server.stdout:
                server.stdout.close()
        self._servers.clear()


def python_of(environments: str, tool: str) -> str:
    """`ENVIRONMENTS/TOOL/bin/python` where it is, else the interpreter that runs this."""
    home = (Path(environments).expanduser() / tool.lower()).resolve()  # TrainCheck fails on a link
    own = home / "bin" / "python"
    return str(own) if environments and own.exists() else sys.executable


@cache
def version_in(python: str, distribution: str) -> str:
    """The version of `distribution` that `python` has; empty if it has none."""
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _server(python: str, socket: str, modules: tuple[str, ...]) -> subprocess.Popen[bytes]:
    code = (
        f"import sys; sys.path.append({str(CHECKOUT)!r});"
        f" from tests.strangers import warm; warm.serve({socket!r}, {modules!r})"
    )
    command = with_pdeathsig([python, "-W", "ignore", "-c", code])
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    if server.stdout.readline() != b"ready\n":
        server.stdout.close()
        server.wait()
        raise EvidenceMissing(
            python, f"cannot import {', '.join(modules) or 'torch'}", "its own error stands above"
        )
    return server
