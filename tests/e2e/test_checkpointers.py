"""Runs whose checkpoints another checkpointer writes: judged like ours, as far as there is
evidence; bugs are found, damage is on record.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ecrl_cli.records.events import LOADER
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, Verdict, render
from ecrl_cli.verify.verify_run import verify_run
from tests.e2e.planting import plant
from tests.e2e.runs import end_state, metrics, supervisor, tiny
from tests.in_process import SharedLaunchers, ecrl_in_process

SHAPE = tiny("target_steps=12", "failure.steps=[9]", "world_size=2", "checkpoint.every=4")
RESTORED = "state-restored"
UNSEEN = {"no-bad-checkpoint", "no-acknowledged-loss"}  # what only the checkpointer can read
pytestmark = pytest.mark.timeout(1200)

# torch.load gives everything back, and the optimizer's state is not put into the optimizer: the
# classic that no loader notices.
FORGOTTEN = """
    restore = module.TrainState._restore_optimizer
    def spoilt(self, tensors, document):
        kept = [name for name in tensors if not name.startswith("optimizer.")]
        restore(self, {name: tensors[name] for name in kept}, document)
    module.TrainState._restore_optimizer = spoilt
"""


# DCP as its documentation has it: every rank gives all of its state dict, and any rank's buffers
# are written. BatchNorm's differ between ranks.
ANY_BUFFERS = """
    module.own = lambda state: state
"""
BUGS = {
    "forgotten": ("ecrl_cli.checkpoint.capture.train_state", FORGOTTEN),
    "any_buffers": ("ecrl_cli.checkpoint.checkpointers.dcp", ANY_BUFFERS),
}


def statuses(verdict: Verdict) -> dict[str, str]:
    return {finding.promise: finding.status for finding in verdict.findings}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By strategy: killed once, off a checkpoint's boundary; and undisturbed with ours."""
    folder = tmp_path_factory.mktemp("checkpointers")
    ecrl_in_process(
        folder,
        "-m",
        *SHAPE,
        "checkpoint=torch_save_durable,dcp,dcp_async",
        "variant=custom",
        "run_dir=sweep",
    )
    ecrl_in_process(folder, "-m", *SHAPE, "variant=ref", "run_dir=ref")
    runs = [*folder.glob("sweep/*/"), *folder.glob("ref/*/")]
    found = {
        json.loads(RunLayout(run).config.read_text())["config"]["checkpoint"]["strategy"]: run
        for run in runs
        if RunLayout(run).config.exists()
    }
    assert found.keys() == {"torch_save_durable", "dcp", "dcp_async", "blocking"}
    return found


@pytest.mark.parametrize("name", ["torch_save_durable", "dcp", "dcp_async"])
def test_a_killed_run_is_restored_bit_for_bit_and_judged(sweep: dict[str, Path], name: str) -> None:
    run = sweep[name]
    verdict = verify_run(run, sweep["blocking"])
    found = statuses(verdict)
    assert verdict.status == VALID, render(verdict)
    assert {promise for promise, status in found.items() if status == NOT_CHECKED} == UNSEEN, (
        render(verdict)
    )
    assert found[RESTORED] == VALID and end_state(run) == end_state(sweep["blocking"])
    # the newest may not have been finished
    assert supervisor(run)["attempts"][1]["resumed_from_step"] in (
        (4, 8) if name == "dcp_async" else (8,)
    )
    account = metrics(run)["checkpoints"]
    assert account["committed"] == 3 and account["bytes"] > 0 and account["stall_s"] > 0
    parts = {
        key.removeprefix("stalled_").removesuffix("_s")
        for key, seconds in account.items()
        if key.startswith("stalled_") and seconds
    }
    assert (
        parts >= ({"enqueue", "barrier"} if name == "dcp_async" else {"write", "settle", "barrier"})
        and "hash" not in parts
    )


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLaunchers]:
    launchers = SharedLaunchers(plant(tmp_path_factory.mktemp("planted") / "plant", BUGS))
    yield launchers
    launchers.end()


