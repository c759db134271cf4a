"""A run that changes its number of ranks, for real: 2 -> 1 -> 2, killed in between, exact wherever
plain DDP promises it.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.format.train_document import tensor_digests
from ecrl_cli.history.load import load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.disk_state import on_disk
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.conftest import Ecrl
from tests.contract.test_verify_spoilt_runs import found
from tests.e2e.runs import (
    end_state,
    last_losses,
    manifest,
    metrics,
    records_naming,
    supervisor,
    tiny,
)
from tests.in_process import ecrl_in_process
from tests.runs.spoil import at_step, edit_lines

SCHEDULE = "elastic.schedule={14: 1, 20: 2}"
# One kill where two ranks work, one where one does; neither is on a boundary, and neither is a
# change.
KILLS = tiny("world_size=2", "failure.steps=[9,17]", "failure.rank=0", SCHEDULE)
UNSTRUCK_KEYS = ("failure=", "failure.steps=", "failure.rank=")
UNSTRUCK = tiny("world_size=2", *UNSTRUCK_KEYS, SCHEDULE)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A constant reference; the schedule under kills, blocking and overlapped; the schedule
    undisturbed.
    """
    folder = tmp_path_factory.mktemp("resizing")
    ecrl_in_process(folder, "-m", *KILLS, "variant=ref,blk,ovl", "run_dir=sweep")
    ecrl_in_process(folder, "-m", *UNSTRUCK, "variant=elastic", "run_dir=sweep")
    return folder / "sweep"


@pytest.mark.parametrize("arm", ["blk", "ovl"])
def test_each_attempt_has_its_size_and_only_deaths_are_restarts(sweep: Path, arm: str) -> None:
    record = supervisor(manifest(sweep)[arm])
    outcomes = [(a["outcome"], a["world_size"], a["last_step"]) for a in record["attempts"]]
    assert outcomes == [
        ("died", 2, 9),
        ("resized", 2, 14),
        ("died", 1, 17),
        ("resized", 1, 20),
        ("completed", 2, 24),
    ]
    assert [a["resumed_from_step"] for a in record["attempts"]] == [0, 6, 14, 14, 20]
    assert record["restarts"] == metrics(manifest(sweep)[arm])["restarts"] == 2
    launches = {
        a["outcome"]: after["phases"]
        for a, after in zip(record["attempts"], record["attempts"][1:], strict=False)
    }
    assert (
        launches["resized"]["launch"] > 0
        and launches["resized"]["detect"] == 0 < launches["died"]["detect"]
    )


@pytest.mark.parametrize("arm", ["blk", "ovl"])
def test_under_kills_it_ends_where_the_same_sizes_end_undisturbed(sweep: Path, arm: str) -> None:
    runs = manifest(sweep)
    assert end_state(runs[arm]) == end_state(runs["elastic"])
    assert all(
        last_losses(runs[arm], rank) == last_losses(runs["elastic"], rank) for rank in (0, 1)
    )
    assert end_state(runs[arm]) != end_state(runs["ref"])
    verdict = verify_run(runs[arm])
    assert verdict.status == VALID and verdict.reference == runs["elastic"].name, render(verdict)
    assert (
        "24 steps, 1152 samples in the committed sequence: duplicates 0, missing 0, extra 0"
        in found(verdict, "exactly-once").message
    )
    assert (
        "equal to" in found(verdict, "same-trajectory").message
        and "and in the final state" in found(verdict, "same-trajectory").message
    )
    assert "3 checkpoints vouch for the lines" in found(verdict, "records-consistent").message
    # 2 + 1 + 1 + 2 ranks resumed
    assert "6 times a rank held" in found(verdict, "state-restored").message
    assert records_naming(runs[arm], sweep.parent) == []


def test_against_the_constant_size_it_is_equal_up_to_the_change_and_says_how_far_it_comes_apart(
    sweep: Path,
) -> None:
    runs = manifest(sweep)
    verdict = verify_run(runs["elastic"])
    finding = found(verdict, "same-trajectory")
    assert verdict.status == VALID and verdict.reference == runs["ref"].name, render(verdict)
    assert (
        "in every loss of the 14 steps with as many ranks; not claimed after them"
        in finding.message
    )
    assert "of the final state differ: parameters, buffers, optimizer" in "\n".join(
        finding.evidence
    )
    assert (
        "6 windows look the same cut for another number of ranks"
        in found(verdict, "same-input").message
    )


