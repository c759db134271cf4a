"""A recovery that silently changes the trajectory must not pass: bugs planted in the worker, found
by `ecrl verify`.

A published artefact restored rank 0's generator on every rank, or restored it before building an
iterator that consumed it again; its own checks passed. Most bugs here are of that kind: the sample
ids stay right, the state does not.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ecrl_cli.studies.mutants.recovery import BUGS
from ecrl_cli.verify.reference import References
from ecrl_cli.verify.state_restored import PROMISE as RESTORED
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_spoilt_runs import found
from tests.e2e.planted_runs import PlantedRuns
from tests.e2e.planting import plant, suite_of
from tests.e2e.runs import manifest, tiny
from tests.e2e.state_bugs import STATE_BUGS, TRAJECTORY, StateBug
from tests.in_process import SharedLaunchers, ecrl_in_process

VIT = ("model=vit", "model.width=16", "model.depth=1", "model.dropout=0.2")
SHAPE = tiny(*VIT, "target_steps=12", "failure.steps=[9]", "world_size=2", "state_digests=true")
# The learning rate of the first step after a recovery is restored with the optimizer: a schedule
# that starts anew shows one step later.
FIRST_WRONG = {"schedule reset": 8}
pytestmark = pytest.mark.timeout(1800)  # one sweep of all


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLaunchers]:
    """Ranks in which a run has the bug that it is named after, if it is named after one."""
    bugs = BUGS | {name: (bug.module, bug.body) for name, bug in STATE_BUGS.items()}
    launchers = SharedLaunchers(plant(tmp_path_factory.mktemp("planted") / "plant", bugs))
    yield launchers
    launchers.end()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Undisturbed, and killed, where no bug is planted."""
    folder = tmp_path_factory.mktemp("honest")
    ecrl_in_process(folder, "-m", *SHAPE, "variant=ref,blk", "run_dir=sweep")
    return manifest(folder / "sweep")


