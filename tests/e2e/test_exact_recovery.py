"""Bit for bit: every arm of one seed ends where the undisturbed run ends, and the checker says
so.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from ecrl_cli.verify.reference import References
from ecrl_cli.verify.verdict import VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.conftest import Ecrl
from tests.e2e.runs import end_state, last_losses, metrics, supervisor, tiny
from tests.in_process import ecrl_in_process

ARMS = "variant=ref,blk,ovl"
# Which suites each arm takes part in: what belongs to one strategy shows in two suites, and a run
# takes seconds.
TAKES_PART = {
    "ref": ("two", "four", "bf16", "fp16", "dropout"),
    "blk": ("two", "fp16"),
    "ovl": ("two", "four", "bf16", "dropout"),
}
# By suite: what is not as in `tiny`. A way to store goes with each: none of them may matter, and a
# run of its own for each would only take longer.
SUITES = {
    "two": {"world_size": 2},
    "four": {"world_size": 4, "write_mode": "unsafe"},
    "dropout": {
        "world_size": 3,
        "model": "vit",
        "model.width": 32,
        "model.depth": 2,
        "model.dropout": 0.2,
        "optimizer": "adamw",
        "write_mode": "atomic_nodirsync",
    },
    "bf16": {
        "world_size": 2,
        "precision": "bf16",
        "checkpoint.layout": "single",
        "write_mode": "atomic_nodirsync",
    },
    "fp16": {
        "world_size": 2,
        "precision": "fp16",
        "checkpoint.layout": "single",
        "checkpoint.format": "torch",
    },
}
GROUPS = ("model", "optimizer", "write_mode")
pytestmark = pytest.mark.timeout(1800)


def write_suite(folder: Path, name: str, keys: dict[str, object]) -> None:
    """As a user's own suite."""
    folder.mkdir(parents=True, exist_ok=True)
    defaults = [
        *({f"override /{key}": value} for key, value in keys.items() if key in GROUPS),
        "_self_",
    ]
    document: dict[str, object] = {"defaults": defaults, "suite_name": name}
    for key, value in keys.items():
        if key not in GROUPS:
            group, _, leaf = key.rpartition(".")
            place = document.setdefault(group, {}) if group else document
            assert isinstance(place, dict)
            place[leaf] = value
    (folder / f"{name}.yaml").write_text("# @package _global_\n" + json.dumps(document))


def runs_of(sweep: Path) -> dict[tuple[str, str], Path]:
    """The run directories by suite and variant."""
    with (sweep / "manifest.csv").open() as file:
        return {(row["suite"], row["variant"]): sweep / row["run"] for row in csv.DictReader(file)}


