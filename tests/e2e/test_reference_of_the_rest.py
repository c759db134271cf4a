"""Recoveries that claim no trajectory: what follows is held against an undisturbed run from the
run's own first checkpoint after the death.

Nothing else computes those steps again, so a fault that lasts from the death on contradicts no
record of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.history.load import load
from ecrl_cli.records.layout import REFERENCES, RunLayout
from ecrl_cli.records.verdict_file import read_verdict
from ecrl_cli.verify import rest
from ecrl_cli.verify.checkpoints import no_acknowledged_loss
from ecrl_cli.verify.reference import References, find_rest
from ecrl_cli.verify.trajectory import NOT_SHOWN, PROMISE
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, Finding
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.verify_run import verify_run
from tests.e2e.planting import plant, suite_of
from tests.e2e.runs import supervisor, tiny
from tests.in_process import SharedLaunchers, ecrl_in_process
from tests.runs.changed import Records, appended, attempts, rank_line

# in every survivor, from the death on
_SURVIVOR = """
    load = module.InPlaceSession.load
    def spoilt(self):
        loop = load(self)
        if self.order.memory == "survivors":
            {what}
        return loop
    module.InPlaceSession.load = spoilt
"""
HALVED, UNAPPLIED = "gradients are halved", "three steps are not applied"
BUGS = {
    HALVED: (
        "ecrl_cli.training.in_place_session",
        _SURVIVOR.format(
            what="[p.register_hook(lambda g: g / 2) for p in loop.train_state.model.parameters()]"
        ),
    ),
    UNAPPLIED: (
        "ecrl_cli.training.in_place_session",
        _SURVIVOR.format(
            what="""optimizer, step = loop.train_state.optimizer, loop.train_state.optimizer.step
            def some(*args, **kwargs):
                return None if loop.global_step in (13, 14, 15) else step(*args, **kwargs)
            optimizer.step = some"""
        ),
    ),
}
HONEST = "no bug"
# rank 1 of 3 dies in step 10; the next checkpoints are those of steps 12, 18 and 24
SHAPE = ("failure.steps=[9]", "world_size=3", "state_digests=true", "recovery=lossy_forward")
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLaunchers]:
    """Ranks in which a run has the bug that it is named after, if it is named after one."""
    launchers = SharedLaunchers(plant(tmp_path_factory.mktemp("planted") / "plant", BUGS))
    yield launchers
    launchers.end()


@pytest.fixture(scope="module")
def sweep(planted: SharedLaunchers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each bug and one without, with all references."""
    folder = tmp_path_factory.mktemp("rest")
    suites = ",".join(map(suite_of, (HONEST, *BUGS)))
    ecrl_in_process(
        folder,
        *("-m", *tiny(*SHAPE, "reference=always", f"suite_name={suites}"), "run_dir=sweep"),
        launchers=planted,
    )
    # the reference from the beginning, and one of each rest
    assert len(list((folder / "sweep" / REFERENCES).iterdir())) == 4
    return folder / "sweep"


def finding_of(sweep: Path, bug: str) -> Finding:
    """The finding on the trajectory of the run with that bug."""
    (run,) = sweep.glob(f"{suite_of(bug)}-*")
    return next(each for each in verify_run(run).findings if each.promise == PROMISE)


def test_the_rest_of_an_honest_run_follows(sweep: Path) -> None:
    finding = finding_of(sweep, HONEST)
    assert finding.status == VALID and finding.message.endswith(
        "; after the death at step 10, the rest (steps 13 to 24) follows an undisturbed run from"
        " its own checkpoint of step 12, bit for bit"
    ), finding
    assert (
        "not shown: that the losses and updates of steps 10 to 12 are right; no run computes them"
        " again" in finding.evidence
    )


@pytest.mark.parametrize(("bug", "step"), [(HALVED, 13), (UNAPPLIED, 14)])
def test_a_fault_that_lasts_from_the_death_on_is_found(sweep: Path, bug: str, step: int) -> None:
    finding = finding_of(sweep, bug)
    assert finding.status == INVALID and finding.message.startswith(
        "Broke promise: same-trajectory - after the death at step 10 the rest does not follow an"
        " undisturbed run from its own checkpoint of step 12: the first differing step is step"
        f" {step}, component state (rank 0: "
    ), finding


