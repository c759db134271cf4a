"""Ranks that outlive others, from one attempt to the next: real processes of the product under the
smallest possible supervisor.
"""

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
from ecrl_cli.history.lineage import losses_of
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
SKIP = {"recovery.name": "skip", "state_digests": True}
REPLICAS = {"elastic.replicas": 8}  # of 6 samples; 3 ranks have 2, 3 and 3 of them


def dies(rank: int, step: int, moment: str = "backward") -> dict[str, Any]:
    return {"rank": rank, "global_step": step, "moment": moment, "share": 0.5}


# Whoever dies where: the end must be the end of a run without a failure, bit for bit.
ROLLED_BACK: dict[str, list[dict[str, Any]]] = {
    "the first rank in forward, and again in backward": [dies(0, 1, "forward"), dies(0, 4)],
    "in the update, and in the capture of a checkpoint": [
        dies(2, 2, "optimizer"),
        dies(0, 3, "capture"),
    ],
    "between two steps, and after the last": [dies(1, 2, "boundary"), dies(0, 6, "boundary")],
    "two at once": [dies(0, 3), dies(2, 3)],
    "a newcomer before it joins": [dies(1, 3), dies(1, 1, "load")],
}
FINISHED: dict[str, dict[str, Any]] = {
    "one": {"plan": [dies(1, 3)]},
    "two at once": {"world_size": 4, "plan": [dies(0, 3), dies(2, 3)]},
    "down to one": {"world_size": 2, "plan": [dies(0, 3, "capture")]},
    "with spares": {"world_size": 4, **SPARES, "plan": [dies(0, 2), dies(2, 4, "optimizer")]},
}

# Whoever dies where, and however few are left: the end must be that of a run with the same replicas
# without a failure, bit for bit.
REDISTRIBUTED: dict[str, dict[str, Any]] = {
    "two ranks, the first in backward": {"world_size": 2, "plan": [dies(0, 3)]},
    "three ranks, one in forward, then the first in the update": {
        "plan": [dies(1, 1, "forward"), dies(0, 4, "optimizer")]
    },
    "three ranks, between two steps, and in the capture of a checkpoint": {
        "plan": [dies(2, 1, "boundary"), dies(0, 3, "capture")]
    },
    "four ranks, two in one step, then a third, down to one": {
        "world_size": 4,
        "plan": [dies(3, 3, "forward"), dies(0, 3), dies(1, 5)],
    },
}
DROPPED: dict[str, dict[str, Any]] = {
    "two at once, the first in forward": {
        "world_size": 4,
        "plan": [dies(0, 3, "forward"), dies(2, 3)],
    },
    "between two steps": {"world_size": 2, "plan": [dies(0, 2, "boundary")]},
}


def rig(
    root: Path, cases: dict[str, dict[str, Any]], timeout: float = 300
) -> dict[str, RunRecords]:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.contract.live_rig",
        str(root),
        json.dumps(cases),
    ]
    environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: load(RunLayout(root / name)) for name in cases}


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[str, RunRecords]]:
    cases = {"stock 3": {**BASE, "checkpoint.strategy": "none"}, "clean 3": {**BASE, **LOSSY}}
    cases |= {
        f"rolled back: {name}": {**BASE, **ROLLBACK, **SPARES, "plan": plan}
        for name, plan in ROLLED_BACK.items()
    }
    cases |= {f"finished: {name}": {**BASE, **LOSSY, **case} for name, case in FINISHED.items()}
    with TemporaryDirectory() as root:
        yield rig(Path(root), cases)


@pytest.fixture(scope="module")
def fewer() -> Iterator[dict[str, RunRecords]]:
    """Runs that go on with fewer ranks, or drop a mini-batch; "replicas": without a failure."""
    cases = {"replicas": {**BASE, **REPLICAS, "checkpoint.strategy": "none"}}
    cases |= {
        f"redistributed: {name}": {**BASE, **REPLICAS, "recovery.name": "redistribute", **case}
        for name, case in REDISTRIBUTED.items()
    }
    cases |= {f"dropped: {name}": {**BASE, **SKIP, **case} for name, case in DROPPED.items()}
    with TemporaryDirectory() as root:
        yield rig(Path(root), cases)


