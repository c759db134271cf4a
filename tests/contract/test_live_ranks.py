"""Ranks that outlive others, from one attempt to the next: real processes of the product under the smallest possible supervisor."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ecrl_cli.data.order import epoch_order, shard, window
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.records import survivor_records
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.survivor_records import LostSamples

STEPS, BATCH = 6, 48
BASE: dict[str, Any] = {
    "model.width": 8,
    "model.depth": 2,
    "model.dropout": 0.3,
    "global_batch": BATCH,
    "target_steps": STEPS,
    "checkpoint.every": 3,
    "device": "cpu",
    "world_size": 3,
}
LOSSY, ROLLBACK = {"recovery.name": "lossy_forward"}, {"recovery.name": "immediate_rollback"}
SPARES = {"supervision.spares": 2}


def dies(rank: int, step: int, moment: str = "backward") -> dict[str, Any]:
    return {"rank": rank, "global_step": step, "moment": moment, "share": 0.5}


# Whoever dies where: the end must be the end of a run without a failure, bit for bit.
ROLLED_BACK: dict[str, list[dict[str, Any]]] = {
    "the first rank in forward, and again in backward": [dies(0, 1, "forward"), dies(0, 4)],
    "in the update, and in the capture of a checkpoint": [dies(2, 2, "optimizer"), dies(0, 3, "capture")],
    "between two steps, and behind the last": [dies(1, 2, "boundary"), dies(0, 6, "boundary")],
    "two at once": [dies(0, 3), dies(2, 3)],
    "a newcomer before it joins": [dies(1, 3), dies(1, 1, "load")],
}
FINISHED: dict[str, dict[str, Any]] = {
    "one": {"plan": [dies(1, 3)]},
    "the first": {"plan": [dies(0, 3)]},
    "two at once": {"world_size": 4, "plan": [dies(0, 3), dies(2, 3)]},
    "down to one": {"world_size": 2, "plan": [dies(0, 3, "capture")]},
    "with spares": {"world_size": 4, **SPARES, "plan": [dies(0, 2), dies(2, 4, "optimizer")]},
}


def rig(root: Path, cases: dict[str, dict[str, Any]], timeout: float = 170) -> dict[str, RunRecords]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.contract.live_rig", str(root), json.dumps(cases)]
    environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: load(RunLayout(root / name)) for name in cases}


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[str, RunRecords]]:
    cases = {f"stock {ranks}": {**BASE, "world_size": ranks, "checkpoint.strategy": "none"} for ranks in (2, 3, 4)}
    cases |= {f"clean {ranks}": {**BASE, "world_size": ranks, **LOSSY} for ranks in (2, 3, 4)}
    cases |= {f"rolled back: {name}": {**BASE, **ROLLBACK, **SPARES, "plan": plan} for name, plan in ROLLED_BACK.items()}
    cases |= {f"finished: {name}": {**BASE, **LOSSY, **case} for name, case in FINISHED.items()}
    with TemporaryDirectory() as root:
        yield rig(Path(root), cases)


def end(run: RunRecords) -> Any:
    """Without the statistics of BatchNorm on ranks other than the first: stock DDP makes them equal only in the next forward pass."""
    assert run.final is not None, [a.attempt for a in run.attempt_logs]
    ranks = tuple(state if state.rank == 0 else replace(state, buffers="") for state in run.final.ranks)
    return replace(run.final, attempt=0, at=0.0, time=0.0, ranks=ranks)


def learned(run: RunRecords) -> dict[tuple[int, int], Any]:
    """By step and rank, what that rank saw and lost; of the last attempt that did it."""
    lines = [line for attempt in run.attempt_logs for each in attempt.ranks.values() for line in each.events]
    return {(line.global_step, line.rank): (line.loss, line.sample_ids_hash, line.inputs_hash) for line in lines}


def said_in(run: RunRecords) -> list[list[survivor_records.SurvivorReport]]:
    """By attempt that was left, one of each survivor."""
    logs = [run.layout.attempt(attempt.attempt) for attempt in run.attempt_logs[:-1]]
    return [
        [read_journal(path, survivor_records.SurvivorReport).events[0] for path in sorted(each.folder.glob("recovery_rank*.jsonl"))] for each in logs
    ]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_that_could_outlive_others_train_as_all_do(runs: dict[str, RunRecords], ranks: int) -> None:
    stock, live = runs[f"stock {ranks}"], runs[f"clean {ranks}"]
    assert end(live) == end(stock)
    assert learned(live) == learned(stock)


@pytest.mark.parametrize("name", ROLLED_BACK)
def test_a_step_that_is_given_up_and_done_again_leaves_no_trace(runs: dict[str, RunRecords], name: str) -> None:
    run = runs[f"rolled back: {name}"]
    assert len(run.attempt_logs) > 1
    assert end(run) == end(runs["stock 3"])
    known = learned(runs["stock 3"])
    assert {key: known[key] for key in learned(run)} == learned(run)
    check_survivors(run)


@pytest.mark.parametrize("name", FINISHED)
def test_survivors_finish_the_step_alike_and_go_on(runs: dict[str, RunRecords], name: str) -> None:
    run = runs[f"finished: {name}"]
    assert len(run.attempt_logs) > 1
    assert end(run).global_step == STEPS
    check_survivors(run)


def check_survivors(run: RunRecords) -> None:
    """All left behind the same step, with the same state, and the next attempt began there; what was saved is there once per step."""
    for number, said in enumerate(said_in(run)):
        assert said
        assert len({(each.global_step, each.alive, each.state_digest, each.layers) for each in said}) == 1
        assert len({tuple(replace(redone, seconds=0.0) for redone in each.redone) for each in said}) == 1
        order = run.logs(number + 1).order
        assert order is not None
        assert order.resume_step == said[0].global_step
    saved = [line.global_step for attempt in run.attempt_logs for line in attempt.checkpoints.events if line.event == "committed"]
    assert saved == [3, 6]


@pytest.mark.parametrize("name", ["one", "the first", "two at once"])
def test_the_lost_samples_record_names_what_the_dead_had_in_the_step(runs: dict[str, RunRecords], name: str) -> None:
    run = runs[f"finished: {name}"]
    logs, said = run.layout.attempt(0), said_in(run)[0]
    ranks, dead = FINISHED[name].get("world_size", 3), sorted(entry["rank"] for entry in FINISHED[name]["plan"])
    due = window(epoch_order(1337, 0, run.dataset.size if run.dataset else 0, BATCH), 2, BATCH)
    for each in said:
        lines = read_journal(logs.lost_samples(each.rank), LostSamples).events
        assert {line.ranks: line.samples for line in lines} == {(rank,): tuple(map(int, shard(due, rank, ranks))) for rank in dead}
        assert {(line.global_step, line.effect, line.cause) for line in lines} == {(3, "lost", "lossy_forward")}
        assert all(line.layers == tuple(layer for bucket in each.layers for layer in bucket) for line in lines)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_random_deaths_leave_no_trace(tmp_path: Path) -> None:
    draw, cases = random.Random(11), {"stock": {**BASE, "checkpoint.strategy": "none"}}
    for number in range(40):
        moments = ("forward", "backward", "optimizer", "boundary", "capture")
        plan = [dies(draw.randrange(3), draw.randint(1, STEPS), draw.choice(moments)) for _ in range(2)]
        strategy = draw.choice(["blocking", "none"])
        cases[f"case{number}"] = {**BASE, **ROLLBACK, **SPARES, "checkpoint.strategy": strategy, "plan": plan}
    runs = rig(tmp_path, cases, 890)
    for number in range(40):
        assert end(runs[f"case{number}"]) == end(runs["stock"]), cases[f"case{number}"]
