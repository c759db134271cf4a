"""Bit for bit: every arm of one seed ends where the undisturbed run ends, and the checker says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import Ecrl
from tests.e2e.runs import end_state, last_losses, manifest, metrics, supervisor, tiny

ARMS = "variant=ref,blk,ovl"


def check_arms(ecrl: Ecrl, sweep: Path, ranks: int, deaths: int = 2) -> None:
    runs = manifest(sweep)
    assert set(runs) == {"ref", "blk", "ovl"}
    for arm in ("blk", "ovl"):
        assert end_state(runs[arm]) == end_state(runs["ref"]), f"{arm} ended elsewhere"
        assert all(last_losses(runs[arm], r) == last_losses(runs["ref"], r) for r in range(ranks))
        assert metrics(runs[arm])["restarts"] == deaths
        assert metrics(runs[arm])["replayed_steps"] > 0
        counts = metrics(runs[arm])["checkpoints"]
        assert counts["submitted"] == counts["committed"] + counts["failed"] + counts["lost"] > 0
    said = ecrl("verify", str(sweep)).stdout
    assert said.count("valid") >= 3 and "invalid" not in said


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_digits_with_kills_off_the_boundary(ecrl: Ecrl, tmp_path: Path, world_size: int) -> None:
    ecrl("-m", *tiny(f"world_size={world_size}"), ARMS, "run_dir=sweep")
    check_arms(ecrl, tmp_path / "sweep", world_size)


def test_torchrun_and_zygote_give_the_same_bits(ecrl: Ecrl, tmp_path: Path) -> None:
    for launcher in ("torchrun", "zygote"):
        ecrl("train", *tiny(f"supervision.launcher={launcher}"), "variant=blk", f"run_dir={launcher}")
    assert end_state(tmp_path / "torchrun") == end_state(tmp_path / "zygote")
    deaths = [a for a in supervisor(tmp_path / "torchrun")["attempts"] if a["outcome"] == "died"]
    assert [(a["rank"], a["signal"], a["exit_code"]) for a in deaths] == [(1, 9, None)] * 2


def test_the_published_protocol_exits_with_137_after_a_flush(ecrl: Ecrl, tmp_path: Path) -> None:
    published = tiny("failure=exit", "failure.steps=[6,15]", "failure.rank=", "supervision.launcher=torchrun")
    ecrl("train", *published, "variant=ovl", "run_dir=run")
    deaths = [a for a in supervisor(tmp_path / "run")["attempts"] if a["outcome"] == "died"]
    assert [(a["rank"], a["signal"], a["exit_code"]) for a in deaths] == [(0, None, 137)] * 2
    assert metrics(tmp_path / "run")["checkpoints"]["lost"] == 0


FAKE = ["dataset=fake", "dataset.size=96", "model=resnet18"]
REAL = ["+suite=cifar10-r18-late", "scale=smoke", "dataset.checksum=none", f"dataset.root={os.environ.get('ECRL_TEST_DATA')}"]


@pytest.mark.parametrize("world_size", [3, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_resnet18_with_a_kill_off_the_boundary(ecrl: Ecrl, tmp_path: Path, world_size: int) -> None:
    """On real CIFAR-10 images where ECRL_TEST_DATA names their folder, else on fake ones."""
    data = REAL if "ECRL_TEST_DATA" in os.environ else FAKE
    shape = ["global_batch=12", f"world_size={world_size}", "target_steps=8", "supervision.launcher=zygote"]
    failures = ["checkpoint.every=3", "failure=kill", "failure.steps=[4,7]", "failure.rank=1"]
    ecrl("-m", *data, *shape, *failures, ARMS, "run_dir=sweep")
    check_arms(ecrl, tmp_path / "sweep", world_size)


def test_dropout_and_adamw_need_every_ranks_own_rng(ecrl: Ecrl, tmp_path: Path) -> None:
    vit = tiny("model=vit", "model.width=32", "model.depth=2", "model.dropout=0.2", "optimizer=adamw", "world_size=3")
    ecrl("-m", *vit, ARMS, "run_dir=sweep")
    check_arms(ecrl, tmp_path / "sweep", 3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_with_its_scaler(ecrl: Ecrl, tmp_path: Path, precision: str) -> None:
    ecrl("-m", *tiny(f"precision={precision}", "world_size=2"), ARMS, "run_dir=sweep")
    check_arms(ecrl, tmp_path / "sweep", 2)


@pytest.mark.parametrize(
    "store",
    [
        ("checkpoint.layout=single", "write_mode=atomic_nodirsync"),
        ("checkpoint.layout=single", "checkpoint.format=torch"),
        ("write_mode=unsafe",),
    ],
)
def test_other_ways_to_store(ecrl: Ecrl, tmp_path: Path, store: tuple[str, ...]) -> None:
    ecrl("-m", *tiny(*store, "world_size=2"), ARMS, "run_dir=sweep")
    check_arms(ecrl, tmp_path / "sweep", 2)