def test_the_line_of_a_rank_that_left_is_still_vouched_for(sweep: Path, tmp_path: Path) -> None:
    """Alone, and after every checkpoint of its own time is gone: only the chain that was carried
    along knows.
    """
    run = tmp_path / "alone"
    manifest(sweep)["ovl"].rename(run)
    try:
        assert (
            "not proven: no undisturbed run to compare with"
            in ecrl_in_process(tmp_path, "verify", str(run), check=3).stdout
        )
        log = RunLayout(run).attempt(1).rank(1)
        before = log.read_text()
        edit_lines(log, at_step(12, loss=0.5))
        assert verify_run(run).status == INVALID
        log.write_text(before)
    finally:
        run.rename(manifest(sweep)["ovl"])


def test_a_rank_that_stayed_keeps_its_streams_and_one_that_comes_back_begins_new_ones(
    sweep: Path,
) -> None:
    """Nothing here draws from them, so that a stream that was kept is that of the run that never
    changed.
    """
    runs = manifest(sweep)
    ref, elastic = (
        {
            n: d
            for n, d in digests(runs[arm]).items()
            if n.startswith("rng.") and not n.endswith("cuda")
        }
        for arm in ("ref", "elastic")
    )
    assert (
        {name for name in ref if ref[name] == elastic[name]}
        == {name for name in ref if ".rank0." in name}
        != set()
    )
    assert set(ref) == set(elastic)


def digests(run: Path) -> dict[str, str]:
    """Of every tensor in the checkpoint at the target."""
    stored = {c.step: c.report.manifest for c in on_disk(load(RunLayout(run)), contents=False)}[24]
    assert stored is not None
    return tensor_digests(stored)


@pytest.mark.slow
def test_random_failures_and_changes_of_size_together(ecrl: Ecrl, tmp_path: Path) -> None:
    """Alone its trajectory is not proven, and that is all; the reference trained for it changes
    size at the same steps.
    """
    drawn = tiny(
        "world_size=2",
        "failure=mtbf",
        "failure.steps=",
        "failure.rank=",
        "failure.mtbf_steps=6",
        SCHEDULE,
    )
    ecrl("train", *drawn, "variant=ovl", "run_dir=run", "seed=5")
    assert metrics(tmp_path / "run")["restarts"] >= 2
    verdict = verify_run(tmp_path / "run")
    assert {
        f.promise: f.status for f in verdict.findings if f.status not in (VALID, NOT_CHECKED)
    } == {"same-trajectory": UNKNOWN}, render(verdict)
    assert found(verdict, "same-trajectory").message.startswith(
        "same-trajectory - not proven: no undisturbed run to compare with"
    )
    said = ecrl("verify", "run", "--with-reference").stdout
    assert "run: valid (" in said and "in every loss of 24 steps and in the final state" in said, (
        said
    )


EVERY_CHANGE = "elastic.schedule={5: 2, 9: 1, 13: 4, 18: 3}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("failure", ["mtbf", "kill"])
def test_every_change_of_size_with_failures_at_random_steps_between(
    ecrl: Ecrl, tmp_path: Path, seed: int, failure: str
) -> None:
    """4 -> 2 -> 1 -> 4 -> 3: what is consumed is exact at every size, and under failures it ends
    where the same sizes end undisturbed.
    """
    steps = sorted(random.Random(seed).sample([step for step in range(1, 24) if step % 6], 3))
    struck = {
        "mtbf": ["failure.steps=", "failure.mtbf_steps=6"],
        "kill": [f"failure.steps=[{','.join(map(str, steps))}]"],
    }
    keys = ("world_size=4", f"seed={seed}", EVERY_CHANGE)
    ecrl("train", *tiny(*keys, *UNSTRUCK_KEYS), "variant=elastic", "run_dir=sweep/unstruck")
    ecrl(
        "train",
        *tiny(*keys, f"failure={failure}", *struck[failure], "failure.rank="),
        "variant=ovl",
        "run_dir=sweep/struck",
    )
    verdict = verify_run(tmp_path / "sweep" / "struck")
    assert verdict.status == VALID and verdict.reference == "unstruck", render(verdict)
    assert (
        "24 steps, 1152 samples in the committed sequence: duplicates 0, missing 0, extra 0"
        in found(verdict, "exactly-once").message
    )
    assert "and in the final state" in found(verdict, "same-trajectory").message
    assert metrics(tmp_path / "sweep" / "struck")["restarts"] >= 1
    assert sorted(
        {a["world_size"] for a in supervisor(tmp_path / "sweep" / "struck")["attempts"]}
    ) == [1, 2, 3, 4]