def end(run: RunRecords) -> Any:
    """Without the statistics of BatchNorm on ranks other than the first: stock DDP makes them equal
    only in the next forward pass.
    """
    assert run.final is not None, [a.attempt for a in run.attempt_logs]
    ranks = tuple(
        state if state.rank == 0 else replace(state, buffers="") for state in run.final.ranks
    )
    return replace(run.final, attempt=0, at=0.0, time=0.0, ranks=ranks)


def learned(run: RunRecords) -> dict[tuple[int, int], Any]:
    """By step and rank, what that rank saw and lost; of the last attempt that did it."""
    lines = [
        line
        for attempt in run.attempt_logs
        for each in attempt.ranks.values()
        for line in each.events
    ]
    return {
        (line.global_step, line.rank): (line.loss, line.sample_ids_hash, line.inputs_hash)
        for line in lines
    }


def said_in(run: RunRecords) -> list[list[survivor_records.SurvivorReport]]:
    """By attempt that was left, one of each survivor."""
    logs = [run.layout.attempt(attempt.attempt) for attempt in run.attempt_logs[:-1]]
    return [
        [
            read_journal(path, survivor_records.SurvivorReport).events[0]
            for path in sorted(each.folder.glob("recovery_rank*.jsonl"))
        ]
        for each in logs
    ]


def test_ranks_that_could_outlive_others_train_as_all_do(runs: dict[str, RunRecords]) -> None:
    stock, live = runs["stock 3"], runs["clean 3"]
    assert end(live) == end(stock)
    assert learned(live) == learned(stock)


@pytest.mark.parametrize("name", ROLLED_BACK)
def test_a_step_that_is_given_up_and_done_again_leaves_no_trace(
    runs: dict[str, RunRecords], name: str
) -> None:
    run = runs[f"rolled back: {name}"]
    assert len(run.attempt_logs) > 1
    assert end(run) == end(runs["stock 3"])
    known = learned(runs["stock 3"])
    assert {key: known[key] for key in learned(run)} == learned(run)
    check_survivors(run)


@pytest.mark.parametrize("name", REDISTRIBUTED)
def test_survivors_that_share_the_replicas_of_the_dead_leave_no_trace(
    fewer: dict[str, RunRecords], name: str
) -> None:
    run, undisturbed = fewer[f"redistributed: {name}"], fewer["replicas"]
    assert len(run.attempt_logs) > 1
    assert run.final is not None and undisturbed.final is not None
    assert replace(end(run), ranks=()) == replace(end(undisturbed), ranks=())
    ends = {
        replace(state, rank=0) for final in (run.final, undisturbed.final) for state in final.ranks
    }
    assert len(ends) == 1, "every rank of both"
    known, done = by_replica(undisturbed), by_replica(run)
    assert {key: known[key] for key in done} == done
    assert len(said_in(run)[-1]) < 4 and not any(
        each.redone for said in said_in(run) for each in said
    )
    check_survivors(run)


def by_replica(run: RunRecords) -> dict[tuple[int, int], float]:
    """By step and replica, its loss; of the last attempt that did it."""
    lines = [
        line
        for attempt in run.attempt_logs
        for each in attempt.ranks.values()
        for line in each.events
    ]
    return {
        (line.global_step, replica): loss
        for line in lines
        for replica, loss in losses_of(line, REPLICAS["elastic.replicas"]).items()
    }


