"""The referee watches ranks that outlive others as closely as restarts: what they give up is on
record, and nothing they say goes unchecked.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.schema import CheckpointConfig, DdpConfig
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.history.membership import was_stopped
from ecrl_cli.records.events import Attempt
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.survivor_records import SNAPSHOT
from ecrl_cli.verify.checkpoints import checkpoints_accounted
from ecrl_cli.verify.exactly_once import exactly_once
from ecrl_cli.verify.trajectory import NOT_SHOWN, same_trajectory
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, render
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_resized import assert_caught
from tests.contract.test_verify_spoilt_runs import found
from tests.runs import changed
from tests.runs.builder import RunBuilder, config_of
from tests.runs.changed import configured
from tests.runs.sentence import told
from tests.runs.spoil import append, at_step, edit_json, edit_lines, line_at, tear
from tests.runs.spoilt import FAILURES, NO_BAD, ONCE, RECORDS, TRAJECTORY, Spoil, attempts
from tests.runs.survived import (
    LOSSY,
    ROLLBACK,
    Death,
    SurvivedBuilder,
    build_lossy,
    build_rollback,
    build_spared,
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By number of ranks a reference and those that were struck."""
    folder = tmp_path_factory.mktemp("sweeps")
    for ranks, builds in ((2, (build_rollback, build_spared)), (4, (build_lossy,))):
        RunBuilder(folder / str(ranks) / "ref", replace(config_of("ref"), world_size=ranks)).build()
        for build in builds:
            build(folder / str(ranks))
    return folder


@pytest.fixture
def lossy(recorded: Path, tmp_path: Path) -> RunLayout:
    """Alone, to be spoilt."""
    return RunLayout(
        Path(shutil.copytree(recorded / "4" / "lossy", tmp_path / "lossy", symlinks=True))
    )


@pytest.fixture
def rollback(recorded: Path, tmp_path: Path) -> RunLayout:
    return RunLayout(
        Path(shutil.copytree(recorded / "2" / "rollback", tmp_path / "rollback", symlinks=True))
    )


@pytest.mark.parametrize("name", ["rollback", "spared"])
def test_what_gives_nothing_up_is_equal_to_the_undisturbed_run_to_the_end(
    recorded: Path, name: str
) -> None:
    verdict = verify_run(recorded / "2" / name)
    assert verdict.status == VALID, render(verdict)
    assert (
        "equal to ref in every loss of 24 steps and in the final state"
        in found(verdict, TRAJECTORY).message
    )
    assert "3 checkpoints vouch" in found(verdict, RECORDS).message


def test_what_gives_samples_up_is_valid_where_they_are_on_record_and_equal_up_to_there(
    recorded: Path,
) -> None:
    verdict = verify_run(recorded / "4" / "lossy")
    assert verdict.status == VALID, render(verdict)
    assert (
        "188 applied to every layer, 0 replayed, 4 on record as lost"
        in found(verdict, ONCE).message
    )
    finding = found(verdict, TRAJECTORY)
    assert (
        "equal to ref in every loss of the 8 steps before samples were lost; not claimed after them"
        in finding.message
    )
    told = "\n".join(finding.evidence)
    assert (
        "step 9 (attempt 0): 2 samples of ranks [2] are on record as lost on 2 layers"
        " (lossy_forward)" in told
    )
    assert (
        "world size 2 from step 10 on, 4 in the reference" in told
        and "of the final state differ: parameters" in told
        and NOT_SHOWN in told
    )


def test_without_a_reference_it_is_said_what_is_not_shown(recorded: Path, tmp_path: Path) -> None:
    verdict = verify_run(Path(shutil.copytree(recorded / "4" / "lossy", tmp_path / "lossy")))
    finding = found(verdict, TRAJECTORY)
    assert finding.status == NOT_CHECKED and NOT_SHOWN in finding.evidence, render(verdict)


