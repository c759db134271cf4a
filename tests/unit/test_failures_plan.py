"""The plan is data: complete, refused where it cannot strike, each entry once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.codec import encode
from ecrl_cli.config.failure_kinds import FAILURE_KINDS
from ecrl_cli.config.fault_spec import FAILURES
from ecrl_cli.config.plan_kinds import AT_STEPS, plan_kind
from ecrl_cli.config.schema import (
    CheckpointConfig,
    ElasticConfig,
    FailureConfig,
    RecoveryConfig,
    RunConfig,
    SupervisionConfig,
    VariantConfig,
    WriteModeConfig,
)
from ecrl_cli.errors import ConfigError, RecordError
from ecrl_cli.failures.plan import describe, pending, plan, read_plan
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.layout import RunLayout


def config(kind: str, rank: int = 0, **more: object) -> RunConfig:
    return replace(RunConfig(world_size=3, failure=FailureConfig(kind, (40, 75), rank)), **more)  # type: ignore[arg-type]


def test_an_entry_per_step_with_its_victim() -> None:
    assert plan(config("kill", 2)) == (
        PlannedFailure(0, "kill", 2, 40),
        PlannedFailure(1, "kill", 2, 75),
    )
    assert [entry.rank for entry in plan(config("exit"))] == [0, 0]


def test_no_entry_where_none_is_wanted() -> None:
    assert plan(config("none")) == ()
    assert plan(config("kill", 1, variant=VariantConfig("ref", failures=False))) == ()


@pytest.mark.parametrize(
    ("kind", "rank", "fact"),
    [
        ("kill", 3, "rank 3 does not exist with 3 ranks"),
        ("exit", 1, "rank 0"),
        ("meteor", 0, "unknown"),
    ],
)
def test_what_cannot_strike_is_refused(kind: str, rank: int, fact: str) -> None:
    with pytest.raises(ConfigError, match=fact):
        plan(config(kind, rank))


def test_every_entry_is_described() -> None:
    lines = describe(plan(config("kill", 2)))
    assert lines[1] == "failure 2 of 2: rank 2 is killed by SIGKILL, without a flush, after step 75"
    assert describe(()) == ("no failures planned",)


def drawn(mean: float = 20.0, seed: int = 1337, **more: Any) -> tuple[PlannedFailure, ...]:
    failure = FailureConfig("mtbf", mtbf_steps=mean)
    return plan(replace(RunConfig(seed=seed, world_size=4, failure=failure), **more))


def test_random_failures_are_kills_of_every_rank_in_order_below_the_target() -> None:
    planned = drawn(2.0)
    steps = [entry.global_step for entry in planned]
    assert steps == sorted(set(steps)) and steps[0] >= 1 and steps[-1] < RunConfig().target_steps
    assert {entry.kind for entry in planned} == {"kill"} and [
        entry.index for entry in planned
    ] == list(range(len(planned)))
    assert {entry.rank for entry in planned} == {0, 1, 2, 3}


def test_every_arm_of_a_seed_meets_the_same_random_failures_and_another_seed_others() -> None:
    assert drawn() == drawn(
        checkpoint=CheckpointConfig(strategy="overlapped"), variant=VariantConfig("ovl")
    )
    assert drawn() != drawn(seed=2027)
    assert drawn(variant=VariantConfig("ref", failures=False)) == ()


def test_the_target_is_never_struck() -> None:
    """Nothing would be left to recover. A mean of one step strikes most steps."""
    assert all(
        entry.global_step < target
        for target in range(1, 60)
        for entry in drawn(1.0, target_steps=target)
    )
    assert drawn(1.0, target_steps=2)


def test_the_mean_distance_is_the_one_asked_for() -> None:
    """10,000 draws of an exponential: the mean is within 5 % at five standard errors."""
    count = len(drawn(100.0, target_steps=1_000_000))
    assert abs(count - 10_000) < 500


def test_half_the_mean_strikes_at_half_the_distances() -> None:
    far, near = (drawn(mean, target_steps=100_000) for mean in (400.0, 200.0))
    assert all(abs(a.global_step - 2 * b.global_step) <= 2 for a, b in zip(far, near, strict=False))


def test_a_mean_in_seconds_plans_as_many_kills_as_there_may_be_restarts() -> None:
    failure, supervision = FailureConfig("mtbf", mtbf_s=30.0), SupervisionConfig(max_restarts=400)
    planned = plan(RunConfig(world_size=4, failure=failure, supervision=supervision))
    instants = [entry.seconds for entry in planned]
    assert (
        len(planned) == 400
        and instants == sorted(instants)
        and {entry.rank for entry in planned} == {0, 1, 2, 3}
    )
    assert {(entry.kind, entry.moment, entry.global_step) for entry in planned} == {
        ("kill", "wall", 0)
    }
    assert abs(instants[-1] / 400 - 30.0) < 8.0  # five standard errors


def listed(*entries: str, **more: Any) -> tuple[PlannedFailure, ...]:
    settings = {
        "world_size": 3,
        "target_steps": 100,
        "checkpoint": CheckpointConfig(every=10),
    } | more
    return plan(replace(RunConfig(failure=FailureConfig("listed", entries=entries)), **settings))


def test_what_was_left_out_is_the_kinds_own() -> None:
    planned = listed(
        "raise@9:1",
        "slow_rank@9:2",
        "writer@9",
        "nan@9",
        "backward@9:1",
        "kill@9:0+2",
        "kill@9:all",
        "kill@2.5s:1",
    )
    assert [(p.kind, p.rank, p.moment, p.share, p.point, p.seconds) for p in planned] == [
        ("raise", 1, "forward", 0.5, "", 0.0),
        ("slow_rank", 2, "forward", 0.5, "", 0.05),
        ("writer", 0, "save", 0.0, "half_part", 0.0),
        ("nan", 0, "forward", 1.0, "", 0.0),
        ("kill", 1, "backward", 0.5, "", 0.0),
        ("kill", 0, "boundary", 0.0, "", 0.0),
        ("kill", 0, "boundary", 0.0, "", 0.0),
        ("kill", 1, "wall", 0.0, "", 2.5),
    ]
    assert [p.others for p in planned[5:7]] == [(2,), (1, 2)] and [
        p.index for p in planned
    ] == list(range(8))


@pytest.mark.parametrize(
    ("every", "step", "refused"),
    [(1, 99, False), (5, 95, False), (5, 96, True), (20, 89, False), (20, 91, True)],
)
def test_in_memory_a_capture_is_that_of_the_next_snapshot(
    every: int, step: int, refused: bool
) -> None:
    """Or of the next checkpoint, where these are more frequent."""
    checkpoint = CheckpointConfig(strategy="in_memory", every=10, memory_every=every)
    if refused:
        with pytest.raises(ConfigError, match=f"is due between step {step} and the target 100"):
            listed(f"kill@{step}.capture", checkpoint=checkpoint)
        return
    assert [
        (each.moment, each.global_step)
        for each in listed(f"kill@{step}.capture", checkpoint=checkpoint)
    ] == [("capture", step)]


def test_corrupt_is_a_kill_and_damage_before_the_next_attempt() -> None:
    struck, damage = listed("corrupt@25:1")
    assert (struck.kind, struck.rank, struck.moment) == ("kill", 1, "boundary")
    assert (damage.kind, damage.moment, damage.global_step) == ("corrupt", "rest", 25)
    assert [p.kind for p in listed("kill@31:0", "corrupt@25.rest")] == ["kill", "corrupt"]


@pytest.mark.parametrize(
    "entries",
    [
        ("corrupt@25.rest",),
        ("kill@40.load",),
        ("kill@40.start:1", "kill@30:1"),
        ("supervisor@9.rest", "eio@20"),
    ],
)
def test_what_waits_for_an_attempt_that_never_begins_is_refused(entries: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="nothing ends one there"):
        listed(*entries)
    assert listed("kill@0.load")  # the first attempt begins in any case
    assert listed("kill@40.load", "stop@40:1") and listed("kill@40.load", "kill@2.5s:1")


def test_a_size_is_that_of_the_step_at_which_the_network_goes_down() -> None:
    schedule = {"elastic": ElasticConfig(schedule={12: 1})}
    assert listed("partition@5", **schedule)
    with pytest.raises(ConfigError, match="two ranks to part"):
        listed("partition@14", **schedule)


def test_a_wall_time_is_typed_in_seconds() -> None:
    with pytest.raises(ConfigError, match="has no step"):
        plan(RunConfig(failure=FailureConfig("kill", steps=(14,), moment="wall")))
    with pytest.raises(ConfigError, match="finite"):
        listed("kill@1e999s")


def test_a_rank_that_would_be_taken_for_hung_is_not_slow() -> None:
    with pytest.raises(ConfigError, match="would be a hang"):
        listed("slow_rank@9*2.5", supervision=SupervisionConfig(hang_timeout_s=2.0))


@pytest.mark.parametrize(
    ("entry", "fact"),
    [
        ("nan@9.optimizer", "nan cannot be injected at optimizer; it can at: forward"),
        ("kill@9/0.5", "kill at boundary has no share"),
        ("kill@9*3", "kill takes no time"),
        ("kill@9%half_part", "has no point of the store's protocol"),
        ("writer@9%half_way", "unknown point 'half_way', known: before_stage"),
        ("writer@9%between_renames", "does not occur: a group is renamed whole"),
        ("enospc@9%before_pointer", "nothing need be written after point before_pointer"),
        ("eio@9%before_pointer", "needs no sync after point before_pointer"),
        ("slow_disk@9%half_part", "slows down whole saves"),
        ("writer@9:1", "writer is injected into whoever writes, not rank 1"),
        ("exit@9:1", "exit is injected into rank 0 only"),
        ("raise@9:0+1", "raise takes one rank alone"),
        ("kill@9.load:node", "supervision.launcher=torchrun only"),
        ("corrupt@19", "no earlier checkpoint to fall back to with checkpoint.every=10"),
        ("enospc@91", "no checkpoint is due between step 91 and the target 100"),
        ("backward@9.forward", "backward is a moment of its own"),
    ],
)
def test_an_entry_that_cannot_be_is_quoted_and_refused(entry: str, fact: str) -> None:
    with pytest.raises(ConfigError, match=fact) as caught:
        listed(entry, supervision=SupervisionConfig(launcher="zygote"))
    assert (
        caught.value.key == "failure.entries"
        and f"'{entry.partition('@')[0]}@" in caught.value.fact
    )


@pytest.mark.parametrize(
    ("entry", "more", "fact"),
    [
        ("enospc@9", {"checkpoint": CheckpointConfig("none")}, "checkpoint=none makes none"),
        ("term@9", {"checkpoint": CheckpointConfig("none")}, "checkpoint=none takes none"),
        ("kill@9.capture", {"checkpoint": CheckpointConfig("none")}, "nothing is captured"),
        (
            "eio@9",
            {"write_mode": WriteModeConfig("unsafe", False, False, False)},
            "write_mode=unsafe makes none",
        ),
        ("partition@9", {"world_size": 1}, "needs two ranks to part"),
        ("kill@9:all", {"supervision": SupervisionConfig(nodes=3)}, "ranks on other machines"),
        ("supervisor@9", {"supervision": SupervisionConfig(nodes=3)}, "supervision.nodes > 1"),
        ("writer@9%half_trash", {"checkpoint": CheckpointConfig(every=40)}, "nothing is retired"),
    ],
)
def test_a_kind_says_why_it_is_not_available(entry: str, more: dict[str, Any], fact: str) -> None:
    with pytest.raises(ConfigError, match=fact):
        listed(entry, **more)


def test_every_kind_of_the_group_plans_and_describes_itself() -> None:
    for kind in FAILURES.names():
        planned = plan(config(kind, target_steps=400, checkpoint=CheckpointConfig(every=10)))
        assert len(planned) == (4 if kind == "corrupt" else 2)
        lines = describe(planned)
        assert all(
            "{" not in line and f"failure {i} of {len(planned)}: " in line
            for i, line in enumerate(lines, start=1)
        ), lines


def test_when_and_who_are_told_in_words() -> None:
    entries = (
        "kill@9.backward/0.25:1",
        "kill@9.load:0+2",
        "kill@0.start:1",
        "writer@9%after_rename",
        "slow_disk@9*0.5",
        "kill@1.5s:2",
        "kill@9:node",
    )
    told = [line.partition(": ")[2] for line in describe(listed(*entries))]
    assert told == [
        "rank 1 is killed by SIGKILL, without a flush, in step 9, after 25% of the gradients",
        (
            "each of ranks 0, 2 is killed by SIGKILL, without a flush, before the first attempt"
            " after step 9 loads its state"
        ),
        "rank 1 is killed by SIGKILL, without a flush, at the start of the first attempt",
        (
            "whoever writes is killed by SIGKILL, in the first save due at step 9 or after it, at"
            " after_rename"
        ),
        (
            "the save and the 2 after it take 0.5 s longer over each write and sync, in the first"
            " save due at step 9 or after it"
        ),
        "rank 2 is killed by SIGKILL, without a flush, after 1.500 s of supervised time",
        "each of ranks 0, 1, 2 and their agent is killed by SIGKILL, without a flush, after step 9",
    ]


def test_random_ranks_exist_where_they_are_struck() -> None:
    elastic = ElasticConfig(schedule={100: 1, 200: 2})
    planned = drawn(3.0, target_steps=300, elastic=elastic)
    ranks = {
        span: {p.rank for p in planned if p.global_step in span}
        for span in (range(1, 100), range(100, 201), range(201, 300))
    }
    assert list(ranks.values()) == [{0, 1, 2, 3}, {0}, {0, 1}]


def test_a_named_rank_must_exist_before_and_behind_a_change() -> None:
    elastic = ElasticConfig(schedule={40: 2})
    with pytest.raises(ConfigError, match="rank 2 does not exist with 2 ranks"):
        plan(config("kill", 2, elastic=elastic))
    assert len(plan(config("kill", 1, elastic=elastic))) == 2


def test_pending_leaves_out_what_has_fired() -> None:
    planned = plan(config("kill"))
    assert pending(planned, {0}) == planned[1:]
    assert pending(planned, ()) == planned


def test_the_stored_plan_is_read_back_whole_or_refused(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    with pytest.raises(RecordError, match="missing"):
        read_plan(layout)
    layout.failures.write_text(json.dumps(encode(plan(config("kill", 1)))))
    assert read_plan(layout) == plan(config("kill", 1))
    layout.failures.write_text('[{"index": 0, "kind": "kill", "rank": "one", "global_step": 4}]')
    with pytest.raises(RecordError, match="rank"):
        read_plan(layout)


def lossy(
    *entries: str, spares: int = 0, batch: int = 64, failure: FailureConfig | None = None
) -> RunConfig:
    plain = RunConfig(
        world_size=4,
        global_batch=batch,
        recovery=RecoveryConfig("lossy_forward"),
        failure=failure or FailureConfig("listed", entries=entries),
    )
    return replace(plain, supervision=SupervisionConfig(launcher="zygote", spares=spares))


def redistributed(*entries: str) -> RunConfig:
    return replace(
        lossy(*entries), recovery=RecoveryConfig("redistribute"), elastic=ElasticConfig(replicas=8)
    )


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (redistributed("kill@40:1", "kill@50:2"), None),
        (
            redistributed("kill@40:1", "kill@50:3"),
            "failure 2 is injected into rank 3, and only 3 ranks are left at step 50",
        ),
        (
            lossy("kill@40:1"),
            (
                "global_batch: 64 is not divisible by the 3 ranks that failure 1 leaves; use a"
                " multiple of 12, or supervision.spares=1"
            ),
        ),
        (lossy("kill@40:1", "kill@50:1", batch=16 * 3), None),
        (lossy("kill@40:1+2"), None),
        (
            lossy("kill@40:1+2", spares=1),
            "the 3 ranks that failure 1 leaves; use a multiple of 12, or supervision.spares=2",
        ),
        (lossy("kill@40:1+2", spares=2), None),
        (lossy("kill@40:1", spares=1), None),
        (lossy("kill@40:all", "kill@50:2+3"), None),
        (lossy("stop@40:1"), None),
        (lossy("nan@40:1"), None),
        (lossy("kill@40:1+2", "stop@50:1", "kill@60:3"), "the 3 ranks that failure 3 leaves"),
        (lossy("kill@40:1+2", "term@50", "kill@60:3"), "the 3 ranks that failure 3 leaves"),
        (lossy("kill@40:1+2", "readonly@50", "kill@60:3"), "the 3 ranks that failure 3 leaves"),
        (
            lossy("kill@40:1+2", "kill@50:3"),
            (
                "failure 2 is injected into rank 3, and only 2 ranks are left at step 50; inject"
                " into rank 0 to 1"
            ),
        ),
        (lossy("kill@3.5s:1"), "the 3 ranks that failure 1 leaves"),
        (lossy("kill@3.5s:1", "kill@4.5s:1", "kill@5.5s:1", batch=60), None),
        (lossy(failure=FailureConfig("mtbf", mtbf_steps=400.0)), "is not divisible by the 3 ranks"),
        (lossy(failure=FailureConfig("mtbf", mtbf_steps=400.0), batch=60), None),
    ],
)
def test_survivors_that_could_not_share_the_batch_are_refused_before_the_run(
    config: RunConfig, says: str | None
) -> None:
    if says is None:
        assert plan(config)
        return
    with pytest.raises(ConfigError) as caught:
        plan(config)
    assert says in caught.value.line()


def test_every_name_of_failure_kind_is_planned_in_some_way() -> None:
    assert [name for name in FAILURE_KINDS if plan_kind(name) is not AT_STEPS] == [
        "none",
        "mtbf",
        "listed",
    ]
    with pytest.raises(ConfigError, match="unknown failure 'meteor'"):
        plan_kind("meteor")
