"""What the tests of launchers and supervisor share: a run directory with a script, a launcher of
stand-in workers.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config.launchers import LAUNCHERS, ZYGOTE, LauncherKind
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.supervision.launch import zygote
from ecrl_cli.supervision.launch.launcher import Launcher, LaunchSpec, RunningAttempt

REPOSITORY = Path(__file__).parent.parent.parent
PYTHONPATH = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "src")))
MODULE = "tests.contract.standin_worker"


class StandinLauncher:
    """Any launcher, but of stand-in workers."""

    def __init__(self, real: Launcher, kind: LauncherKind = ZYGOTE) -> None:
        self.real, self.kind = real, kind
        self.running: RunningAttempt | None = None

    def launch(self, spec: LaunchSpec) -> RunningAttempt:
        self.running = self.real.launch(replace(spec, module=MODULE, preload=(MODULE,)))
        return self.running

    def close(self) -> None:
        self.real.close()


def registered_launcher(name: str, module: str) -> Launcher:
    """The launcher that is registered as `name`. One that is warm has imported `module` and no
    torch.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zygote, "preload", lambda config: (module,))
        made: Launcher = LAUNCHERS.of(name).load().make(RunConfig())
    return made


def standin_launcher(name: str) -> StandinLauncher:
    return StandinLauncher(registered_launcher(name, MODULE), LAUNCHERS.of(name))


def scripted(root: Path, *script: dict[int, str]) -> RunLayout:
    """A run directory whose ranks play `script`, one part per attempt."""
    layout = RunLayout(root.resolve())
    layout.root.mkdir(exist_ok=True)
    (root / "script.json").write_text(json.dumps(script))
    return layout


def spec(layout: RunLayout, world_size: int = 2) -> LaunchSpec:
    layout.attempt(0).folder.mkdir(parents=True)
    return LaunchSpec(layout, AttemptSpec(0, world_size, 0, None, 0, ()))


def pids_of_ranks(layout: RunLayout, attempt: int = 0) -> list[int]:
    """The ids of ranks that are up, by their own word."""
    return [int(path.read_text()) for path in sorted(layout.attempt(attempt).folder.glob("up*"))]


@contextmanager
def told_when_gone(*pids: int) -> Iterator[list[int]]:
    """Descriptors of processes that live now."""
    fds = [os.pidfd_open(pid) for pid in pids]
    yield fds
    for fd in fds:
        os.close(fd)


def gone(fd: int, seconds: float = 10.0) -> bool:
    """Whether the process has ended, waited for as an event."""
    return bool(select.select([fd], [], [], seconds)[0])