def test_with_spares_the_size_stays_and_the_distance_is_told_all_the_same(tmp_path: Path) -> None:
    RunBuilder(tmp_path / "ref", config_of("ref")).build()
    verdict = verify_run(
        SurvivedBuilder(tmp_path / "lossy", LOSSY, (Death(9, first=(0,), spares=1),)).build().root
    )
    assert verdict.status == VALID, render(verdict)
    told = found(verdict, TRAJECTORY)
    assert "equal to ref in every loss of the 8 steps" in told.message and not any(
        "world size" in text for text in told.evidence
    )


def test_who_is_told_to_stop_may_leave_it_to_those_who_go_on() -> None:
    died = Attempt(0, 2, outcome="survived")
    on = Attempt(1, 1, continues=0, memory="survivors")
    for outcome, right in (("stopped", True), ("completed", True), ("died", False)):
        assert was_stopped((died, replace(on, outcome=outcome)), died) == right
    assert not was_stopped((died,), died)
    assert not was_stopped(
        (replace(died, outcome="died"), replace(on, outcome="stopped")),
        replace(died, outcome="died"),
    )


def test_attempts_that_go_on_with_themselves_or_in_thousands_are_followed_once() -> None:
    """Only a stranger's record has such: it may not cost a stack or never end."""
    itself = Attempt(0, 2, outcome="survived", continues=0)
    other = Attempt(1, 2, outcome="survived", continues=2)
    assert not was_stopped((itself, other, replace(other, attempt=2, continues=1)), itself)
    chain = [
        Attempt(number, 2, outcome="survived", continues=number - 1 if number else None)
        for number in range(4096)
    ]
    assert was_stopped((*chain, Attempt(4096, 2, outcome="stopped", continues=4095)), chain[0])


@pytest.mark.parametrize(("share", "unused"), [("", False), ("/0.9", False), ("", True)])
def test_one_that_died_with_a_share_of_its_gradients_gave_not_all(
    share: str, unused: bool, tmp_path: Path
) -> None:
    """Of three layers, two or all; where layers may be unused, two may be all that there are."""
    death = Death(9, first=(2,), spares=1, moment=f"backward{share}")
    run = SurvivedBuilder(tmp_path / "lossy", LOSSY, (death,)).build()
    records = configured(load(run), ddp=DdpConfig(find_unused_parameters=unused))
    words = "hit in step 9 of attempt 0, after 50% of its gradients, and others finished the step"
    assert (words in str(exactly_once(Case(records)))) == (not share and not unused)


@pytest.mark.parametrize("logged", [True, False])
def test_one_that_died_with_nothing_owed_needs_no_lost_samples_record(
    tmp_path: Path, logged: bool
) -> None:
    """All had its gradients; whether it came to log the step is chance."""
    RunBuilder(tmp_path / "ref", config_of("ref")).build()
    run = SurvivedBuilder(
        tmp_path / "lossy",
        LOSSY,
        (Death(9, first=(2,), spares=1, logged=logged, moment="backward/1"),),
        planned=not logged,
    ).build()
    verdict = verify_run(run.root)
    assert verdict.status == VALID, render(verdict)
    assert (
        "192 applied to every layer, 0 replayed, 0 on record as lost"
        in found(verdict, ONCE).message
    )
    assert (
        "equal to ref in every loss of 24 steps and in the final state"
        in found(verdict, TRAJECTORY).message
    )


def test_who_reports_need_not_be_who_is_gone_on_with(recorded: Path, tmp_path: Path) -> None:
    """All went back to a snapshot in memory, which was taken after an earlier step than the
    survivors had come to.
    """
    run = RunLayout(
        Path(shutil.copytree(recorded / "2" / "spared", tmp_path / "spared", symlinks=True))
    )
    of_attempt(continues=0, memory="snapshot", snapshot_sha256="a" * 64, resumed_from=None)(run)
    finding = found(verify_run(run.root, recorded / "2" / "ref"), ONCE)
    assert finding.status == VALID, finding


