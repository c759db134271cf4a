"""A zygote with a network of its own serves one attempt; what is warmed for the next one is the one
that serves it.
"""

from __future__ import annotations

import os
import select
import signal
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.linux import processes
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.supervision.launch import zygote
from ecrl_cli.supervision.launch.launcher import LaunchSpec
from ecrl_cli.supervision.launch.zygote import ZygoteLauncher, ZygoteProcess
from tests.contract.standin import MODULE, PYTHONPATH, scripted, spec


@pytest.mark.parametrize(("private", "started"), [(True, 2), (False, 1)])
def test_a_private_zygote_that_has_served_is_not_warmed_but_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: bool, started: int
) -> None:
    made: list[MagicMock] = []

    def make(modules: tuple[str, ...], private_network: bool) -> MagicMock:
        made.append(MagicMock())
        made[-1].over.return_value = False
        return made[-1]

    monkeypatch.setattr(zygote, "ZygoteProcess", make)
    monkeypatch.setattr(processes, "become_subreaper", lambda: None)
    launcher, spec = (
        ZygoteLauncher(private_network=private),
        LaunchSpec(RunLayout(tmp_path), AttemptSpec(0, 2, 0, None, 0, ())),
    )
    for _ in range(2):
        launcher.warm(RunConfig())
        launcher.launch(spec)
    assert len(made) == started
    assert [one.warm.call_count for one in made] == [2 // started] * started
    assert [one.ask.call_count for one in made] == [2 // started] * started
    assert [one.close.call_count for one in made] == [1] * (started - 1) + [0]


def _forked_by(pid: int) -> int:
    """The first process that `pid` forked and still has: the store."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("hit", ["zygote", "store"])
def test_a_zygote_that_cannot_serve_is_replaced_before_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hit: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    launcher = ZygoteLauncher((MODULE,))
    monkeypatch.setattr(zygote, "preload", lambda config: (MODULE,))
    try:
        launcher.warm(RunConfig())
        first = launcher._living()
        victim = first.process.pid if hit == "zygote" else _forked_by(first.process.pid)
        os.kill(victim, number)
        while processes.state(victim) not in ("T", "Z"):
            pass
        attempt = launcher.launch(replace(spec(scripted(tmp_path, {})), module=MODULE))
        while not attempt.check():
            select.select(attempt.watched(), [], [])
        # nobody listens to them: that they were forked is what counts
        assert [each.rank for each in attempt.reap().ranks] == [0, 1]
        assert attempt.zygote is not first
    finally:
        launcher.close()


@pytest.mark.parametrize(("stopped", "limit"), [(True, 1e9), (False, 0.0)])
def test_a_zygote_that_does_not_get_warm_is_given_up_and_another_started(
    monkeypatch: pytest.MonkeyPatch, stopped: bool, limit: float
) -> None:
    """At once where it stands stopped, after its time where it does not answer."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setattr(zygote, "preload", lambda config: (MODULE,))
    launcher = ZygoteLauncher((MODULE,))
    try:
        first = launcher._living()
        if stopped:
            os.kill(first.process.pid, signal.SIGSTOP)
        else:
            monkeypatch.setattr(first, "ask", lambda request: None)
        warm = ZygoteProcess.warm
        monkeypatch.setattr(first, "warm", lambda modules, seconds: warm(first, modules, limit))
        launcher.warm(RunConfig())
        assert first.process.returncode == -signal.SIGKILL
        assert launcher._living() is not first and launcher._living().serves()
    finally:
        launcher.close()
