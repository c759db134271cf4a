"""With fixed replicas the referee claims everything whatever the number of ranks: every loss, every
state, the end state; and can refuse it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ecrl_cli.config.elastic import owned
from ecrl_cli.data.order import epoch_order, ids_hash, window
from ecrl_cli.history.divergence import loss_divergence
from ecrl_cli.history.lineage import lineage, losses
from ecrl_cli.history.load import load
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_resized import assert_caught, said, size_of_attempt
from tests.contract.test_verify_spoilt_runs import found
from tests.runs.builder import SAMPLES, build_replicas, build_replicas_ref
from tests.runs.spoil import at_step, edit_json, edit_lines, line_at
from tests.runs.spoilt import INPUT, ONCE, RECORDS, TRAJECTORY, Spoil


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, undisturbed; and 3 -> 1 -> 4 under kills."""
    folder = tmp_path_factory.mktemp("sweep")
    build_replicas_ref(folder)
    build_replicas(folder)
    return folder


@pytest.fixture
def run(sweep: Path) -> RunLayout:
    return RunLayout(sweep / "replicas")


def test_every_size_is_held_against_any_other(sweep: Path) -> None:
    verdict = verify_run(sweep / "replicas")
    assert verdict.status == VALID and verdict.reference == "ref", render(verdict)
    assert (
        "equal to ref in every loss of 24 steps and in the final state"
        in found(verdict, TRAJECTORY).message
    )
    assert (
        "24 steps, 192 samples in the committed sequence: duplicates 0, missing 0, extra 0"
        in found(verdict, ONCE).message
    )
    assert "windows look the same cut for another number of ranks" in found(verdict, INPUT).message


def test_losses_are_by_replica_and_their_mean_is_one_number(sweep: Path) -> None:
    ours, theirs = (load(RunLayout(sweep / name)) for name in ("replicas", "ref"))
    told = [losses(records, lineage(records)) for records in (ours, theirs)]
    assert told[0] == told[1]
    assert all(list(by_replica) == [0, 1, 2, 3] for by_replica in told[0].values())
    assert loss_divergence(*told).auc == 0.0
    assert metrics_document(ours)["mean_loss"] == metrics_document(theirs)["mean_loss"]


@pytest.mark.parametrize(("bug_from", "first"), [(9, 9), (13, 13), (22, 22)])
def test_a_recovery_that_changes_the_trajectory_is_caught_at_every_size(
    sweep: Path, bug_from: int, first: int
) -> None:
    verdict = verify_run(build_replicas(sweep, "buggy", bug_from=bug_from).root)
    assert verdict.status == INVALID
    assert any(
        f"the first differing step is step {first} at the latest, component loss (replica 0" in text
        for text in said(verdict)
    ), render(verdict)


def one_loss_less(run: RunLayout) -> None:
    """Rank 2 of 3 owns two replicas and tells of one."""
    edit_lines(
        run.attempt(0).rank(2),
        lambda line: line | {"loss": line["loss"][:1]} if line["global_step"] == 3 else line,
    )


def plain_shard(run: RunLayout) -> None:
    """Rank 0 of 4 took a third of the window, as no replica is cut."""
    ids = window(epoch_order(7, 0, SAMPLES, 8), 2, 8)[:3]
    edit_lines(
        run.attempt(0).rank(0), at_step(3, sample_ids_hash=ids_hash(ids), sample_ids_count=3)
    )


def other_loss(run: RunLayout) -> None:
    edit_lines(run.attempt(4).rank(3), at_step(23, loss=[0.5]))


def next_replica(run: RunLayout) -> None:
    """At step 3 the first rank did what the second owns: one replica twice, one not at all."""
    second = line_at(run.attempt(0).rank(1), 3)
    edit_lines(
        run.attempt(0).rank(0),
        at_step(3, sample_ids_hash=second["sample_ids_hash"], inputs_hash=second["inputs_hash"]),
    )


SPOILT: dict[str, tuple[Spoil, str, str]] = {
    "a replica's loss is missing": (
        one_loss_less,
        ONCE,
        "step 3 rank 2 (attempt 0) logged the losses of 1 replica, it owns 2",
    ),
    "one number for two replicas": (
        lambda run: edit_lines(run.attempt(0).rank(2), at_step(3, loss=0.5)),
        ONCE,
        "step 3 rank 2 (attempt 0) logged the losses of 0 replicas, it owns 2",
    ),
    "a shard that is no replica": (plain_shard, ONCE, "consumed 3 samples, its shard has 2"),
    "a replica twice, another not at all": (
        next_replica,
        ONCE,
        "epoch 0: duplicates 2, missing 2, extra 0",
    ),
    "another loss on another number of ranks": (
        other_loss,
        TRAJECTORY,
        "the first differing step is step 23 at the latest, component loss (replica 3",
    ),
    "another loss in a replay": (
        lambda run: edit_lines(run.attempt(1).rank(2), at_step(7, loss=[0.5, 0.25])),
        TRAJECTORY,
        "step 7 replica 2: loss 0.5 in attempt 1",
    ),
    "another loss in a replay on fewer ranks": (
        lambda run: edit_lines(
            run.attempt(1).rank(2), at_step(7, rank=1, world_size=2, loss=[0.5, 0.25])
        ),
        TRAJECTORY,
        "step 7 replica 2: loss 0.5 in attempt 1",
    ),
    "an attempt of another world size": (
        size_of_attempt(2, 2),
        RECORDS,
        "attempt 2 had 2 ranks, the configuration says 1",
    ),
    "another end": (
        lambda run: edit_json(run.attempt(4).final, lambda final: final | {"rng_digest": "0" * 64}),
        TRAJECTORY,
        "the final rng differ",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_breaks_a_promise_is_caught(run: RunLayout, name: str) -> None:
    assert_caught(run, *SPOILT[name], INVALID)


def test_a_loss_that_the_reference_lacks_is_unknown(sweep: Path) -> None:
    edit_lines(
        RunLayout(sweep / "ref").attempt(0).rank(1),
        lambda line: None if line["global_step"] == 24 else line,
    )
    finding = found(verify_run(sweep / "replicas"), TRAJECTORY)
    assert (
        finding.status == UNKNOWN
        and "the reference ref is unknown: exactly-once - the log ends before step 24"
        in finding.message
    )


def test_ranks_that_come_apart_are_seen_although_there_are_buffers(sweep: Path) -> None:
    run = RunLayout(sweep / "ref")
    for rank in range(2):
        edit_lines(
            run.attempt(0).rank(rank),
            lambda line, rank=rank: (
                line | {"state_digest": f"{rank if line['global_step'] == 5 else 0:064x}"}
            ),
        )
    assert any(
        "step 5: ranks [0, 1] do not hold the same state" in text
        for text in said(verify_run(run.root))
    )


def test_the_replicas_are_the_contract() -> None:
    assert [list(owned(8, rank, 3)) for rank in range(3)] == [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert [list(owned(4, rank, 4)) for rank in range(4)] == [[0], [1], [2], [3]]
