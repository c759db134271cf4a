"""Who goes on after an attempt that ranks have outlived, and from where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecrl_cli.config.schema import ElasticConfig, RecoveryConfig, RunConfig, SupervisionConfig
from ecrl_cli.records.events import Attempt
from ecrl_cli.supervision.in_place.regroup_plan import RegroupPlan, describe, plan_regroup, steps_of


def config(recovery: str, batch: int = 60) -> RunConfig:
    return RunConfig(
        global_batch=batch,
        recovery=RecoveryConfig(recovery),
        supervision=SupervisionConfig(launcher="zygote"),
    )


def left(*ranks: int, step: int = 40) -> dict[int, int]:
    return dict.fromkeys(ranks, step)


@pytest.mark.parametrize(
    ("recovery", "survivors", "spares", "origins", "joined", "memory"),
    [
        ("lossy_forward", (0, 2, 3), 0, (0, 2, 3), (), "survivors"),
        ("lossy_forward", (0, 3), 0, (0, 3), (), "survivors"),
        ("lossy_forward", (0, 2, 3), 1, (0, 1, 2, 3), (1,), "survivors"),
        ("lossy_forward", (2, 3), 1, (0, 2, 3), (0,), "survivors"),
        ("lossy_forward", (1, 2), 5, (0, 1, 2, 3), (0, 3), "survivors"),
        ("immediate_rollback", (1, 2, 3), 1, (0, 1, 2, 3), (0,), "survivors"),
        ("immediate_rollback", (2,), 3, (0, 1, 2, 3), (0, 1, 3), "survivors"),
        ("checkpoint_restart", (0, 1, 2), 2, (0, 1, 2, 3), (3,), ""),
        ("skip", (0, 3), 0, (0, 3), (), "survivors"),
    ],
)
def test_survivors_keep_their_order_and_spares_take_the_places_of_the_dead(
    recovery: str,
    survivors: tuple[int, ...],
    spares: int,
    origins: tuple[int, ...],
    joined: tuple[int, ...],
    memory: str,
) -> None:
    assert plan_regroup(config(recovery), 4, left(*survivors), spares) == RegroupPlan(
        40, memory, origins, joined
    )


@pytest.mark.parametrize(
    ("recovery", "survivors", "spares", "batch", "because"),
    [
        ("lossy_forward", {}, 3, 60, "nobody outlived it"),
        ("lossy_forward", left(0, 1, 2), 0, 64, "3 ranks cannot share global_batch 64 equally"),
        ("skip", left(0, 1, 2), 0, 64, "3 ranks cannot share global_batch 64 equally"),
        (
            "lossy_forward",
            {0: 40, 1: 41},
            0,
            60,
            "the survivors left after different steps (rank 0: 40, rank 1: 41)",
        ),
        ("immediate_rollback", left(0, 1), 1, 60, "2 died and 1 spare stood by"),
        ("checkpoint_restart", left(0, 1, 2), 0, 60, "1 died and 0 spares stood by"),
    ],
)
def test_where_nobody_can_go_on_it_is_said_why(
    recovery: str, survivors: dict[int, int], spares: int, batch: int, because: str
) -> None:
    going = plan_regroup(config(recovery, batch), 4, survivors, spares)
    assert not going
    assert going.because == because
    assert (
        describe("rank 3 was killed by signal 9", 4, going)
        == f"rank 3 was killed by signal 9; all begin anew: {because}"
    )


def test_fixed_replicas_are_shared_by_any_number_of_survivors() -> None:
    """64 samples are 8 replicas of 8, which three ranks share as 2, 3 and 3."""
    replicated = replace(config("redistribute", 64), elastic=ElasticConfig(replicas=8))
    assert plan_regroup(replicated, 4, left(0, 1, 3), 0) == RegroupPlan(40, "survivors", (0, 1, 3))


def test_what_happened_is_said_in_short() -> None:
    death = "rank 3 was killed by signal 9"
    assert (
        describe(death, 4, RegroupPlan(40, "survivors", (0, 1, 2)))
        == f"{death}; 3 of 4 ranks go on"
    )
    assert (
        describe(death, 4, RegroupPlan(40, "survivors", (0, 1, 2, 3), (3,)))
        == f"{death}; 4 of 4 ranks go on, 1 spare among them"
    )
    assert (
        describe(death, 4, RegroupPlan(40, "", (0, 1, 2, 3), (3,)))
        == f"{death}; 3 of 4 ranks and 1 spare go back to a checkpoint"
    )
    assert describe(death, 4, RegroupPlan()) == death


@pytest.mark.parametrize(
    ("logged", "step", "memory", "steps"),
    [
        ((1, 39), 40, "survivors", (1, 40)),
        ((1, 40), 40, "survivors", (1, 40)),
        ((None, None), 40, "survivors", (1, 40)),
        ((None, None), 0, "survivors", (None, None)),
        ((1, 39), 40, "", (1, 39)),
    ],
)
def test_an_attempt_reaches_as_far_as_those_who_outlived_it(
    logged: tuple[int | None, int | None],
    step: int,
    memory: str,
    steps: tuple[int | None, int | None],
) -> None:
    assert steps_of(Attempt(0, 4), logged, RegroupPlan(step, memory, (0, 1))) == steps
