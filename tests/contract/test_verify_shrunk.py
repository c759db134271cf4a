"""A run that lost a node and went on with fewer ranks is judged by the ranks it had, if it was
allowed to shrink, and only then.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config.schema import SupervisionConfig
from ecrl_cli.failures.plan import plan
from ecrl_cli.records.events import Attempt
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, Verdict, render
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_spoilt_runs import found
from tests.runs import builder
from tests.runs.spoil import edit_json
from tests.runs.spoilt import attempts


def shrunk(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    on_node_loss: str,
    steps: tuple[int, ...] = (15,),
    harmless: int = -1,
) -> RunLayout:
    """Two ranks die after step 15; one goes on after the checkpoint of step 12, because the node of
    the other does not answer.

    `harmless`: the entry of the plan that misses its rank.
    """
    monkeypatch.setattr(builder, "world_size_after", lambda config, step: 1 if step else 2)
    config = builder.config_of("ovl", "kill", steps, 1)
    config = replace(config, supervision=SupervisionConfig(nodes=nodes, on_node_loss=on_node_loss))
    recorder = OfPresentRanks(folder / "run", config)
    recorder.harmless.add(harmless)
    run = recorder.build()
    assign_nodes(run, 1, ["a"], ["b"])
    return run


class OfPresentRanks(builder.RunBuilder):
    """Nothing strikes a rank that is not there."""

    def attempt(self, number: int) -> Attempt:
        self.harmless |= {entry.index for entry in plan(self.config) if number and entry.rank > 0}
        return super().attempt(number)


def assign_nodes(run: RunLayout, attempt: int, nodes: list[str], silent: list[str]) -> None:
    edit_json(run.attempt(attempt).launch, lambda order: order | {"nodes": nodes, "silent": silent})


def records(verdict: Verdict) -> str:
    return found(verdict, "records-consistent").status


def assert_kept(verdict: Verdict) -> None:
    """All promises, as far as a run alone can keep them."""
    assert {
        found.promise for found in verdict.findings if found.status not in (VALID, NOT_CHECKED)
    } == {"same-trajectory"}, render(verdict)
    assert found(verdict, "same-trajectory").status == UNKNOWN


def test_one_that_may_shrink_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = verify_run(shrunk(tmp_path, monkeypatch, 2, "shrink").root)
    assert_kept(verdict)


@pytest.mark.parametrize(("nodes", "on_node_loss"), [(2, "requeue"), (1, "shrink")])
def test_one_that_may_not_is_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, on_node_loss: str
) -> None:
    verdict = verify_run(shrunk(tmp_path, monkeypatch, nodes, on_node_loss).root)
    assert records(verdict) == INVALID, render(verdict)


def test_nobody_may_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = shrunk(tmp_path, monkeypatch, 2, "shrink")
    attempts(run, lambda a: a[1].update(world_size=4))
    edit_json(run.attempt(1).launch, lambda order: order | {"world_size": 4})
    assert records(verify_run(run.root)) == INVALID


@pytest.mark.parametrize(
    ("nodes", "silent"), [([], []), (["a"], []), ([], ["b"]), (["a", "b"], ["c"])]
)
def test_none_shrinks_without_a_node_that_did_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: list[str], silent: list[str]
) -> None:
    run = shrunk(tmp_path, monkeypatch, 2, "shrink")
    assign_nodes(run, 1, nodes, silent)
    assert records(verify_run(run.root)) == INVALID


def test_a_planned_failure_of_a_rank_that_went_with_its_node_is_excused_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = verify_run(shrunk(tmp_path, monkeypatch, 2, "shrink", (15, 20)).root)
    assert_kept(verdict)
    assert (
        "entry 1 did not fire: rank 1 had gone with a node, 1 rank did step 20"
        in found(verdict, "failures-once").evidence
    )


def test_one_that_was_there_is_owed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its step counts as done while it was there, or was done again when it had gone."""
    run = shrunk(tmp_path / "counts", monkeypatch, 2, "shrink", (12, 20))
    run.fired_entry(0).unlink()
    passed = shrunk(tmp_path / "again", monkeypatch, 2, "shrink", (13, 15), harmless=0)
    for verdict in (
        found(verify_run(run.root), "failures-once"),
        found(verify_run(passed.root), "failures-once"),
    ):
        assert verdict.status == INVALID and "entries [0] never fired" in verdict.message


def test_nothing_is_excused_where_no_node_may_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = found(
        verify_run(shrunk(tmp_path, monkeypatch, 2, "requeue", (15, 20)).root), "failures-once"
    )
    assert verdict.status == INVALID and "entries [1] never fired" in verdict.message