def test_survivors_that_come_apart_later_are_seen(lossy: RunLayout) -> None:
    """Whatever buffers they have: after each step all have the leader's. Nothing else compares them
    after a loss.
    """
    for rank in range(2):
        edit_lines(
            lossy.attempt(1).rank(rank),
            lambda line, rank=rank: (
                line | {"state_digest": f"{rank if line['global_step'] > 19 else 2:064x}"}
            ),
        )  # type: ignore[misc]
    edit_json(lossy.attempt(1).final, lambda final: final | {"buffers_digest": "e" * 64})
    finding = found(verify_run(lossy.root), "state-consistent")
    assert (
        finding.status == INVALID
        and "step 20: ranks [0, 1] do not hold the same state (5 such steps)" in finding.message
    )


@pytest.mark.parametrize("bug_from", [12, 20])
def test_a_live_recovery_that_changes_the_trajectory_is_caught(
    recorded: Path, tmp_path: Path, bug_from: int
) -> None:
    finding = found(
        verify_run(build_rollback(tmp_path, bug_from=bug_from).root, recorded / "2" / "ref"),
        TRAJECTORY,
    )
    assert finding.status == INVALID
    assert told(
        finding, f"the first differing step is step {bug_from} at the latest, component loss"
    )


def test_before_the_first_loss_equality_is_owed(recorded: Path, lossy: RunLayout) -> None:
    edit_lines(lossy.attempt(0).rank(0), at_step(8, loss=0.5))
    finding = found(verify_run(lossy.root, recorded / "4" / "ref"), TRAJECTORY)
    assert (
        finding.status == INVALID
        and "the first differing step is step 8 at the latest, component loss" in finding.message
    )


def sworn(whose: int, attempt: int = 0, /, **changes: Any) -> Spoil:
    return lambda run: edit_lines(
        run.attempt(attempt).survivor_report(whose), lambda line: line | changes
    )


def everyone(attempt: int = 0, ranks: tuple[int, ...] = (0, 1), **changes: Any) -> Spoil:
    def spoil(run: RunLayout) -> None:
        for rank in ranks:
            sworn(rank, attempt, **changes)(run)

    return spoil


def lost_samples(
    edit: Callable[[dict[str, Any]], dict[str, Any] | None], ranks: tuple[int, ...] = (0, 1)
) -> Spoil:
    def spoil(run: RunLayout) -> None:
        for rank in ranks:
            edit_lines(run.attempt(0).lost_samples(rank), edit)

    return spoil


def first_sample(line: dict[str, Any], change: Callable[[int], list[int]]) -> dict[str, Any]:
    return (
        line | {"samples": change(line["samples"][0]) + line["samples"][1:]}
        if line["ranks"] == [3]
        else line
    )


def redone(**changes: Any) -> Spoil:
    """Of the last thing done again, as both survivors tell it."""

    def spoil(run: RunLayout) -> None:
        for rank in range(2):
            edit_lines(
                run.attempt(0).survivor_report(rank),
                lambda line: (
                    line | {"redone": [*line["redone"][:-1], line["redone"][-1] | changes]}
                ),
            )

    return spoil


def nothing_lost(run: RunLayout) -> None:
    """The survivors deny what the record of lost samples says: all that the dead had to give was
    given.
    """
    everyone(redone=[], layers=[])(run)


def nobody_names_what_was_lost(run: RunLayout) -> None:
    """As if the dead had given all; but one of them was struck before it had a gradient."""
    nothing_lost(run)
    for rank in range(2):
        run.attempt(0).lost_samples(rank).unlink()
    edit_json(run.failures, lambda entries: [entry | {"moment": "forward"} for entry in entries])


def logged_after_all(run: RunLayout) -> None:
    """A rank whose samples are said to be lost has a line of the step, which it writes only when
    all is applied.
    """
    log = run.attempt(0).rank(3)
    append(
        log,
        line_at(log, 8)
        | {
            key: line_at(run.attempt(0).rank(0), 9)[key]
            for key in ("global_step", "epoch", "cursor_step")
        },
    )


def dies_earlier(run: RunLayout) -> None:
    """The dead rank's log ends two steps sooner than a death between an exchange and its line
    explains.
    """
    edit_lines(run.attempt(0).rank(3), lambda line: line if line["global_step"] < 7 else None)