def check_arms(arms: dict[str, Path], ranks: int, deaths: int) -> None:
    assert "ref" in arms and len(arms) > 1
    for arm in sorted(arms.keys() - {"ref"}):
        assert end_state(arms[arm]) == end_state(arms["ref"]), f"{arm} ended elsewhere"
        assert all(last_losses(arms[arm], r) == last_losses(arms["ref"], r) for r in range(ranks))
        assert metrics(arms[arm])["restarts"] == deaths
        assert metrics(arms[arm])["replayed_steps"] > 0
        counts = metrics(arms[arm])["checkpoints"]
        assert counts["submitted"] == counts["committed"] + counts["failed"] + counts["lost"] > 0
    known = References()
    for arm, run in arms.items():
        verdict = verify_run(run, None if arm == "ref" else arms["ref"], known)
        assert verdict.status == VALID, render(verdict)
        assert any(f.promise == "records-sealed" and f.status == VALID for f in verdict.findings), (
            render(verdict)
        )


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Two kills off the boundary in each suite."""
    folder = tmp_path_factory.mktemp("exact")
    for name, keys in SUITES.items():
        write_suite(folder / "conf" / "suite", name, keys)
    common = [key for key in tiny() if not key.startswith("model")]
    for arm, suites in TAKES_PART.items():
        for keys in (("model=small_cnn", "model.width=8"), ()):
            named = ",".join(suite for suite in suites if ("model" in SUITES[suite]) != bool(keys))
            if named:
                ecrl_in_process(
                    folder,
                    "-m",
                    "--config-dir",
                    "conf",
                    *common,
                    *keys,
                    f"+suite={named}",
                    f"variant={arm}",
                    "run_dir=sweep",
                )
    return runs_of(folder / "sweep")


@pytest.mark.parametrize("suite", SUITES)
def test_kills_off_the_boundary_change_nothing(
    sweep: dict[tuple[str, str], Path], suite: str
) -> None:
    """Whatever the number of ranks, with dropout and AdamW, which need every rank's own generators,
    in lower precision with its scaler, and however a checkpoint is stored.
    """
    arms = {variant: run for (name, variant), run in sweep.items() if name == suite}
    assert set(arms) == {arm for arm, suites in TAKES_PART.items() if suite in suites}
    check_arms(arms, int(str(SUITES[suite]["world_size"])), 2)


def test_torchrun_gives_the_same_bits_and_a_planned_exit_flushes_first(
    ecrl: Ecrl, tmp_path: Path, sweep: dict[tuple[str, str], Path]
) -> None:
    """A kill before anything is saved; then the published protocol: rank 0 exits with 137 after a
    step and a flush.
    """
    entries = [
        "failure=listed",
        "failure.entries=[kill@4:1,exit@15]",
        "failure.steps=",
        "failure.rank=",
    ]
    ecrl(
        "train",
        *tiny(*entries, "world_size=2", "supervision.launcher=torchrun"),
        "variant=ovl",
        "run_dir=run",
    )
    assert end_state(tmp_path / "run") == end_state(sweep["two", "ref"])
    attempts = supervisor(tmp_path / "run")["attempts"]
    assert [(a["outcome"], a["rank"], a["signal"], a["exit_code"]) for a in attempts[:2]] == [
        ("died", 1, 9, None),
        ("died", 0, None, 137),
    ]
    assert (
        attempts[2]["resumed_from_step"] == 12
        and metrics(tmp_path / "run")["checkpoints"]["lost"] == 0
    )
    verdict = verify_run(tmp_path / "run", sweep["two", "ref"])
    assert verdict.status == VALID, render(verdict)


FAKE = ["dataset=fake", "dataset.size=96", "model=resnet18"]
REAL = [
    "+suite=cifar10-r18-late",
    "scale=smoke",
    "dataset.checksum=none",
    f"dataset.root={os.environ.get('ECRL_TEST_DATA')}",
]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_resnet18_with_a_kill_off_the_boundary(ecrl: Ecrl, tmp_path: Path, world_size: int) -> None:
    """On real CIFAR-10 images where ECRL_TEST_DATA names their folder, else on fake ones."""
    data = REAL if "ECRL_TEST_DATA" in os.environ else FAKE
    shape = [
        "global_batch=12",
        f"world_size={world_size}",
        "target_steps=6",
        "supervision.launcher=zygote",
    ]
    failures = ["checkpoint.every=3", "failure=kill", "failure.steps=[5]", "failure.rank=1"]
    ecrl(
        "-m",
        *data,
        *shape,
        *failures,
        "variant=ref,ovl" if world_size == 2 else ARMS,
        "run_dir=sweep",
    )
    check_arms(
        {variant: run for (_, variant), run in runs_of(tmp_path / "sweep").items()}, world_size, 1
    )


def test_a_suite_under_another_schedule_is_judged_under_the_name_that_it_then_has(
    tmp_path: Path,
) -> None:
    """As `+matrix=sensitivity` has it: Hydra's record has the suite's name, config.json that of
    data set, model and schedule.
    """
    ecrl_in_process(
        tmp_path,
        "train",
        "+suite=digits-cnn",
        "schedule=between",
        "scale=smoke",
        "variant=blk",
        "run_dir=run",
    )
    verdict = verify_run(tmp_path / "run")
    assert verdict.status == VALID and verdict.reference, render(verdict)
    assert (
        json.loads((tmp_path / "run/config.json").read_text())["config"]["suite_name"]
        == "digits-small_cnn-between"
    )
    assert metrics(tmp_path / "run")["replayed_steps"] > 0
