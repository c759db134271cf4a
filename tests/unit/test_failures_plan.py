"""The plan is data: complete, refused where it cannot strike, each entry once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.codec import encode
from ecrl_cli.config.schema import CheckpointConfig, ElasticConfig, FailureConfig, RunConfig, VariantConfig
from ecrl_cli.errors import ConfigError, RecordError
from ecrl_cli.failures.plan import describe, pending, plan, read_plan
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.layout import RunLayout


def config(kind: str, rank: int = 0, **more: object) -> RunConfig:
    return replace(RunConfig(world_size=3, failure=FailureConfig(kind, (40, 75), rank)), **more)  # type: ignore[arg-type]


def test_an_entry_per_step_with_its_victim() -> None:
    assert plan(config("kill", 2)) == (PlannedFailure(0, "kill", 2, 40), PlannedFailure(1, "kill", 2, 75))
    assert [entry.rank for entry in plan(config("exit"))] == [0, 0]


def test_no_entry_where_none_is_wanted() -> None:
    assert plan(config("none")) == ()
    assert plan(config("kill", 1, variant=VariantConfig("ref", failures=False))) == ()


@pytest.mark.parametrize(
    ("kind", "rank", "fact"), [("kill", 3, "rank 3 does not exist with 3 ranks"), ("exit", 1, "rank 0"), ("meteor", 0, "unknown")]
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
    assert {entry.kind for entry in planned} == {"kill"} and [entry.index for entry in planned] == list(range(len(planned)))
    assert {entry.rank for entry in planned} == {0, 1, 2, 3}


def test_every_arm_of_a_seed_meets_the_same_random_failures_and_another_seed_others() -> None:
    assert drawn() == drawn(checkpoint=CheckpointConfig(strategy="overlapped"), variant=VariantConfig("ovl"))
    assert drawn() != drawn(seed=2027)
    assert drawn(variant=VariantConfig("ref", failures=False)) == ()


def test_the_target_is_never_struck() -> None:
    """Nothing would be left to recover. A mean of one step strikes most steps."""
    assert all(entry.global_step < target for target in range(1, 60) for entry in drawn(1.0, target_steps=target))
    assert drawn(1.0, target_steps=2)


def test_the_mean_distance_is_the_one_asked_for() -> None:
    """10,000 draws of an exponential: the mean is within 5 % at five standard errors."""
    count = len(drawn(100.0, target_steps=1_000_000))
    assert abs(count - 10_000) < 500


def test_half_the_mean_strikes_at_half_the_distances() -> None:
    far, near = (drawn(mean, target_steps=100_000) for mean in (400.0, 200.0))
    assert all(abs(a.global_step - 2 * b.global_step) <= 2 for a, b in zip(far, near, strict=False))


def test_random_ranks_exist_where_they_are_struck() -> None:
    elastic = ElasticConfig(schedule={100: 1, 200: 2})
    planned = drawn(3.0, target_steps=300, elastic=elastic)
    ranks = {span: {p.rank for p in planned if p.global_step in span} for span in (range(1, 100), range(100, 201), range(201, 300))}
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