def dies_before_its_line(run: RunLayout) -> None:
    """Rank 3 dies after the exchange of step 8 and before it logs that step; step 9 is done without
    it.
    """
    edit_lines(run.attempt(0).rank(3), lambda line: line if line["global_step"] < 8 else None)


def dies_in_the_next_step(run: RunLayout) -> None:
    """Rank 2 gave its first bucket in step 9: it must have logged step 8."""
    edit_lines(run.attempt(0).rank(2), lambda line: line if line["global_step"] < 8 else None)


def no_file(kind: str, rank: int, attempt: int = 0) -> Spoil:
    return lambda run: getattr(run.attempt(attempt), kind)(rank).unlink()


def of_attempt(**changes: Any) -> Spoil:
    """Attempt 1 and its order agree on something else."""

    def spoil(run: RunLayout) -> None:
        attempts(run, lambda found: found[1].update(changes))
        keys = {"resumed_from_step": "resume_step", "resumed_from": "resume_from"}
        renamed = {keys.get(name, name): value for name, value in changes.items()}
        edit_json(run.attempt(1).launch, lambda order: order | renamed)

    return spoil


def a_checkpoint_instead(run: RunLayout) -> None:
    """Nobody says whose memory it was."""
    of_attempt(continues=None, memory="")(run)


def elsewhere(run: RunLayout) -> None:
    """The survivors say, all of them and with their lines, that they left behind the step
    before.
    """
    everyone(global_step=8, redone=[])(run)
    for rank in range(2):
        edit_lines(
            run.attempt(0).rank(rank), lambda line: line if line["global_step"] < 9 else None
        )