@pytest.mark.parametrize(
    ("bug", "strategy", "lost"),
    [("forgotten", "torch_save", "optimizer"), ("any_buffers", "dcp", "buffers")],
)
def test_state_that_is_not_restored_is_found(
    sweep: dict[str, Path],
    planted: SharedLaunchers,
    tmp_path: Path,
    bug: str,
    strategy: str,
    lost: str,
) -> None:
    ecrl_in_process(
        tmp_path,
        *SHAPE,
        f"checkpoint={strategy}",
        f"suite_name={bug}",
        "run_dir=run",
        launchers=planted,
    )
    verdict = verify_run(tmp_path / "run", sweep["blocking"])
    assert verdict.status == INVALID and statuses(verdict)[RESTORED] == INVALID
    assert f"began with other {lost} than checkpoints/step_00000008 held" in render(verdict)


def test_what_the_loader_cannot_read_is_on_record_and_the_one_before_is_taken(
    sweep: dict[str, Path], tmp_path: Path
) -> None:
    """A run ends after its second kill; its newest file is cut off; the same command goes on."""
    shape = tiny(
        "target_steps=12",
        "failure.steps=[6,9]",
        "world_size=2",
        "checkpoint.every=4",
        "supervision.max_restarts=1",
    )
    command = (*shape, "checkpoint=torch_save", "run_dir=run")
    ecrl_in_process(tmp_path, *command, check=7)
    layout = RunLayout(tmp_path / "run")
    newest = layout.checkpoints / "step_00000008" / "state.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    ecrl_in_process(tmp_path, *command)
    failed, last = supervisor(layout.root)["attempts"][2:]
    assert (failed["outcome"], failed["last_step"]) == ("died", None) and (
        last["outcome"],
        last["resumed_from_step"],
    ) == ("completed", 4)
    (refused,) = last["rejected"]
    assert (
        refused["layer"] == LOADER
        and refused["path"] == "checkpoints/step_00000008"
        and "torch.save cannot load it" in refused["reason"]
    )
    verdict = verify_run(layout.root, sweep["blocking"])
    assert verdict.status == VALID and statuses(verdict)["no-bad-checkpoint"] == NOT_CHECKED, (
        render(verdict)
    )
    # the first rank that fails ends the attempt, and the other may not have come to it
    for rank in layout.attempt(2).with_unloadable():
        layout.attempt(2).unloadable(rank).unlink()
    # nobody is on record to have tried
    assert statuses(verify_run(layout.root, sweep["blocking"]))["no-bad-checkpoint"] == INVALID


def test_a_state_that_was_on_record_and_is_gone_is_missed(
    sweep: dict[str, Path], tmp_path: Path
) -> None:
    """Ranks always log what another checkpointer is given: supervisor.json says what an attempt
    resumed from.
    """
    run = RunLayout(Path(shutil.copytree(sweep["dcp"], tmp_path / "run", symlinks=True)))
    record = json.loads(run.supervisor.read_text())
    record["attempts"][1]["resumed_state"] = {}
    run.supervisor.write_text(json.dumps(record))
    assert statuses(verify_run(run.root, sweep["blocking"]))[RESTORED] == UNKNOWN


@pytest.mark.parametrize(
    ("name", "status"), [("torch_save_durable", INVALID), ("dcp", NOT_CHECKED)]
)
def test_an_acknowledged_checkpoint_that_has_lost_bytes_is_named(
    sweep: dict[str, Path], tmp_path: Path, name: str, status: str
) -> None:
    """Lost against its promise where it promised that a power loss takes nothing; elsewhere it is
    said.
    """
    run = RunLayout(Path(shutil.copytree(sweep[name], tmp_path / "run", symlinks=True)))
    data = max(
        (run.checkpoints / "step_00000012").rglob("*.*"), key=lambda path: path.stat().st_size
    )
    data.write_bytes(data.read_bytes()[:100])
    finding = next(
        each
        for each in verify_run(run.root, sweep["blocking"]).findings
        if each.promise == "no-acknowledged-loss"
    )
    assert finding.status == status and "step 12 was committed with" in " ".join(
        (finding.message, *finding.evidence)
    )
