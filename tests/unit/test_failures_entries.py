"""The grammar of planned failures: what is written is read back, what is no failure is refused in
its own words, a scale keeps its kind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecrl_cli.config.build import build
from ecrl_cli.config.fault_spec import FAILURES, MOMENTS, Entry, parse
from ecrl_cli.errors import ConfigError

NUMBERS = st.floats(0, 1e6, allow_nan=False)
SHARES = st.none() | st.floats(0, 1)
WHO = st.sampled_from(["all", "node", ()]) | st.sets(st.integers(0, 99), min_size=1).map(
    lambda ranks: tuple(sorted(ranks))
)
POINTS = st.sampled_from(["", "half_part", "half_part:model.safetensors", "after_rename"])


@given(
    st.sampled_from(FAILURES.names()),
    st.integers(0, 10**9),
    st.sampled_from(("", *(m for m in MOMENTS if m != "wall"))),
    SHARES,
    WHO,
    st.none() | NUMBERS,
    POINTS,
)
def test_an_entry_is_read_back_as_it_was_written(
    what: str, step: int, moment: str, share: Any, who: Any, seconds: Any, point: str
) -> None:
    entry = Entry(what, step, moment, share, who, seconds, point)
    assert parse(str(entry)) == entry


@given(NUMBERS, WHO)
def test_so_is_one_at_a_wall_time(after_s: float, who: Any) -> None:
    entry = Entry("kill", moment="wall", who=who, after_s=after_s)
    assert parse(str(entry)) == entry


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("kill@40:1", Entry("kill", 40, who=(1,))),
        ("kill@40.backward/0.25:1", Entry("kill", 40, "backward", 0.25, (1,))),
        ("kill@40:0+2", Entry("kill", 40, who=(0, 2))),
        ("kill@40:all", Entry("kill", 40, who="all")),
        ("writer@20%after_rename", Entry("writer", 20, point="after_rename")),
        ("slow_rank@30:1*0.05", Entry("slow_rank", 30, who=(1,), seconds=0.05)),
        ("corrupt@40", Entry("corrupt", 40)),
        ("kill@40.load:0", Entry("kill", 40, "load", who=(0,))),
        ("kill@3.5s:1", Entry("kill", moment="wall", who=(1,), after_s=3.5)),
    ],
)
def test_the_examples_mean_what_they_say(text: str, entry: Entry) -> None:
    assert parse(text) == entry and str(entry) == text


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("kill", "'kill': is no failure: expected WHAT@STEP"),
        ("kill@", "is no failure"),
        ("kill@-3", "is no failure"),
        ("kill@40:1 ", "is no failure"),
        ("kill@40\n", "is no failure"),
        ("kil@40", "unknown failure 'kil'; did you mean kill?"),
        ("mtbf@40", "unknown failure 'mtbf'"),
        ("kill@40.lunch", "unknown moment 'lunch'; known: boundary"),
        ("kill@40.wall", "a wall time has no step"),
        ("kill@3.5s.load", "no other moment"),
        ("kill@40.backward/1.5", "a share must be in 0 .. 1, got 1.5"),
        ("kill@40:me", "unknown victim 'me'"),
        ("kill@40:1+1", "strictly increasing, got 1[+]1; write 1"),
    ],
)
def test_what_is_no_failure_is_quoted_and_refused(text: str, fact: str) -> None:
    with pytest.raises(ConfigError, match=fact) as caught:
        parse(text)
    assert caught.value.key == "failure.entries"


BASE: dict[str, Any] = {
    "target_steps": 100,
    "checkpoint": {"every": 10},
    "world_size": 2,
    "global_batch": 8,
}


def listed(*entries: str, typed: frozenset[str] = frozenset(), **more: Any) -> Any:
    return build({**BASE, "failure": {"kind": "listed", "entries": list(entries)}, **more}, typed)


@pytest.mark.parametrize(
    ("entry", "fact"),
    [
        ("kill@0:1", "a step must be >= 1, got 0; step 0 is for failures of the first start"),
        ("kill@100", "'kill@100': step 100 is the target: nothing would be left to recover"),
        ("kill@101", "beyond target_steps"),
        ("kill@50:2", "rank 2 does not exist with 2 ranks; use 0 to 1"),
        ("kill@2.5s:2", "rank 2 does not exist"),
    ],
)
def test_what_this_run_cannot_meet_is_refused(entry: str, fact: str) -> None:
    with pytest.raises(ConfigError, match=fact):
        listed(entry)
    assert listed("kill@0.start:1").failure.entries == ("kill@0.start:1",)


def test_a_list_needs_its_kind_and_the_kind_its_list() -> None:
    with pytest.raises(ConfigError, match="nothing is listed"):
        listed()
    with pytest.raises(ConfigError, match=r"failure\.kind is none"):
        build({**BASE, "failure": {"entries": ["kill@4"]}})
    with pytest.raises(ConfigError, match=r"write them into failure\.entries"):
        build({**BASE, "failure": {"kind": "listed", "entries": ["kill@4"], "steps": [5]}})


def test_a_scale_moves_listed_failures_and_keeps_them_on_or_off_the_boundary() -> None:
    scale = {"name": "smoke", "steps": 0.1, "min_every": 4}
    small = listed(
        "kill@40:1", "kill@73.forward:0", "nan@40:0", "kill@0.start:1", "kill@2.5s:1", scale=scale
    )
    assert small.checkpoint.every == 4 and small.target_steps < 100
    on, off, same, start, timed = map(parse, small.failure.entries)
    assert on.step % 4 == 0 and off.step % 4 != 0 and on.step < off.step < small.target_steps
    assert (same.step, start.step, timed.after_s) == (on.step, 0, 2.5)
    assert replace(on, step=0) == replace(parse("kill@40:1"), step=0)
    assert listed(
        "kill@40:1", scale=scale, typed=frozenset({"failure.entries", "target_steps"})
    ).failure.entries == ("kill@40:1",)


@pytest.mark.parametrize("kind", ["exit", "mtbf", "enospc", "listed", "kill"])
def test_a_kind_that_was_typed_over_a_plan_takes_what_it_uses(kind: str) -> None:
    plan = {"steps": [15], "rank": 1, "mtbf_steps": 9, "entries": ["kill@4"]}
    failure = build({**BASE, "failure": {**plan, "kind": kind}}, frozenset({"failure"})).failure
    kept = {
        "exit": ((15,), 0),
        "mtbf": ((), 0),
        "enospc": ((15,), 0),
        "listed": ((), 0),
        "kill": ((15,), 1),
    }[kind]
    assert (failure.steps, failure.rank) == kept
    assert bool(failure.mtbf_steps) == (kind == "mtbf") and bool(failure.entries) == (
        kind == "listed"
    )
    with pytest.raises(ConfigError):
        build(
            {**BASE, "failure": {**plan, "kind": kind}},
            frozenset({"failure", "failure.rank", "failure.steps", "failure.mtbf_steps"}),
        )
