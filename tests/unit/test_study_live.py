"""`live-recovery`: what it plans, that each of its promises is seen broken, and that each gate can
fail.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.build import build
from ecrl_cli.config.fault_spec import parse
from ecrl_cli.config.identity import reference_id
from ecrl_cli.config.studies import LiveRecovery
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.failures.plan import plan
from ecrl_cli.records.events import Attempt, InjectedFault, PlannedFailure, RankLine, ResumedFrom
from ecrl_cli.records.survivor_records import LostSamples, RedoneStep
from ecrl_cli.records.survivor_records import SurvivorReport as Spoken
from ecrl_cli.studies.frame.study import Record, StudyContext
from ecrl_cli.studies.training import live_invariants
from ecrl_cli.studies.training.live import PLANTED, STUDY, TARGET, LiveRunSpec, of_facts, present
from ecrl_cli.studies.training.live_invariants import AttemptHistory, FaultEffect, RunHistory
from ecrl_cli.studies.training.live_oracle import can_tell, foretold
from tests.studies import concluded, failed

RUN_SPEC = LiveRunSpec("lossy_forward", 3, 0, "none", 0.0)


findings = partial(concluded, STUDY)


def study_of(folder: Path, **keys: Any) -> Any:
    return STUDY.open(StudyContext(StudyConfig(LiveRecovery(**keys)), folder))


def test_the_matrix_crosses_recoveries_ranks_and_who_dies_and_everything_can_strike(
    tmp_path: Path,
) -> None:
    trials = study_of(tmp_path, trials=150, planted=False).plan()
    fixed = [trial for trial in trials if trial.facts["arm"] == "matrix"]
    leaders = {
        (t.facts["recovery"], t.facts["world_size"], ":0" in t.facts["entries"][0])
        for t in fixed
        if len(t.facts["entries"]) == 1
    }
    assert len(fixed) >= 30 and len({cell for cell in leaders if cell[1] in (2, 3, 4)}) == 30
    entries = [parse(entry) for trial in trials for entry in trial.facts["entries"]]
    moments = Counter("backward" if entry.what == "backward" else entry.moment for entry in entries)
    assert (
        min(
            moments[each]
            for each in (
                "boundary",
                "forward",
                "backward",
                "optimizer",
                "capture",
                "save",
                "load",
                "rendezvous",
                "start",
            )
        )
        > 0
    )
    assert {len(trial.facts["entries"]) for trial in trials} >= {1, 2, 3, 4}
    assert {entry.what for entry in entries} == {
        "kill",
        "exit",
        "raise",
        "backward",
        "writer",
    } and any(entry.who == "all" for entry in entries)
    for trial in trials[:60]:
        spec, typed = of_facts(trial.facts)
        config = build(spec.keys(typed))
        assert (
            len(plan(config)) == len(typed)
            and config.recovery.name == spec.recovery
            and config.target_steps == TARGET
        )
        assert reference_id(config) == reference_id(build(spec.reference))
    assert [trial.facts for trial in study_of(tmp_path, trials=150, planted=False).plan()] == [
        trial.facts for trial in trials
    ]


def test_only_ranks_that_are_surely_there_are_struck(tmp_path: Path) -> None:
    assert [
        present(replace(RUN_SPEC, spares=spares), ("kill@2:0", "kill@5:0+1"))
        for spares in (0, 1, 2, 3)
    ] == [3, 1, 2, 3], "all dead: all anew"
    assert (
        present(
            replace(RUN_SPEC, recovery="immediate_rollback", spares=1), ("kill@2:0", "kill@4:0")
        )
        == 3
    )
    for trial in study_of(tmp_path, trials=150, planted=False).plan():
        spec, typed = of_facts(trial.facts)
        for number, entry in enumerate(map(parse, typed)):
            before = tuple(
                each
                for each in typed[:number]
                if parse(each).step < entry.step or entry.moment in ("load", "rendezvous")
            )
            assert entry.who == "all" or max(entry.who or (0,)) < present(spec, before), (
                spec,
                typed,
            )


def line(rank: int, step: int, attempt: int, digest: str, world_size: int = 3) -> RankLine:
    return RankLine(
        step, 0, step - 1, rank, world_size, "", 0, 0.5, attempt, 0.1, 0.0, 0.0, state_digest=digest
    )


def history() -> RunHistory:
    """Of three ranks rank 1 is killed in the backward pass of step 2, after the first of two
    buckets; the others finish it and do step 3.
    """
    config = build(RUN_SPEC.keys(("kill@2.backward/0.5:1",)))
    planned = PlannedFailure(0, "kill", 1, 2, "backward", share=0.5)
    fault = FaultEffect(planned, InjectedFault(0, "kill", 1, 2, 0, 0.0, 0.0, 2), frozenset((1,)))
    redone = (RedoneStep(2, 1, 2, (1,), (0, 2), 0.0),)
    spoken = {
        rank: Spoken(2, 0, rank, (0, 2), redone, (("last",), ("first", "second")), "two", 0.0, 0.0)
        for rank in (0, 2)
    }
    lines = {rank: (line(rank, 1, 0, "one"), line(rank, 2, 0, "two")) for rank in (0, 2)} | {
        1: (line(1, 1, 0, "one"),)
    }
    attempts = (
        Attempt(0, 3, None, 9, 1, "survived"),
        Attempt(
            1,
            2,
            outcome="completed",
            resumed_from_step=2,
            continues=0,
            memory="survivors",
            origins=(0, 2),
        ),
    )
    later = AttemptHistory(
        attempts[1], {rank: (line(rank, 3, 1, "three", 2),) for rank in (0, 1)}, {}, {}, ()
    )
    told = RunHistory(
        config, 1797, (AttemptHistory(attempts[0], lines, spoken, {}, (fault,)), later)
    )
    lost = LostSamples(
        2, "lost", tuple(map(int, told.shard(2, 1, 3))), ("first", "second"), (1,), "lossy_forward"
    )
    return retold(told, lost_samples={0: (lost,), 2: (lost,)})


def retold(told: RunHistory, number: int = 0, **changes: Any) -> RunHistory:
    """With another logs `number`."""
    attempts = list(told.attempts)
    attempts[number] = replace(attempts[number], **changes)
    return replace(told, attempts=tuple(attempts))


def test_a_run_that_is_well_is_found_well() -> None:
    assert {name: asked(history()) for name, asked in live_invariants.LOOKS.items()} == {
        "apart": "",
        "restarted": "",
        "ledger": "",
    }


def spoken(told: RunHistory, rank: int, **changes: Any) -> RunHistory:
    said = dict(told.attempts[0].survivor_reports)
    return retold(told, survivor_reports=said | {rank: replace(said[rank], **changes)})


def test_survivors_that_are_not_alike_are_apart() -> None:
    told, lines = history(), history().attempts[0].lines
    assert "differ after step 2" in live_invariants.apart(
        retold(told, lines=lines | {2: (lines[2][0], line(2, 2, 0, "other"))})
    )
    assert "state_digest" in live_invariants.apart(spoken(told, 2, state_digest="other"))
    assert "alive" in live_invariants.apart(spoken(told, 2, alive=(0, 1, 2)))
    assert "redone" in live_invariants.apart(spoken(told, 0, redone=()))
    assert "logged" in live_invariants.apart(
        spoken(spoken(told, 0, state_digest="rote"), 2, state_digest="rote")
    ), "alike, and not what was logged"
    assert "left no survivor report" in live_invariants.apart(
        retold(told, survivor_reports={0: told.attempts[0].survivor_reports[0]})
    )
    assert "was killed and went on" in live_invariants.apart(
        retold(told, faults=(replace(told.attempts[0].faults[0], ranks=frozenset((2,))),))
    )
    late = replace(told.attempts[1].attempt, resumed_from_step=1)
    assert "goes on after step 1" in live_invariants.apart(retold(told, 1, attempt=late))


def test_what_goes_back_to_a_checkpoint_need_not_say_what_state_it_gives_up() -> None:
    told = spoken(spoken(history(), 0, state_digest=""), 2, state_digest="")
    back = replace(
        told,
        config=replace(
            told.config, recovery=replace(told.config.recovery, name="checkpoint_restart")
        ),
    )
    assert "logged" in live_invariants.apart(told) and live_invariants.apart(back) == ""


def anew(told: RunHistory, outcome: str = "died") -> RunHistory:
    """All began anew from a checkpoint."""
    told = retold(told, attempt=replace(told.attempts[0].attempt, outcome=outcome))
    after = Attempt(
        1,
        3,
        outcome="completed",
        resumed_from=ResumedFrom("checkpoints/step_00000001", "0"),
        resumed_from_step=1,
    )
    return retold(told, 1, attempt=after)


def test_a_restart_is_excused_only_where_nobody_could_go_on() -> None:
    told = anew(history())
    assert "ranks [0, 2] were left" in live_invariants.restarted(told)
    assert "ranks [0, 2] were left" in live_invariants.restarted(anew(history(), "hung"))
    every = replace(told.attempts[0].faults[0], ranks=frozenset((0, 1, 2)))
    assert live_invariants.restarted(retold(told, faults=(every,))) == "", "nobody was left"
    odd = replace(told, config=replace(told.config, global_batch=141))
    assert live_invariants.restarted(odd) == "", "two do not share 141 samples"
    assert (
        live_invariants.restarted(
            replace(told, config=build(LiveRunSpec("checkpoint_restart", 3, 1, "none", 0.0).keys()))
        )
        == ""
    )
    back = build(LiveRunSpec("immediate_rollback", 3, 1, "none", 0.0).keys())
    assert live_invariants.restarted(replace(told, config=back)), "one spare was enough"
    two = replace(told.attempts[0].faults[0], ranks=frozenset((0, 1)))
    assert live_invariants.restarted(retold(replace(told, config=back), faults=(two,))) == "", (
        "one spare for two"
    )
    taken = replace(told.attempts[0].attempt, memory="survivors", joined=(2,), origins=(0, 1, 2))
    assert live_invariants.restarted(retold(replace(told, config=back), attempt=taken)) == "", (
        "the spare's successor need not be ready"
    )
    counted = retold(history(), attempt=replace(history().attempts[0].attempt, outcome="died"))
    assert "ended as died, and its ranks went on" in live_invariants.restarted(counted)


@pytest.mark.parametrize(("strategy", "killed"), [("blocking", {0}), ("overlapped", set())])
def test_a_killed_writer_is_rank_0_where_rank_0_writes(strategy: str, killed: set[int]) -> None:
    """One rank is left of two when the writer of step 8 is killed: alone under blocking checkpoints
    it leaves nobody who could go on.
    """
    planned, fired = (
        PlannedFailure(0, "writer", 0, 8, "save", point="before_rename"),
        InjectedFault(0, "writer", 0, 8, 0, 0.0, 0.0, 8),
    )
    fault = live_invariants.effect(
        build(LiveRunSpec("redistribute", 2, 0, strategy, 0.0).keys()), planned, fired
    )
    assert fault.ranks == killed
    told = anew(history())
    alone = retold(told, attempt=replace(told.attempts[0].attempt, world_size=1), faults=(fault,))
    assert bool(live_invariants.restarted(alone)) == (not killed)


def test_who_died_while_it_started_leaves_those_who_hold_the_state() -> None:
    """Rank 1 is a newcomer that has not been given the state when rank 0 and 2, who have it,
    die.
    """
    told = anew(history())
    attempt = replace(told.attempts[0].attempt, joined=(1,), memory="survivors", origins=(0, 1, 2))
    loading = replace(
        told.attempts[0].faults[0],
        planned=PlannedFailure(0, "kill", 0, 2, "load"),
        ranks=frozenset((0, 2)),
    )
    assert live_invariants.restarted(retold(told, attempt=attempt, faults=(loading,))) == ""
    assert live_invariants.restarted(
        retold(told, attempt=attempt, faults=(replace(loading, ranks=frozenset((0,))),))
    ), "rank 2 has it"


def test_a_false_lost_samples_record_is_found() -> None:
    told = history()
    (lost,) = told.attempts[0].lost_samples[0]
    fewer, more = (
        replace(lost, samples=lost.samples[:-1]),
        replace(lost, layers=(*lost.layers, "last")),
    )
    assert "was lost and is not on record (2 like it)" in live_invariants.lost_samples(
        retold(told, lost_samples=dict.fromkeys((0, 2), (fewer,)))
    )
    assert "is on record as lost and was not" in live_invariants.lost_samples(
        retold(told, lost_samples=dict.fromkeys((0, 2), (more,)))
    )
    assert "lost-samples records differ" in live_invariants.lost_samples(
        retold(told, lost_samples={0: (lost,), 2: (fewer,)})
    )
    back = replace(told, config=build(LiveRunSpec("immediate_rollback", 3, 1, "none", 0.0).keys()))
    assert "something was lost, with immediate_rollback" in live_invariants.lost_samples(back)


def test_who_dies_in_backward_cannot_have_contributed_whatever_is_said() -> None:
    told = retold(history(), lost_samples={})
    said = {
        rank: replace(each, redone=(), layers=())
        for rank, each in told.attempts[0].survivor_reports.items()
    }
    assert "cannot have been applied" in live_invariants.lost_samples(
        retold(told, survivor_reports=said)
    )
    late = FaultEffect(
        PlannedFailure(0, "kill", 1, 2, "optimizer", share=0.5),
        told.attempts[0].faults[0].fired,
        frozenset((1,)),
    )
    assert (
        live_invariants.lost_samples(retold(told, survivor_reports=said, faults=(late,))) == ""
    ), "its gradients were with all"


def test_where_two_ranks_end_is_foretold_and_depends_on_who_contributed() -> None:
    told = history()
    config = build(replace(RUN_SPEC, world_size=2, dropout=0.2).keys(("kill@2.backward/0.5:1",)))
    before, after = told.attempts
    lines = {0: (line(0, 1, 0, ""), line(0, 2, 0, ""))}
    names = (("11.weight", "11.bias"), ("0.weight",))
    spoken = {
        0: replace(
            before.survivor_reports[0], redone=(RedoneStep(2, 1, 2, (1,), (0,), 0.0),), layers=names
        )
    }
    two = replace(
        told,
        config=config,
        attempts=(
            replace(
                before,
                attempt=replace(before.attempt, world_size=2),
                lines=lines,
                survivor_reports=spoken,
            ),
        ),
    )
    last = AttemptHistory(
        replace(after.attempt, world_size=1, origins=(0,)), {0: (line(0, 3, 1, ""),)}, {}, {}, ()
    )
    two = replace(two, attempts=(*two.attempts, last))
    assert can_tell(two) and not can_tell(told)
    other = {0: replace(spoken[0], redone=(RedoneStep(2, 0, 2, (1,), (0,), 0.0),))}
    assert foretold(two) != foretold(retold(two, survivor_reports=other))
    led = replace(two.attempts[1], attempt=replace(after.attempt, world_size=1, origins=(1,)))
    gone = {1: replace(spoken[0], rank=1, redone=(RedoneStep(2, 2, 2, (0,), (1,), 0.0),))}
    nobody_says = retold(replace(two, attempts=(two.attempts[0], led)), survivor_reports=gone)
    assert len(foretold(nobody_says)) == 2, "the buffers are the dead leader's, or the survivor's"


FACTS: dict[str, Any] = {"arm": "random", **RUN_SPEC.__dict__, "entries": ["kill@5.backward/0.1:0"]}
VALID: dict[str, Any] = {
    "outcome": "valid",
    "code": 0,
    "fired": [["kill", "backward"]],
    "attempts": 2,
    "resized": 1,
    "why": "",
    "seen": "",
}
VALID |= {"went_on": 1, "joined": 0, "redone": 1, "lost": 48}
RUN = Record("run/0000", FACTS, VALID, 0.5)
BUG = Record(
    "planted/x",
    {"arm": "planted", "bug": "x"},
    {"found": True, "runs": 1, "by": "apart", "beside": ""},
    0.5,
)


def test_every_gate_can_fail() -> None:
    config = LiveRecovery(recoveries=("lossy_forward",))
    assert failed(findings(config, [RUN, BUG])) == {}
    bad = VALID | {
        "outcome": "apart",
        "why": "differ",
        "replay": "ecrl study x 'trial=run/0000'",
        "alone": "ecrl train y",
    }
    said = failed(findings(config, [replace(RUN, found=bad), BUG]))["valid"]
    assert "ecrl study x 'trial=run/0000'" in said and "ecrl train y" in said
    assert failed(findings(config, [RUN, replace(BUG, found=BUG.found | {"found": False})]))[
        "planted"
    ].endswith("not x")
    assert (
        "never outlived others with lossy_forward"
        in failed(findings(config, [replace(RUN, found=VALID | {"went_on": 0})]))["alive"]
    )
    assert "not boundary" in failed(findings(replace(config, trials=200), [RUN]))["phases"], (
        "as many as the soak runs"
    )
    assert "0 of 1 runs" in "\n".join(findings(config, [RUN]).notes)


def test_the_search_for_a_planted_bug_says_whether_one_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = iter(("valid", "idle", "apart"))
    monkeypatch.setattr(
        "ecrl_cli.studies.training.live.play",
        lambda *given: {"outcome": next(outcomes), "why": "they differ", "seen": ""},
    )
    planted = [trial for trial in study_of(tmp_path).plan() if trial.facts["arm"] == "planted"]
    assert [trial.facts["bug"] for trial in planted] == list(PLANTED)
    assert study_of(tmp_path).run(planted[0]) == {
        "found": True,
        "runs": 3,
        "by": "apart: they differ",
        "beside": "",
    }
    monkeypatch.setattr(
        "ecrl_cli.studies.training.live.play",
        lambda *given: {"outcome": "valid", "why": "", "seen": ""},
    )
    assert study_of(tmp_path).run(planted[0])["found"] is False


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_runs_whose_ranks_die_come_out_well(tmp_path: Path) -> None:
    """With one launcher; nothing of them is left."""
    study = study_of(tmp_path)
    trials = {trial.key: trial for trial in study.plan()}
    # attempts, into which survivors took their memory along; places taken by spares; steps finished
    # without the dead; samples lost
    due = {
        "matrix/lossy_forward/2/leader": (2, 1, 0, 1, 72),
        "matrix/immediate_rollback/while_recovering": (3, 2, 3, 0, 0),
        "matrix/checkpoint_restart/two_at_once": (2, 0, 2, 0, 0),
        "matrix/redistribute/4/leader": (2, 1, 0, 0, 0),
        "matrix/skip/2/another": (2, 1, 0, 1, 144),
    }
    try:
        for key, counted in due.items():
            found = study.run(trials[key])
            assert found["outcome"] == "valid", found
            assert (
                tuple(found[name] for name in ("attempts", "went_on", "joined", "redone", "lost"))
                == counted
            ), (key, found)
    finally:
        study.close()
    assert list((tmp_path / "bench").iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_every_bug_planted_into_a_live_recovery_is_found(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    found = {
        trial.facts["bug"]: study.run(trial)["found"]
        for trial in study.plan()
        if trial.facts["arm"] == "planted"
    }
    assert found == dict.fromkeys(PLANTED, True)
