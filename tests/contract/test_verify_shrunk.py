"""A run that lost a node and went on with fewer ranks is judged by the ranks it had, if it was allowed to shrink, and only then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config.schema import SupervisionConfig
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.judge import judge
from ecrl_cli.verify.verdict import INVALID, VALID, Verdict, render
from tests.runs import builder
from tests.runs.spoil import edit_json
from tests.runs.spoilt import attempts


def shrunk(folder: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, on_node_loss: str) -> RunLayout:
    """Two ranks die behind step 15; one goes on behind the checkpoint of step 12."""
    monkeypatch.setattr(builder, "world_size_after", lambda config, step: 1 if step else 2)
    config = builder.config_of("ovl", "kill", (15,), 1)
    return builder.RunBuilder(folder / "run", replace(config, supervision=SupervisionConfig(nodes=nodes, on_node_loss=on_node_loss))).build()


def records(verdict: Verdict) -> str:
    return next(finding.status for finding in verdict.findings if finding.promise == "records-consistent")


def test_one_that_may_shrink_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = judge(shrunk(tmp_path, monkeypatch, 2, "shrink").root)
    assert verdict.status == VALID, render(verdict)


@pytest.mark.parametrize(("nodes", "on_node_loss"), [(2, "requeue"), (1, "shrink")])
def test_one_that_may_not_is_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, on_node_loss: str) -> None:
    verdict = judge(shrunk(tmp_path, monkeypatch, nodes, on_node_loss).root)
    assert records(verdict) == INVALID, render(verdict)


def test_nobody_may_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = shrunk(tmp_path, monkeypatch, 2, "shrink")
    attempts(run, lambda a: a[1].update(world_size=4))
    edit_json(run.attempt(1).launch, lambda order: order | {"world_size": 4})
    assert records(judge(run.root)) == INVALID
