"""A zygote with a network of its own serves one attempt; what is warmed for the next one is the one
that serves it.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.linux import processes
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.supervision.launch import zygote
from ecrl_cli.supervision.launch.launcher import LaunchSpec
from ecrl_cli.supervision.launch.zygote import ZygoteLauncher


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