SPOILT: dict[str, tuple[Spoil, str, str, str]] = {
    "a survivor report is gone": (
        no_file("survivor_report", 1),
        ONCE,
        UNKNOWN,
        "rank 1 of attempt 0 went on and left no survivor report",
    ),
    "no survivor report at all": (
        lambda run: [no_file("survivor_report", rank)(run) for rank in range(2)],
        ONCE,
        INVALID,
        "attempt 1 goes on after step 9 of attempt 0, and no survivor reports",
    ),
    "a last line that not all vouch for": (
        no_file("survivor_report", 1),
        ONCE,
        UNKNOWN,
        "the log ends before step 9 of attempt 0 rank 2",
    ),
    "a torn survivor report": (
        lambda run: tear(run.attempt(0).survivor_report(1)),
        ONCE,
        UNKNOWN,
        "the survivor report of attempt 0 rank 1 is torn",
    ),
    "a damaged survivor report": (
        lambda run: run.attempt(0).survivor_report(1).write_text("no json\n"),
        RECORDS,
        UNKNOWN,
        "logs/attempt-00/recovery_rank1.jsonl cannot be read",
    ),
    "a second survivor report": (
        lambda run: append(
            run.attempt(0).survivor_report(1),
            json.loads(run.attempt(0).survivor_report(1).read_text()),
        ),
        ONCE,
        INVALID,
        "the survivor report of attempt 0 rank 1 has 2 lines",
    ),
    "states that differ": (
        sworn(1, state_digest="cd" * 32),
        ONCE,
        INVALID,
        "survivors differ: ranks 0 and 1 of attempt 0 do not report the same in the state",
    ),
    "layers that differ": (
        sworn(1, layers=[["weight"], ["bias", "skale"]]),
        ONCE,
        INVALID,
        "do not report the same in the layers",
    ),
    "what was done again differs": (
        sworn(1, redone=[]),
        ONCE,
        INVALID,
        "do not report the same in what was done again",
    ),
    "another rank's survivor report": (
        sworn(1, rank=0),
        ONCE,
        INVALID,
        "the survivor report of attempt 0 rank 1 is that of attempt 0 rank 0",
    ),
    "a rank outlived itself not": (
        sworn(1, alive=[0]),
        ONCE,
        INVALID,
        "the survivor report of attempt 0 rank 1 names rank 0 as left",
    ),
    "one that went on is said to be dead": (
        everyone(alive=[0]),
        ONCE,
        INVALID,
        "rank 1 of attempt 0 went on, rank 0 reports that it had died",
    ),
    "a living rank named as lost": (
        redone(lost=[1]),
        ONCE,
        INVALID,
        "names rank 1 as lost, which it says is left",
    ),
    "a dead rank did it again": (redone(left=[0, 1, 2]), ONCE, INVALID, "count 1 time too"),
    "done again by fewer": (
        redone(left=[0]),
        ONCE,
        INVALID,
        "says that rank 0 did step 9 to its end, and that ranks [0, 1] are left",
    ),
    "done again in another step": (
        redone(global_step=8),
        ONCE,
        INVALID,
        "is about step 8, and it left after step 9",
    ),
    "more buckets than layers": (
        redone(buckets=3),
        ONCE,
        INVALID,
        "has bucket 1 of 3 done again and names the layers of 2",
    ),
    "another first bucket": (
        redone(first=2),
        ONCE,
        INVALID,
        "the lost-samples record of attempt 0 names rank 2, which lost nothing",
    ),
    "a step that the lines deny": (
        sworn(1, global_step=10),
        ONCE,
        INVALID,
        "the survivor report of attempt 0 rank 1 claims step 10, its log ends at step 9",
    ),
    "they left elsewhere": (
        elsewhere,
        ONCE,
        INVALID,
        (
            "attempt 1 goes on after step 9 of attempt 0, and those who outlived others left it"
            " after step 8"
        ),
    ),
    "a lost rank logged the step": (
        logged_after_all,
        ONCE,
        INVALID,
        "claims that rank 3 was lost in step 9, which that rank logged",
    ),
    "a dead rank's log ends too soon": (
        dies_earlier,
        ONCE,
        UNKNOWN,
        "the log ends before steps 7 to 9 of attempt 0 rank 3",
    ),
    "one that took part lacks a line": (
        dies_in_the_next_step,
        ONCE,
        UNKNOWN,
        "the log ends before steps 8 to 9 of attempt 0 rank 2",
    ),
    "the survivors deny the lost-samples record": (
        nothing_lost,
        ONCE,
        INVALID,
        "the lost-samples record names samples of step 9, in which nothing was done again",
    ),
    "samples that nobody names": (
        nobody_names_what_was_lost,
        ONCE,
        INVALID,
        "rank 2 was hit in the forward pass of step 9 of attempt 0",
    ),
    "a lost-samples record is gone": (
        no_file("lost_samples", 1),
        ONCE,
        UNKNOWN,
        (
            "the lost-samples record of attempt 0 rank 1 is not there, samples of ranks [2, 3] were"
            " lost in step 9"
        ),
    ),
    "a torn lost-samples record": (
        lambda run: tear(run.attempt(0).lost_samples(0)),
        ONCE,
        UNKNOWN,
        "the lost-samples record of attempt 0 rank 0 is torn",
    ),
    "lost-samples records that differ": (
        lost_samples(lambda line: line | {"cause": "skip"}, (1,)),
        ONCE,
        INVALID,
        "survivors differ: ranks 0 and 1 of attempt 0 do not have the same lost-samples record",
    ),
    "a line of the lost-samples record is gone": (
        lost_samples(lambda line: None if line["ranks"] == [3] else line),
        ONCE,
        INVALID,
        "attempt 0: step 9: 2 samples",
    ),
    "a sample is left out of the lost-samples record": (
        lost_samples(lambda line: first_sample(line, lambda _: [])),
        ONCE,
        INVALID,
        "count 1 time too seldom on weight",
    ),
    "a sample too many": (
        lost_samples(lambda line: first_sample(line, lambda one: [one, one])),
        ONCE,
        INVALID,
        "count 1 time too often on weight",
    ),
    "another sample": (
        lost_samples(lambda line: first_sample(line, lambda one: [(one + 1) % 80])),
        ONCE,
        INVALID,
        "attempt 0: step 9: 2 samples",
    ),
    "a layer is left out": (
        lost_samples(
            lambda line: line | {"layers": line["layers"][:-1]} if line["ranks"] == [2] else line
        ),
        ONCE,
        INVALID,
        "too seldom on scale",
    ),
    "a layer too many": (
        lost_samples(
            lambda line: (
                line | {"layers": ["weight", *line["layers"]]} if line["ranks"] == [2] else line
            )
        ),
        ONCE,
        INVALID,
        "too often on weight",
    ),
    "a living rank on record as lost": (
        lost_samples(lambda line: line | {"ranks": [1]} if line["ranks"] == [2] else line),
        ONCE,
        INVALID,
        "the lost-samples record of attempt 0 names rank 1, which was left",
    ),
    "another step on record as lost": (
        lost_samples(lambda line: line | {"global_step": 8}),
        ONCE,
        INVALID,
        "step 8 is on record and was never due",
    ),
    "another effect": (
        lost_samples(lambda line: line | {"effect": "repeated"}),
        ONCE,
        INVALID,
        "too seldom",
    ),
    "a death that nobody dealt": (
        lambda run: attempts(run, lambda found: found[0].update(signal=11)),
        FAILURES,
        INVALID,
        "is not how attempt 0 survived",
    ),
    "another rank's death": (
        lambda run: attempts(run, lambda found: found[0].update(rank=0)),
        FAILURES,
        INVALID,
        "is not how attempt 0 survived: rank 0",
    ),
    "two from one": (
        of_attempt(origins=[0, 0]),
        RECORDS,
        INVALID,
        "attempt 1 says that its ranks were [0, 0] of the 4 ranks of attempt 0",
    ),
    "from a rank that never was": (
        of_attempt(origins=[0, 4]),
        RECORDS,
        INVALID,
        "attempt 1 says that its ranks were [0, 4] of the 4 ranks of attempt 0",
    ),
    "fewer origins than ranks": (
        of_attempt(origins=[0]),
        RECORDS,
        INVALID,
        "attempt 1 of 2 ranks names the origins of 1",
    ),
    "one joined that no spare was": (
        of_attempt(joined=[1]),
        RECORDS,
        INVALID,
        "ranks [1] joined, the configuration has no spares",
    ),
    "a dead one went on": (
        of_attempt(origins=[0, 2]),
        ONCE,
        INVALID,
        "rank 2 of attempt 0 went on, rank 0 reports that it had died",
    ),
    "an order of other origins": (
        lambda run: edit_json(run.attempt(1).launch, lambda order: order | {"origins": [1, 0]}),
        RECORDS,
        INVALID,
        "attempt 1 was ordered origins (1, 0), supervisor.json says (0, 1)",
    ),
    "nobody goes on with it": (
        a_checkpoint_instead,
        RECORDS,
        INVALID,
        "attempt 0 survived its dead, and attempt 1 does not go on with it",
    ),
    "it died after all": (
        lambda run: attempts(run, lambda found: found[0].update(outcome="died")),
        RECORDS,
        INVALID,
        "attempt 0 died under lossy_forward",
    ),
    "another memory": (
        of_attempt(memory="hearsay"),
        RECORDS,
        INVALID,
        "attempt 1 continues attempt 0 from hearsay memory",
    ),
    "another attempt's memory": (
        of_attempt(continues=1),
        ONCE,
        INVALID,
        "attempt 1 goes on after step 9 of attempt 1, which is not before it",
    ),
    "after another step": (
        of_attempt(resumed_from_step=8),
        ONCE,
        INVALID,
        "rank 0 of attempt 0 left after step 9, attempt 1 goes on after step 8",
    ),
    "a forged line after the survival": (
        lambda run: edit_lines(run.attempt(1).rank(1), at_step(11, seconds=0.5)),
        RECORDS,
        INVALID,
        "the lines of rank 1 up to step 12 are not those",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_survival_is_caught_by_the_promise_it_broke(lossy: RunLayout, name: str) -> None:
    spoil, promise, status, words = SPOILT[name]
    assert_caught(lossy, spoil, promise, words, status)


def test_one_that_died_before_it_logged_a_whole_step_owes_no_line_of_it(lossy: RunLayout) -> None:
    dies_before_its_line(lossy)
    assert found(verify_run(lossy.root), ONCE).status == VALID


def lossy_rollback(run: RunLayout) -> None:
    """Survivors of a rollback say that they finished the step without a part of what the dead had
    to give.
    """
    again = {"global_step": 15, "first": 1, "buckets": 2, "lost": [0], "left": [1], "seconds": 0.1}
    sworn(1, 1, redone=[again], layers=[["weight"], ["bias", "scale"]])(run)


ROLLED_BACK: dict[str, tuple[Spoil, str, str, str]] = {
    "samples given up": (
        lossy_rollback,
        ONCE,
        INVALID,
        "went on without the samples of rank 0 in step 15, which its recovery does not allow",
    ),
    "a last line that nobody vouches for": (
        no_file("survivor_report", 1, 1),
        ONCE,
        INVALID,
        "and no survivor reports that it came so far",
    ),
    "the size did not stay": (
        of_attempt(world_size=1, origins=[0], joined=[]),
        RECORDS,
        INVALID,
        "attempt 1 had 1 rank, the configuration says 2",
    ),
    "a newcomer in a living rank's place": (
        of_attempt(origins=[0, 0]),
        RECORDS,
        INVALID,
        "newcomers took the places [0], and that ranks [0] stayed",
    ),
    "all are newcomers": (
        of_attempt(joined=[0, 1]),
        RECORDS,
        INVALID,
        "attempt 1 took over ranks, and all of its own are newcomers",
    ),
    "a snapshot that a checkpoint outdid": (
        of_attempt(memory="snapshot", resumed_from_step=5),
        NO_BAD,
        INVALID,
        "went on from memory after step 5 although step 6 was committed",
    ),
}


@pytest.mark.parametrize("name", ROLLED_BACK)
def test_a_spoilt_rollback_is_caught(rollback: RunLayout, name: str) -> None:
    spoil, promise, status, words = ROLLED_BACK[name]
    assert_caught(rollback, spoil, promise, words, status)


@pytest.mark.parametrize(
    ("entry", "why"), [("kill@20:1", "1 rank did step 20"), ("kill@9:1", "2 ranks did step 9")]
)
def test_a_planned_failure_of_a_rank_that_nobody_replaced_is_excused_and_told(
    tmp_path: Path, entry: str, why: str
) -> None:
    """A plan that its own deaths leave without a victim is refused: the death here was not
    planned.
    """
    verdict = verify_run(
        SurvivedBuilder(tmp_path / "lossy", LOSSY, (Death(9),), unmet=(entry,), planned=False)
        .build()
        .root
    )
    assert verdict.status == VALID, render(verdict)
    assert (
        f"entry 0 did not fire: rank 1 had died and nobody took its place, {why}"
        in found(verdict, FAILURES).evidence
    )


@pytest.mark.parametrize(("entry", "status"), [("kill@0.7s:1", VALID), ("kill@0.3s:1", INVALID)])
def test_a_failure_by_the_clock_is_excused_where_it_came_when_its_rank_was_no_more(
    tmp_path: Path, entry: str, status: str
) -> None:
    """Attempt 0 had the rank for 1.57 s, the run took 2.36 s; a strike may be a second late."""
    run = SurvivedBuilder(
        tmp_path / "lossy", LOSSY, (Death(9),), unmet=(entry,), planned=False
    ).build()
    assert found(verify_run(run.root), FAILURES).status == status


def test_one_that_was_replaced_is_owed_its_failure(tmp_path: Path) -> None:
    verdict = verify_run(
        SurvivedBuilder(tmp_path / "lossy", LOSSY, (Death(9, spares=1),), unmet=("kill@20:1",))
        .build()
        .root
    )
    finding = found(verdict, FAILURES)
    assert finding.status == INVALID and "entries [1] never fired" in finding.message


def test_a_death_that_nobody_planned_is_told(tmp_path: Path) -> None:
    run = SurvivedBuilder(tmp_path / "lossy", LOSSY, (Death(9),), planned=False).build()
    assert (
        "attempt 0 outlived an unplanned death: rank 1, exit code None, signal 9"
        in found(verify_run(run.root), FAILURES).evidence
    )


@pytest.mark.parametrize(("rank", "status"), [(1, VALID), (0, INVALID)])
def test_what_the_others_buffers_are_after_a_step_is_not_held_against_stock_ddp(
    recorded: Path, tmp_path: Path, rank: int, status: str
) -> None:
    """Ranks that may outlive others end each step with the leader's; stock DDP makes them equal in
    the next forward pass.
    """
    RunBuilder(tmp_path / "clean", config_of("clean")).build()
    shutil.copytree(recorded / "2" / "rollback", tmp_path / "rollback", symlinks=True)
    for name, digest in (("clean", "a"), ("rollback", "b")):
        edit_lines(
            RunLayout(tmp_path / name).attempt(0).rank(rank), at_step(5, state_digest=digest * 64)
        )
    verdict = verify_run(tmp_path / "rollback")
    assert found(verdict, TRAJECTORY).status == status, render(verdict)
    assert status == VALID or f"step 5 at the latest, component state (rank {rank})" in render(
        verdict
    )


def test_damage_to_what_nobody_went_back_to_is_not_owed(tmp_path: Path) -> None:
    run = build_rollback(tmp_path, unmet=("corrupt@14.rest",))
    RunBuilder(tmp_path / "ref", config_of("ref")).build()
    verdict = verify_run(run.root)
    assert verdict.status == VALID, render(verdict)
    assert (
        "entry 2 did not fire: no attempt after step 14 chose a checkpoint"
        in found(verdict, FAILURES).evidence
    )


def unsubmitted(run: RunRecords) -> RunRecords:
    lines = changed.kept(
        run.logs(0).checkpoints, lambda line: None if line.global_step == 6 else line
    )
    return changed.left(run, 0, checkpoints=lines)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda run: run, VALID),
        (unsubmitted, INVALID),
        # not due; that its journal ends early may be; a third death in its save
        (lambda run: configured(unsubmitted(run), checkpoint=CheckpointConfig(every=7)), VALID),
        (lambda run: changed.sessions(unsubmitted(run), 0, ended_at=None), UNKNOWN),
        (lambda run: changed.left(unsubmitted(run), 2, ranks={}, final=None), VALID),
        # a snapshot is chosen only where no checkpoint is as new
        (lambda run: changed.attempts(run, 2, memory=SNAPSHOT), INVALID),
        (lambda run: changed.attempts(run, 2, memory=""), VALID),
    ],
)
def test_who_goes_on_from_memory_saves_the_checkpoint_that_it_owes(
    tmp_path: Path, change: changed.Records, status: str
) -> None:
    """Rank 1 dies twice in step 7: attempts 1 and 2 go on after step 6, and attempt 1 does none."""
    deaths = (Death(7, spares=1), Death(7, spares=1))
    run = load(SurvivedBuilder(tmp_path / "rollback", ROLLBACK, deaths).build())
    words = "attempt 2 went on from memory after step 6, whose checkpoint it owed, and submitted"
    finding = checkpoints_accounted(Case(change(run)))
    assert (finding.status if told(finding, words) else VALID) == status, finding


def test_a_lost_samples_record_that_is_nowhere_is_named_ahead_of_what_follows_from_it(
    recorded: Path, tmp_path: Path
) -> None:
    run = SurvivedBuilder(tmp_path / "lossy", LOSSY, (Death(9, first=(0,), spares=1),)).build()
    case = Case(load(run), load(RunLayout(recorded / "2" / "ref")))
    finding = same_trajectory(replace(case, run=changed.left(case.run, 0, lost_sample_records={})))
    cause = "no lost-samples record says what the survivors of attempt 0 report"
    assert finding.message.startswith(
        f"Broke promise: {TRAJECTORY} - {cause}, that samples of rank 1 were lost in step 9:"
        " the first differing step is step 10"
    )
    assert cause not in same_trajectory(case).message