def test_where_other_bits_may_come_out_a_difference_proves_nothing(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "the reference ran with cpu.model A, this run with B"
    revision = "the reference ran with git_revision A, this run with B"
    monkeypatch.setattr(rest, "other_environment", lambda case: (revision,))
    assert finding_of(sweep, HALVED).status == INVALID
    monkeypatch.setattr(rest, "other_environment", lambda case: (revision, other))
    finding = finding_of(sweep, HALVED)
    assert finding.status == UNKNOWN and finding.message.endswith(
        f" ran where other bits may come out: {other}"
    ), finding
    assert finding_of(sweep, HONEST).status == VALID


# What is changed of the undisturbed run, the status, and what is said of it.
ANOTHER_REST: dict[str, tuple[Records, str, str]] = {
    "another state": (
        lambda found: attempts(found, 0, resumed_state={"parameters": "0" * 64}),
        UNKNOWN,
        "began with another state than is on record of step 12",
    ),
    "other inputs": (
        lambda found: rank_line(found, 0, 1, 14, inputs_hash="blake3:" + "0" * 64),
        INVALID,
        "of step 12: step 14 rank 1: the inputs of attempt 1 are not those of",
    ),
}


@pytest.mark.parametrize("name", ANOTHER_REST)
def test_a_rest_that_began_or_saw_otherwise_vouches_for_nothing(sweep: Path, name: str) -> None:
    change, status, words = ANOTHER_REST[name]
    (run,) = sweep.glob(f"{suite_of(HONEST)}-*")
    records = load(RunLayout(run))
    beside, _ = find_rest(records, References())
    assert beside is not None
    finding = rest.trajectory_and_rest(Case(records, rest=change(beside)))
    assert finding.status == status and words in finding.message, finding


def test_what_is_wrong_before_the_death_is_told_first(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, own = Finding(PROMISE, INVALID, "step 3 differs"), rest.same_trajectory
    monkeypatch.setattr(rest, "same_trajectory", lambda case: before if case.rest else own(case))
    finding = finding_of(sweep, HALVED)
    assert (finding.status, finding.message) == (INVALID, "step 3 differs")
    assert "the first differing step is step 13" in finding.evidence[0]


def trajectory(folder: Path, run: str, *flags: str) -> tuple[dict[str, Any], str]:
    """The finding on the trajectory of a valid run, and what the command says beside it."""
    done = ecrl_in_process(folder, "verify", run, "--json", *flags)
    (verdict,) = json.loads(done.stdout).values()
    return next(each for each in verdict["findings"] if each["promise"] == PROMISE), done.stderr


def test_with_reference_trains_it_after_the_last_of_two_deaths(tmp_path: Path) -> None:
    """Fewer ranks each time; the mini-batches in which they died are dropped. The rest owes no
    evaluation of the steps before it.
    """
    evaluated = ("evaluate.every=4", "dataset.held_out=360")
    keys = tiny(*SHAPE, *evaluated, "recovery=skip", "failure.steps=[9,15]", "world_size=4")
    ecrl_in_process(tmp_path, "train", *keys, "run_dir=run")
    finding, _ = trajectory(tmp_path, "run")
    assert finding["status"] == NOT_CHECKED and finding["evidence"] == [
        NOT_SHOWN,
        "`ecrl verify --with-reference run` holds the rest against an undisturbed run from its own"
        " checkpoint after the death",
    ]
    finding, said = trajectory(tmp_path, "run", "--with-reference")
    assert "an undisturbed run from step_00000018 of run, to compare its rest with, in " in said
    assert finding["status"] == VALID and finding["message"].endswith(
        "; after the death at step 16, the rest (steps 19 to 24) follows an undisturbed run from"
        " its own checkpoint of step 18, bit for bit"
    ), finding
    assert (
        "not shown: that the losses and updates of steps 10 to 18 are right; no run computes them"
        " again" in finding["evidence"]
    )
    (beside,) = (tmp_path / REFERENCES).iterdir()
    assert supervisor(beside)["attempts"][0]["world_size"] == 2
    again = trajectory(tmp_path, "run", "--with-reference")[1]
    assert "run: an undisturbed run of its rest lies beside it already" in again


def test_after_a_fallback_the_rest_has_as_many_ranks_as_the_run_went_on_with(
    tmp_path: Path,
) -> None:
    """Three, two, one, and when that dies three again, from the checkpoint that one had saved."""
    keys = tiny(*SHAPE, "failure.steps=[9,15,20]", "failure.rank=0")
    ecrl_in_process(tmp_path, "train", *keys, "run_dir=run")
    assert [a["world_size"] for a in supervisor(tmp_path / "run")["attempts"]] == [3, 2, 1, 3]
    finding, _ = trajectory(tmp_path, "run", "--with-reference")
    assert finding["status"] == VALID and (
        "after the death at step 16, the rest (steps 19 to 24) follows" in finding["message"]
    ), finding


def test_where_retention_has_removed_the_first_checkpoint_it_begins_later(tmp_path: Path) -> None:
    """A spare takes the dead rank's place: as many ranks as before."""
    more = ("checkpoint.every=2", "checkpoint.keep=2", "supervision.spares=1")
    ecrl_in_process(tmp_path, "train", *tiny(*SHAPE, *more), "run_dir=run")
    finding, _ = trajectory(tmp_path, "run", "--with-reference")
    assert "the rest (steps 23 to 24) follows" in finding["message"], finding
    assert (
        "not shown: that the losses and updates of steps 10 to 22 are right (the checkpoint of"
        " step 12 is gone); no run computes them again" in finding["evidence"]
    )


def test_with_reference_always_retention_keeps_the_first_after_the_last_death(
    tmp_path: Path,
) -> None:
    """Beside the newest two; that of the death before goes. Who removed it is unknown."""
    more = ("checkpoint.every=2", "checkpoint.keep=2", "failure.steps=[9,15]", "reference=always")
    ecrl_in_process(tmp_path, "train", *tiny(*SHAPE, *more), "run_dir=run")
    run = RunLayout(tmp_path / "run")
    kept = sorted(path.name for path in run.checkpoints.glob("step_*"))
    assert kept == ["step_00000018", "step_00000022", "step_00000024"]
    finding, _ = trajectory(tmp_path, "run")
    assert "the rest (steps 19 to 24) follows" in finding["message"], finding
    assert verify_run(run.root).status == VALID

    removed = appended(load(run), 2, "retired", 20, global_step=18)
    finding = no_acknowledged_loss(Case(removed))
    text = "checkpoint.keep is 2 (checkpoints/step_00000020); reference=always keeps the first one"
    assert finding.status == UNKNOWN and text in finding.message, finding


def test_without_a_checkpoint_after_the_death_one_line_says_so(tmp_path: Path) -> None:
    keys = tiny(*SHAPE, "failure.steps=[20]", "reference=always")
    said = ecrl_in_process(tmp_path, "train", *keys, "run_dir=run").stderr
    why = "no checkpoint was committed between the death at step 21 and the last step"
    assert f"run: nothing shows that its rest is right: {why}" in said
    finding, _ = trajectory(tmp_path, "run")
    assert f"nor can a run from its own checkpoint show it: {why}" in finding["evidence"]


def test_nobody_types_where_a_run_begins(tmp_path: Path) -> None:
    typed = "begins_from=[initial/step_00000012,a,b]"
    said = ecrl_in_process(tmp_path, "train", *tiny(typed), "run_dir=run", check=2).stderr
    assert "begins_from: is recorded by ECRL in the reference of the rest of a run" in said


def test_a_rest_that_is_invalid_itself_vouches_for_nothing(tmp_path: Path) -> None:
    ecrl_in_process(tmp_path, "train", *tiny(*SHAPE, "reference=none"), "run_dir=run")
    ecrl_in_process(tmp_path, "verify", "run", "--with-reference")
    (beside,) = (tmp_path / REFERENCES).iterdir()
    assert read_verdict(RunLayout(tmp_path / "run"))[1] == ""
    log = RunLayout(beside).attempt(0).rank(0)
    log.write_text(log.read_text().replace('"loss":', '"loss":1', 1))
    stale = f"records of the reference {REFERENCES}/{beside.name} changed since"
    assert read_verdict(RunLayout(tmp_path / "run"))[1] == stale
    said = ecrl_in_process(tmp_path, "verify", "run", check=3).stdout
    assert (
        f"same-trajectory - the rest of the run: the reference {beside.name} is invalid: " in said
    ), said