@pytest.fixture(scope="module")
def spoilt(planted: SharedLaunchers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed, with each bug."""
    folder = tmp_path_factory.mktemp("spoilt")
    named = f"suite_name={','.join(map(suite_of, BUGS))}"
    ecrl_in_process(folder, "-m", *SHAPE, named, "variant=blk", "run_dir=sweep", launchers=planted)
    return folder / "sweep"


@pytest.fixture(scope="module")
def known() -> References:
    """The reference is judged once."""
    return References()


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_recovery_bug_is_found(
    honest: dict[str, Path], spoilt: Path, known: References, bug: str
) -> None:
    (run,) = spoilt.glob(f"{suite_of(bug)}-*")
    verdict = verify_run(run, honest["ref"], known)
    said = render(verdict)
    assert (
        verdict.status == INVALID
        and "Broke promise" in said
        and f"step {FIRST_WRONG.get(bug, 7)}" in said
    ), said


def test_without_a_bug_the_same_run_is_valid(honest: dict[str, Path], known: References) -> None:
    verdict = verify_run(honest["blk"], honest["ref"], known)
    assert verdict.status == VALID, render(verdict)


@pytest.fixture(scope="module")
def runs(planted: SharedLaunchers, tmp_path_factory: pytest.TempPathFactory) -> PlantedRuns:
    return PlantedRuns(tmp_path_factory.mktemp("state"), planted)


@pytest.mark.parametrize("bug", STATE_BUGS)
def test_a_bug_in_the_training_state_is_found_by_default(runs: PlantedRuns, bug: str) -> None:
    """Beside its reference; which promise was broken, and how."""
    planted, (_, verdict) = STATE_BUGS[bug], runs.of(bug)
    (finding,) = (each for each in verdict.findings if each.promise == planted.promise)
    assert verdict.status == finding.status == planted.status, render(verdict)
    told = "\n".join((finding.message, *finding.evidence))
    assert all(words in told for words in planted.words), render(verdict)


# What is lost at a restore, by component; all other bugs leave it as it was, and must not be taken
# for one.
LOST = {
    "the scaler is not restored": "train",
    "the scaler is restored with half its scale": "train",
    "the schedule is stepped once more per resume": "train",
    "the learning rate begins anew": "train",
    "weight decay is lost": "train",
    "the momentum's factor is lost": "train",
    "the seed is set after the state is restored": "rng",
    "the generators of rank 1 are not restored": "rng",
    "momentum of rank 1 is lost": "optimizer",
    "exp_avg_sq is lost": "optimizer",
    "Adam counts its steps anew": "optimizer",
    "running statistics are lost": "buffers",
    "parameters come back in half precision": "parameters",
    "rank 1 resumes one window ahead": "train",
    "the sampler's epoch begins anew": "train",
    "training goes on from an average": "parameters",
    "momentum is lost where nothing is done again": "optimizer",
    "the newcomer has no momentum": "optimizer",
    "the newcomer has twice the learning rate": "train",
    "the newcomer has other parameters": "parameters",
}


@pytest.mark.parametrize("bug", STATE_BUGS)
def test_what_is_lost_at_a_restore_is_named_without_a_reference(
    runs: PlantedRuns, bug: str
) -> None:
    _, verdict = runs.of(bug)
    finding = found(verdict, RESTORED)
    if bug in LOST:
        assert (
            finding.status == INVALID and f" began with other {LOST[bug]} than" in finding.message
        ), render(verdict)
    elif bug == "the checkpoint holds other parameters" and finding.status == INVALID:
        # The ranks logged a digest after the step that it resumed from; which steps have one is
        # chosen by what it costs (state_digests=auto).
        assert (
            "attempt 1 resumed from other parameters than rank 0 logged after step 6"
            in finding.message
        ), render(verdict)
    else:
        assert finding.status in (VALID, UNKNOWN) and "began with" not in finding.message, render(
            verdict
        )


def test_momentum_lost_in_a_lone_run_is_invalid(runs: PlantedRuns, tmp_path: Path) -> None:
    run, _ = runs.of("momentum is lost where nothing is done again")
    verdict = verify_run(Path(shutil.copytree(run, tmp_path / "alone", symlinks=True)))
    assert (
        verdict.status == INVALID
        and verdict.reference == ""
        and found(verdict, TRAJECTORY).status == UNKNOWN
    ), render(verdict)
    assert (
        "attempt 1 rank 0 began with other optimizer than checkpoints/step_00000006 held"
        in found(verdict, RESTORED).message
    )


def test_momentum_lost_at_a_change_of_the_world_size_is_invalid_without_a_reference(
    runs: PlantedRuns, tmp_path: Path
) -> None:
    run = runs.resized("momentum is lost where nothing is done again")
    verdict = verify_run(Path(shutil.copytree(run, tmp_path / "alone", symlinks=True)))
    assert (
        verdict.status == INVALID
        and verdict.reference == ""
        and found(verdict, TRAJECTORY).status == NOT_CHECKED
    ), render(verdict)
    assert (
        "attempt 1 rank 0 began with other optimizer than checkpoints/step_00000006 held"
        in found(verdict, RESTORED).message
    )


def one_of_each() -> list[StateBug]:
    """A bug of each shape of run."""
    return list(
        {
            (str(bug.model), bug.steps, bug.recovery): bug
            for bug in STATE_BUGS.values()
            if not bug.in_model
        }.values()
    )


@pytest.mark.parametrize(
    "shape",
    one_of_each(),
    ids=lambda bug: f"{bug.recovery}-{bug.steps[0]}-{'-'.join(map(str, bug.model.values()))}"[:60],
)
def test_without_the_bug_the_run_is_valid(runs: PlantedRuns, shape: StateBug) -> None:
    _, verdict = runs.honest(shape)
    assert verdict.status == found(verdict, RESTORED).status == VALID, render(verdict)