@pytest.mark.parametrize("name", DROPPED)
def test_a_mini_batch_that_is_dropped_changes_nothing_and_all_its_samples_are_on_record(
    fewer: dict[str, RunRecords], name: str
) -> None:
    run, dropped = fewer[f"dropped: {name}"], 3
    first, said = run.attempt_logs[0], said_in(run)[0]
    state = {
        line.state_digest
        for lines in first.ranks.values()
        for line in lines.events
        if line.global_step == dropped - 1
    }
    assert (
        {each.global_step for each in said} == {dropped}
        and {each.state_digest for each in said} == {each.state_before for each in said} == state
        and len(state) == 1
    )
    steps = {
        line.global_step
        for attempt in run.attempt_logs
        for lines in attempt.ranks.values()
        for line in lines.events
    }
    assert steps == set(range(1, STEPS + 1)) - {dropped} and end(run).global_step == STEPS
    due = window(
        epoch_order(1337, 0, run.dataset.size if run.dataset else 0, BATCH), dropped - 1, BATCH
    )
    dead = sorted({entry["rank"] for entry in DROPPED[name]["plan"]})
    for each in said:
        (line,) = read_journal(run.layout.attempt(0).lost_samples(each.rank), LostSamples).events
        assert (line.global_step, line.samples, line.ranks, line.cause) == (
            dropped,
            tuple(map(int, due)),
            tuple(dead),
            "skip",
        )
        assert (line.layers,) == each.layers
    check_survivors(run)


@pytest.mark.parametrize("name", FINISHED)
def test_survivors_finish_the_step_alike_and_go_on(runs: dict[str, RunRecords], name: str) -> None:
    run = runs[f"finished: {name}"]
    assert len(run.attempt_logs) > 1
    assert end(run).global_step == STEPS
    check_survivors(run)


def check_survivors(run: RunRecords) -> None:
    """All left behind the same step, with the same state, and the next attempt began there; what
    was saved is there once per step.
    """
    for number, said in enumerate(said_in(run)):
        assert said
        assert (
            len({(each.global_step, each.alive, each.state_digest, each.layers) for each in said})
            == 1
        )
        assert (
            len({tuple(replace(redone, seconds=0.0) for redone in each.redone) for each in said})
            == 1
        )
        order = run.logs(number + 1).order
        assert order is not None
        assert order.resume_step == said[0].global_step
    saved = [
        line.global_step
        for attempt in run.attempt_logs
        for line in attempt.checkpoints.events
        if line.event == "committed"
    ]
    assert saved == [3, 6]


@pytest.mark.parametrize("name", ["one", "two at once"])
def test_the_lost_samples_record_names_what_the_dead_had_in_the_step(
    runs: dict[str, RunRecords], name: str
) -> None:
    run = runs[f"finished: {name}"]
    logs, said = run.layout.attempt(0), said_in(run)[0]
    ranks, dead = (
        FINISHED[name].get("world_size", 3),
        sorted(entry["rank"] for entry in FINISHED[name]["plan"]),
    )
    due = window(epoch_order(1337, 0, run.dataset.size if run.dataset else 0, BATCH), 2, BATCH)
    for each in said:
        lines = read_journal(logs.lost_samples(each.rank), LostSamples).events
        assert {line.ranks: line.samples for line in lines} == {
            (rank,): tuple(map(int, shard(due, rank, ranks))) for rank in dead
        }
        assert {(line.global_step, line.effect, line.cause) for line in lines} == {
            (3, "lost", "lossy_forward")
        }
        assert all(
            line.layers == tuple(layer for bucket in each.layers for layer in bucket)
            for line in lines
        )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_random_deaths_leave_no_trace(tmp_path: Path) -> None:
    draw, cases = random.Random(11), {"stock": {**BASE, "checkpoint.strategy": "none"}}
    for number in range(40):
        moments = ("forward", "backward", "optimizer", "boundary", "capture")
        plan = [
            dies(draw.randrange(3), draw.randint(1, STEPS), draw.choice(moments)) for _ in range(2)
        ]
        strategy = draw.choice(["blocking", "none"])
        cases[f"case{number}"] = {
            **BASE,
            **ROLLBACK,
            **SPARES,
            "checkpoint.strategy": strategy,
            "plan": plan,
        }
    runs = rig(tmp_path, cases, 890)
    for number in range(40):
        assert end(runs[f"case{number}"]) == end(runs["stock"]), cases[f"case{number}"]
