"""The schedule of world sizes: what it says at every step, that it is plain, how a scale and a
variant take it.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecrl_cli.cli.arguments import parse
from ecrl_cli.cli.compose import compose_grid
from ecrl_cli.config.build import build
from ecrl_cli.config.codec import decode
from ecrl_cli.config.elastic import next_change, ranks_at, share, sizes, world_size_after
from ecrl_cli.config.identity import reference_id, run_id
from ecrl_cli.config.schema import ElasticConfig, RunConfig
from ecrl_cli.errors import ConfigError
from tests.unit.test_config_build import PLAN, SMOKE, values

CHANGING = replace(RunConfig(), elastic=ElasticConfig(schedule={400: 1, 800: 4}))


def made(schedule: dict[int, int], typed: tuple[str, ...] = (), **changes: Any) -> RunConfig:
    return build(values(elastic__schedule=schedule, **changes), frozenset(typed))


def test_from_that_step_on_means_behind_it() -> None:
    assert [world_size_after(CHANGING, step) for step in (0, 399, 400, 799, 800, 1600)] == [
        2,
        2,
        1,
        1,
        4,
        4,
    ]
    assert [next_change(CHANGING, step) for step in (0, 399, 400, 799, 800)] == [
        400,
        400,
        800,
        800,
        None,
    ]
    assert [ranks_at(CHANGING, step) for step in (399, 400, 401, 800, 801)] == [2, 1, 1, 1, 4]
    assert sizes(CHANGING) == (2, 1, 4)


def test_without_a_schedule_nothing_changes() -> None:
    assert (next_change(RunConfig(), 0), sizes(RunConfig())) == (None, (2,))


@pytest.mark.parametrize(
    "schedule", [{0: 4, 400: 2}, {400: 2, 0: 4}, {0: 4, 100: 4, 400: 2, 500: 2}]
)
def test_two_ways_to_write_the_same_sizes_are_one_run(schedule: dict[int, int]) -> None:
    config = made(schedule)
    assert (config.world_size, config.elastic.schedule) == (4, {400: 2})
    assert run_id(config) == run_id(made({400: 2}, world_size=4))
    assert reference_id(config) == reference_id(build(values(world_size=4)))
    assert run_id(config) != run_id(build(values(world_size=4)))


def test_a_typed_world_size_is_not_overruled() -> None:
    assert made({0: 4}, ("elastic.schedule.0",), world_size=2).world_size == 4
    with pytest.raises(
        ConfigError,
        match=r"world_size: is 2, elastic\.schedule begins with 4; leave one of them out",
    ):
        made({0: 4}, ("world_size", "elastic.schedule.0"), world_size=2)


def test_a_variant_without_resizes_keeps_the_first_size() -> None:
    config = made({0: 4, 400: 2}, variant__resizes=False)
    assert (config.world_size, config.elastic.schedule) == (4, {})


def test_a_scale_keeps_the_sizes_and_moves_the_steps() -> None:
    small = made({400: 1, 1225: 2}, **SMOKE, scale__world_size=1)
    (on, off), every = small.elastic.schedule, small.checkpoint.every
    assert list(small.elastic.schedule.values()) == [1, 2] and small.world_size == 2
    assert on % every == 0 and off % every != 0 and off < small.target_steps < 100


def test_a_scale_leaves_room_for_every_change_and_a_step_behind_the_last() -> None:
    crowded = made({1450: 1, 1500: 2, 1550: 1}, **SMOKE, checkpoint__every=50)
    assert max(crowded.elastic.schedule) < crowded.target_steps
    spread = made(
        {400: 1, 800: 2, 1200: 1}, **SMOKE | {"scale__steps": 0.001}, checkpoint__every=50
    )
    assert spread.target_steps == 2 * spread.checkpoint.every * 4


def test_a_scale_leaves_a_typed_schedule_alone() -> None:
    small = made({40: 1}, ("elastic.schedule.40", "target_steps"), **(SMOKE | {"target_steps": 60}))
    assert small.elastic.schedule == {40: 1}


def test_a_scaled_batch_fits_every_size() -> None:
    small = made({100: 3, 200: 4}, ("world_size",), **SMOKE, global_batch=300)
    assert small.global_batch % 12 == 0


def test_all_arms_are_scaled_alike() -> None:
    arms = [
        made({400: 1}, **PLAN | {"failure__rank": 0}, **SMOKE, variant__resizes=resizes)
        for resizes in (True, False)
    ]
    assert arms[0].elastic.schedule and not arms[1].elastic.schedule
    assert reference_id(arms[0]) == reference_id(arms[1])


@settings(deadline=None, max_examples=30)  # each composes two configurations
@given(
    factor=st.floats(0.01, 1.0),
    every=st.integers(2, 60),
    schedule=st.dictionaries(
        st.integers(1, 1500), st.sampled_from((1, 2, 4)), min_size=1, max_size=4
    ),
)
def test_every_scaled_schedule_is_a_schedule(
    factor: float, every: int, schedule: dict[int, int]
) -> None:
    big = made(schedule, checkpoint__every=every)
    small = made(schedule, checkpoint__every=every, scale__steps=factor, scale__min_every=2)
    assert list(small.elastic.schedule.values()) == list(big.elastic.schedule.values())
    steps = [0, *small.elastic.schedule, small.target_steps]
    assert all(before < after for before, after in itertools.pairwise(steps))


def test_a_typed_schedule_takes_the_place_of_the_suites() -> None:
    given = {"target_steps": 800, "global_batch": 48, "elastic": {"schedule": {400: 1, 600: 3}}}
    assert build(given, frozenset({"elastic.schedule.600"})).elastic.schedule == {600: 3}
    assert build(given, frozenset({"elastic.schedule"})).elastic.schedule == {}
    assert build(given).elastic.schedule == {400: 1, 600: 3}


@pytest.mark.parametrize("key", ["abc", "050", "5.0", "--5", ""])
def test_a_step_that_is_no_whole_number_is_no_schedule(key: str) -> None:
    with pytest.raises(TypeError, match="not a whole number"):
        decode(ElasticConfig, {"schedule": {key: 1}})


LOWER = {"elastic__on_indivisible": "lower"}


@pytest.mark.parametrize(
    ("changes", "sizes_taken", "said"),
    [
        (
            {"world_size": 7, "global_batch": 48},
            (6, {}),
            ["world_size: 6 ranks instead of 7, which do not divide global_batch 48"],
        ),
        (
            {"global_batch": 48, "elastic__schedule": {100: 4, 200: 5}},
            (2, {100: 4}),
            ["elastic.schedule.200: 4 ranks instead of 5"],
        ),
        (
            {"global_batch": 48, "elastic__schedule": {0: 5, 100: 3}},
            (4, {100: 3}),
            ["world_size: 4 ranks instead of 5"],
        ),
        (
            {"elastic__replicas": 4, "world_size": 6},
            (4, {}),
            ["world_size: 4 ranks instead of 6, which cannot share 4 replicas"],
        ),
        ({"elastic__replicas": 4, "world_size": 3}, (3, {}), []),
        ({"world_size": 4, "global_batch": 48}, (4, {}), []),
    ],
)
def test_a_size_that_does_not_fit_is_lowered_where_asked_and_said(
    changes: dict[str, Any], sizes_taken: Any, said: list[str]
) -> None:
    told: list[str] = []
    config = build(values(**LOWER, **changes), frozenset(), told.append)
    assert (config.world_size, config.elastic.schedule) == sizes_taken
    assert len(told) == len(said) and all(
        line.startswith(start) for line, start in zip(told, said, strict=True)
    )


def test_what_was_lowered_is_the_run_that_was_asked_for_lower() -> None:
    lowered = build(values(**LOWER, world_size=7, global_batch=48))
    assert run_id(lowered) == run_id(build(values(world_size=6, global_batch=48)))


def test_a_size_that_the_scaled_batch_fits_is_not_lowered() -> None:
    told: list[str] = []
    changes = {**SMOKE, "world_size": 5, "elastic__schedule": {400: 2}}
    small = build(values(**LOWER, **changes), frozenset({"world_size"}), told.append)
    assert (small.world_size, list(small.elastic.schedule.values()), told) == (
        5,
        [2],
        [
            "scale=smoke: ranks are forked by zygote; add supervision=torchrun for the default"
            " launcher"
        ],
    )
    assert run_id(small) == run_id(build(values(**changes), frozenset({"world_size"})))


def test_a_scaled_batch_keeps_two_samples_for_each_replica() -> None:
    small = build(values(**SMOKE, elastic__replicas=32))
    assert small.global_batch == 64 and small.world_size <= 32


@given(replicas=st.integers(0, 12), each=st.integers(1, 5), data=st.data())
def test_the_ranks_share_a_window_without_gap_or_overlap(
    replicas: int, each: int, data: st.DataObject
) -> None:
    ranks = data.draw(st.integers(1, replicas or 12))
    window = each * (replicas or ranks)
    parts = [share(window, rank, ranks, replicas) for rank in range(ranks)]
    assert [place for part in parts for place in part] == list(range(window))
    assert all(part.start % each == 0 and len(part) % each == 0 and len(part) for part in parts)


def test_the_note_is_printed_once_for_all_arms() -> None:
    told: list[str] = []
    compose_grid(
        parse(
            [
                "-m",
                "world_size=7",
                "global_batch=48",
                "elastic.on_indivisible=lower",
                "variant=ref,blk,ovl",
            ]
        ),
        told.append,
    )
    assert told == ["world_size: 6 ranks instead of 7, which do not divide global_batch 48"]
