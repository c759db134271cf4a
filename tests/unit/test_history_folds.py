"""Lineage, timeline, divergence: small records made by hand, and the whole recorded run."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecrl_cli.config.limits import MOST_ATTEMPTS, MOST_FAILURES
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import EvidenceMissing, RecordError
from ecrl_cli.history.divergence import (
    differing_names,
    first_differing_step,
    loss_divergence,
    read_tensors,
    same_float,
    state_divergence,
)
from ecrl_cli.history.lineage import ancestry, end_of, line_chain, lineage, replayed_steps
from ecrl_cli.history.load import (
    MOST_DISK_BYTES,
    NOTHING,
    SPARE_CLAIMS,
    SPARE_LOGS,
    AttemptRecords,
    RunRecords,
    load,
    load_disk,
)
from ecrl_cli.history.timeline import phases, timeline
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.metrics.divergence import _distance
from ecrl_cli.records.events import (
    CATEGORIES,
    Attempt,
    CheckpointLine,
    FinalState,
    InjectedFault,
    RankLine,
    ResumedFrom,
    Span,
    SupervisorRecord,
    SupervisorSession,
)
from ecrl_cli.records.journal import Journal, Lines, read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import store
from ecrl_cli.records.span_clock import SpanClock
from tests.runs.builder import build_blk, build_elastic, flip
from tests.runs.changed import left
from tests.runs.spoil import edit_json, tear
from tests.runs.survived import build_lossy


def line(step: int, attempt: int, at: float = 0.0) -> RankLine:
    return RankLine(step, 0, step - 1, 0, 1, "", 1, float(step), attempt, 0.1, at, at)


def lines(*events: object) -> Lines[object]:
    return Lines(tuple(events), tuple(f"{event}\n".encode() for event in events), 0)


def logs(
    attempt: int,
    steps: range = range(0),
    commits: tuple[tuple[int, str], ...] = (),
    spans: tuple[Span, ...] = (),
    final: FinalState | None = None,
) -> AttemptRecords:
    events = lines(
        *(
            CheckpointLine("committed", step, attempt, 0.0, 0.0, commit_sha256=sha)
            for step, sha in commits
        )
    )
    ranks = {0: lines(*(line(step, attempt) for step in steps))} if steps else {}
    return AttemptRecords(attempt, ranks, events, lines(*spans), final, None)  # type: ignore[arg-type]


def records(
    attempts: list[Attempt],
    found: list[AttemptRecords],
    sessions: tuple[SupervisorSession, ...] = (),
    fired: tuple[InjectedFault, ...] = (),
) -> RunRecords:
    supervisor = SupervisorRecord(
        1,
        "",
        10,
        "completed",
        0,
        tuple(attempts),
        sessions or (SupervisorSession(0.0, 0.0, "boot"),),
    )
    return RunRecords(
        RunLayout(Path("run")), store(RunConfig()), supervisor, None, (), fired, tuple(found), ()
    )


def attempt(number: int, step: int = 0, sha: str = "", **more: object) -> Attempt:
    resumed = ResumedFrom(f"checkpoints/step_{step:08d}", sha) if sha else None
    return Attempt(number, 1, resumed_from_step=step, resumed_from=resumed, **more)  # type: ignore[arg-type]


def final(at: float, step: int = 10, number: int = 0) -> FinalState:
    return FinalState(step, number, at, at, "", "", "", "", 0.0)


def test_the_lineage_is_what_each_attempt_resumed_from() -> None:
    run = records(
        [attempt(0), attempt(1, 4, "a"), attempt(2, 4, "a", outcome="completed")],
        [logs(0, range(1, 8), ((4, "a"),)), logs(1, range(5, 7)), logs(2, range(5, 11))],
    )
    path = lineage(run)
    assert [(s.attempt, s.after, s.until) for s in path.segments] == [(0, 0, 4), (2, 4, 10)]
    assert path.whole and path.last_step == 10
    assert (path.of(4), path.of(5)) == path.segments
    assert replayed_steps(run) == 2 + 3


def test_a_chain_of_attempts_without_a_step_of_their_own_holds() -> None:
    run = records(
        [attempt(0), attempt(1, 4, "a"), attempt(2, 4, "a")],
        [logs(0, range(1, 8), ((4, "a"),)), logs(1), logs(2)],
    )
    assert lineage(run).last_step == 4 and lineage(run).whole


@pytest.mark.parametrize(
    ("resumed", "commits", "said"),
    [
        (attempt(1, 4, "b"), ((4, "a"),), "no earlier attempt committed"),
        (attempt(1, 5, "a"), ((4, "a"),), "its checkpoint is of step 4"),
        (attempt(1, 4), ((4, "a"),), "names no checkpoint"),
    ],
)
def test_a_gap_in_the_lineage_is_said(
    resumed: Attempt, commits: tuple[tuple[int, str], ...], said: str
) -> None:
    path = lineage(
        records([attempt(0), resumed], [logs(0, range(1, 8), commits), logs(1, range(5, 11))])
    )
    assert not path.whole and said in path.gaps[0]


def test_a_checkpoint_that_a_later_attempt_committed_is_no_ancestor() -> None:
    run = records(
        [attempt(0), attempt(1, 4, "a")], [logs(0, range(1, 8)), logs(1, range(5, 9), ((4, "a"),))]
    )
    assert not lineage(run).whole


def test_the_chain_follows_the_lineage_not_the_files(tmp_path: Path) -> None:
    run = load(build_blk(tmp_path))
    stored = json.loads((run.layout.checkpoints / "step_00000024" / "train.json").read_text())[
        "line_chain"
    ]
    assert [line_chain(run, ancestry(run, 2, 24), rank) for rank in range(2)] == stored


def life(number: int, start: float, steps: range, **more: object) -> AttemptRecords:
    """A tenth of a second of import, then a second per step, at most half of it computing."""
    spans = [Span("import", start, start + 0.1, number, 0)]
    for step in steps:
        begin = spans[-1].end
        spans += [
            Span("compute", begin, begin + 0.5, number, step),
            Span("sync", begin + 0.5, begin + 1.0, number, step),
        ]
    return dataclasses.replace(logs(number, steps, **more), spans=lines(*spans))  # type: ignore[arg-type]


def test_every_second_has_one_account() -> None:
    """Session at 0, launch at 1, first span at 2, steps 1 to 3, the failure at 5.1; noticed at 6,
    launched at 6.5, born at 7.5.
    """
    run = records(
        [
            attempt(0, outcome="died", launched_at=1.0, ended_at=6.0),
            attempt(1, 1, "a", outcome="completed", launched_at=6.5, ended_at=14.0),
        ],
        [
            life(0, 2.0, range(1, 4), commits=((1, "a"),)),
            life(1, 7.5, range(2, 5), final=final(10.6)),
        ],
        fired=(InjectedFault(0, "kill", 0, 3, 0, 5.1, 5.1),),
    )
    account = timeline(run)
    seconds = {name: value for name, value in account.seconds.items() if value}
    expected = {
        "idle": 1.5,
        "launch": 2.0,
        "import": 0.2,
        "compute": 2.0,
        "sync": 2.0,
        "detect": 0.9,
        "replay": 2.0,
    }
    assert seconds == pytest.approx(expected)
    assert account.wall_s == 10.6 and abs(account.residual_s) < 1e-9
    assert account.overlaps() == [] and set(account.seconds) == set(CATEGORIES)
    assert phases(run, account)[1] == pytest.approx(
        {
            "detect": 0.9,
            "idle": 0.5,
            "launch": 1.0,
            "import": 0.1,
            "rendezvous": 0,
            "load": 0,
            "warm_up": 0,
        }
    )


def test_warming_up_on_a_step_that_is_done_again_is_replay_alone() -> None:
    again = life(1, 7.5, range(2, 5), final=final(10.6))
    spans = [
        (
            dataclasses.replace(s, category="warm_up")
            if s.category == "compute" and s.global_step == 2
            else s
        )
        for s in again.spans.events
    ]
    run = records(
        [
            attempt(0, outcome="died", launched_at=1.0, ended_at=6.0),
            attempt(1, 1, "a", outcome="completed", launched_at=6.5, ended_at=14.0),
        ],
        [
            life(0, 2.0, range(1, 4), commits=((1, "a"),)),
            dataclasses.replace(again, spans=lines(*spans)),
        ],
        fired=(InjectedFault(0, "kill", 0, 3, 0, 5.1, 5.1),),
    )
    account = timeline(run)
    assert phases(run, account)[1]["warm_up"] == 0 and account.seconds["replay"] == pytest.approx(
        2.0
    )
    assert sum(
        map(sum, (start.values() for start in phases(run, account).values()))
    ) == pytest.approx(
        sum(account.seconds[name] for name in ("detect", "idle", "launch", "import"))
    )


def test_what_a_survivor_did_after_the_failure_is_detection() -> None:
    run = records(
        [attempt(0, outcome="died", launched_at=0.0, ended_at=5.0)],
        [life(0, 0.0, range(1, 4))],
        sessions=(SupervisorSession(0.0, 0.0, "boot", ended_at=5.0),),
        fired=(InjectedFault(0, "kill", 1, 2, 0, 2.1, 2.1),),
    )
    assert timeline(run).seconds["detect"] == pytest.approx(2.9)
    assert timeline(run).seconds["compute"] == pytest.approx(1.0)


def test_a_failure_before_rank_0_began_to_work_is_detected_from_then_on() -> None:
    """Attempt 1 has processes that were there before; at 7.2 one of them dies, and at 7.5 rank 0
    begins.
    """
    run = records(
        [
            attempt(0, outcome="died", launched_at=1.0, ended_at=6.0),
            attempt(1, outcome="died", launched_at=6.5, ended_at=9.0, origins=(0, 1)),
            attempt(2, outcome="completed", launched_at=9.5, ended_at=16.0),
        ],
        [
            life(0, 2.0, range(1, 4)),
            life(1, 7.5, range(0)),
            life(2, 10.0, range(1, 4), final=final(13.1)),
        ],
        fired=(
            InjectedFault(0, "kill", 1, 3, 0, 5.1, 5.1),
            InjectedFault(1, "kill", 1, 0, 1, 7.2, 7.2),
        ),
    )
    account = timeline(run)
    assert account.overlaps() == [] and abs(account.residual_s) < 1e-9
    assert account.seconds["detect"] == pytest.approx(0.9 + 0.5 + 0.7 + 1.8)


def test_a_failure_that_ended_nothing_counts_as_none() -> None:
    """Rank 0 is slow from 1.0 on and does three steps more; what then kills it was not planned."""
    alive = life(0, 0.0, range(1, 4))
    struck = dataclasses.replace(
        alive, ranks={0: lines(*(line(step, 0, at=0.1 + step) for step in range(1, 4)))}
    )
    run = records(
        [attempt(0, outcome="died", launched_at=0.0, ended_at=5.0)],
        [struck],  # type: ignore[list-item]
        sessions=(SupervisorSession(0.0, 0.0, "boot", ended_at=5.0),),
        fired=(InjectedFault(0, "slow_rank", 0, 1, 0, 1.0, 1.0),),
    )
    assert timeline(run).seconds["detect"] == pytest.approx(1.9)


def test_a_step_logged_before_its_span_closed_is_not_lost() -> None:
    """Rank 0 logged step 3 at 3.6, began it at 3.1, and was killed with that span open."""
    alive = life(0, 1.0, range(1, 3))
    struck = dataclasses.replace(
        alive, ranks={0: lines(dataclasses.replace(line(3, 0, at=3.6), seconds=0.5))}
    )
    run = records(
        [attempt(0, outcome="died", launched_at=0.0, ended_at=4.0)],
        [struck],  # type: ignore[list-item]
        sessions=(SupervisorSession(0.0, 0.0, "boot", ended_at=4.0),),
        fired=(InjectedFault(0, "kill", 0, 3, 0, 3.7, 3.7),),
    )
    account = timeline(run)
    assert account.seconds["compute"] == pytest.approx(1.5) and account.seconds[
        "detect"
    ] == pytest.approx(0.4)
    assert abs(account.residual_s) < 1e-9 and account.overlaps() == []


def test_no_span_belongs_to_two_steps(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "spans.jsonl")
    clock = SpanClock(journal, 0, monotonic(), "compute")
    for step in (1, 2, 3):
        clock.switch("compute")
        clock.global_step = step
    clock.close()
    journal.close()
    spans = read_journal(tmp_path / "spans.jsonl", Span).events
    assert [span.global_step for span in spans] == [0, 1, 2, 3]
    assert all(before.end == after.start for before, after in pairwise(spans))


def test_absence_between_two_supervisors_is_on_no_clock() -> None:
    """The first supervisor was killed: its stay ends with the last that is known of its attempt."""
    run = records(
        [
            attempt(0, launched_at=0.0),
            attempt(1, 2, "a", outcome="completed", launched_at=100.0, ended_at=104.0, session=1),
        ],
        [
            life(0, 0.0, range(1, 3), commits=((2, "a"),)),
            life(1, 101.0, range(3, 5), final=final(103.1)),
        ],
        sessions=(SupervisorSession(0.0, 1000.0, "boot"), SupervisorSession(99.0, 1099.0, "boot")),
        # no evidence of the first attempt
        fired=(InjectedFault(0, "slow_rank", 1, 3, 1, 101.5, 1101.5),),
    )
    account = timeline(run)
    assert account.windows == ((0.0, 2.1), (99.0, 103.1))
    assert account.wall_s == pytest.approx(6.2) and account.absent_s == pytest.approx(96.9)
    assert abs(account.residual_s) < 1e-9


def test_another_boot_starts_another_clock() -> None:
    run = records(
        [
            attempt(0, launched_at=500.0),
            attempt(1, 2, "a", outcome="completed", launched_at=1.0, session=1),
        ],
        [
            life(0, 500.0, range(1, 3), commits=((2, "a"),)),
            life(1, 1.0, range(3, 5), final=final(3.1)),
        ],
        sessions=(SupervisorSession(500.0, 1000.0, "one"), SupervisorSession(0.5, 1050.0, "two")),
    )
    account = timeline(run)
    assert (
        account.overlaps() == []
        and account.wall_s == pytest.approx(4.7)
        and account.absent_s == pytest.approx(47.9)
    )


def test_a_wall_clock_that_was_set_back_between_two_boots_makes_no_absence() -> None:
    run = records(
        [
            attempt(0, launched_at=500.0),
            attempt(1, 2, "a", outcome="completed", launched_at=1.0, session=1),
        ],
        [
            life(0, 500.0, range(1, 3), commits=((2, "a"),)),
            life(1, 1.0, range(3, 5), final=final(3.1)),
        ],
        sessions=(SupervisorSession(500.0, 1000.0, "one"), SupervisorSession(0.5, 900.0, "two")),
    )
    assert timeline(run).absent_s == 0.0


def test_the_stay_of_a_killed_supervisor_reaches_to_the_failure_that_killed_it() -> None:
    killed = (InjectedFault(0, "supervisor", 0, 2, 0, 2.5, 2.5),)
    run = records([attempt(0, launched_at=0.0)], [life(0, 0.0, range(1, 3))], fired=killed)
    assert timeline(run).windows == ((0.0, 2.5),)


def test_time_counted_twice_shows_twice() -> None:
    doubled = life(0, 0.0, range(1, 3), final=final(2.1))
    spans = (*doubled.spans.events, Span("snapshot", 1.0, 1.5, 0, 1))
    run = records(
        [attempt(0, outcome="completed", ended_at=3.0)],
        [dataclasses.replace(doubled, spans=lines(*spans))],
    )  # type: ignore[arg-type]
    assert timeline(run).overlaps() and timeline(run).residual_s == pytest.approx(-0.5)


def test_time_without_spans_stays_on_the_residual() -> None:
    bare = dataclasses.replace(life(0, 0.0, range(1, 3), final=final(2.1)), spans=NOTHING)
    assert timeline(
        records([attempt(0, outcome="completed", ended_at=3.0)], [bare])
    ).residual_s == pytest.approx(2.1)


def test_loss_divergence() -> None:
    apart = loss_divergence(
        {1: {0: 1.0, 1: 1.0}, 2: {0: 1.0, 1: 3.0}, 3: {0: 0.0, 1: 0.0}},
        {1: {0: 1.0, 1: 1.0}, 2: {0: 1.0, 1: 1.0}, 4: {0: 9.0}},
    )
    assert (apart.steps, apart.maximum, apart.mean, apart.auc, apart.first_differing_step) == (
        2,
        1.0,
        0.5,
        0.5,
        2,
    )
    assert loss_divergence({}, {}).first_differing_step is None


def test_a_difference_that_cancels_in_the_mean_is_seen() -> None:
    assert first_differing_step({5: {0: 1.0, 1: 3.0}}, {5: {0: 3.0, 1: 1.0}}) == 5


def test_exact_means_every_bit() -> None:
    assert (
        same_float(math.nan, math.nan)
        and not same_float(0.0, -0.0)
        and not same_float(1.0, 1.0 + 2**-52)
    )


def test_state_divergence_keeps_relative_and_absolute_apart() -> None:
    a, b = (
        {"w": np.array([3.0, 0.0]), "x": np.zeros(2)},
        {
            "w": np.array([3.0, 4.0]),
            "y": np.zeros(2),
        },
    )
    apart = state_divergence(a, b)
    assert (apart.l2, apart.relative_l2, apart.differing) == (4.0, 0.8, ("w", "x", "y"))
    assert state_divergence(b, b).differing == ()


def test_tensors_are_read_and_bfloat16_widened(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = json.dumps(
        {
            "h": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
            "w": {"dtype": "F32", "shape": [1, 1], "data_offsets": [4, 8]},
        }
    ).encode()
    path.write_bytes(
        len(header).to_bytes(8, "little") + header + b"\x80\x3f\x20\xc0" + np.float32(1.5).tobytes()
    )
    tensors = read_tensors(path)
    assert tensors["h"].tolist() == [1.0, -2.5] and tensors["w"].tolist() == [[1.5]]
    for damage in (b"", b"\xff" * 16, path.read_bytes()[:-3]):
        path.write_bytes(damage)
        with pytest.raises(RecordError):
            read_tensors(path)


def test_a_header_may_be_all_there_is_and_no_more(tmp_path: Path) -> None:
    path, header = tmp_path / "model.safetensors", b"{}"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert read_tensors(path) == {}
    path.write_bytes((len(header) + 1).to_bytes(8, "little") + header)
    with pytest.raises(RecordError, match="a header of 3 bytes"):
        read_tensors(path)


@pytest.mark.parametrize(
    ("dtype", "data", "value"),
    [
        *(
            (name, np.array([-3], kind).tobytes(), -3)
            for name, kind in (("I64", "<i8"), ("I32", "<i4"), ("I16", "<i2"), ("I8", "i1"))
        ),
        *(
            (name, np.array([200], kind).tobytes(), 200)
            for name, kind in (("U64", "<u8"), ("U32", "<u4"), ("U16", "<u2"), ("U8", "u1"))
        ),
        *(
            (name, np.array([-0.5], kind).tobytes(), -0.5)
            for name, kind in (("F64", "<f8"), ("F32", "<f4"), ("F16", "<f2"))
        ),
        ("BF16", b"\x00\xbf", -0.5),
        ("BOOL", b"\x01", True),
    ],
)
def test_a_value_of_every_dtype_is_read_as_it_is(
    tmp_path: Path, dtype: str, data: bytes, value: float
) -> None:
    path = tmp_path / "model.safetensors"
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": dtype, "shape": [1], "data_offsets": [0, len(data)]},
        }
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    assert {name: array.tolist() for name, array in read_tensors(path).items()} == {"a": [value]}


@pytest.mark.parametrize(
    "header",
    [
        [1],
        {"a": 5},
        {"a": {}},
        {"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
    ],
)
def test_a_header_that_says_something_else_is_damage_of_that_file(
    tmp_path: Path, header: object
) -> None:
    path, text = tmp_path / "model.safetensors", json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(RecordError, match=r"not a safetensors file \(.+\)") as error:
        read_tensors(path)
    assert error.value.key == "model.safetensors" and error.value.fact.startswith(
        "not a safetensors file ("
    )


def test_names_differ_by_their_digest_or_by_being_alone() -> None:
    assert differing_names({"a": "1", "c": "2", "d": "5"}, {"c": "3", "a": "1", "b": "4"}) == [
        "b",
        "c",
        "d",
    ]
    assert differing_names({"a": "1"}, {"a": "1"}) == []


def test_two_states_are_as_far_apart_as_what_they_share_and_all_that_differs_is_named() -> None:
    ours = {
        "a": np.array([3.0, 0.0]),
        "b": np.array([1.0]),
        "c": np.array([[1.0, 2.0]]),
        "e": np.array([0.0]),
    }
    theirs = {
        "a": np.array([0.0, 4.0]),
        "b": np.array([1.0]),
        "c": np.array([1.0, 2.0]),
        "d": np.array([7.0]),
        "e": np.array([-0.0]),
    }
    found = state_divergence(ours, theirs)
    assert (found.l2, found.relative_l2, found.differing) == (
        5.0,
        pytest.approx(5 / math.sqrt(17)),
        ("a", "c", "d", "e"),
    )
    nothing = {"a": np.zeros(2)}
    assert [
        state_divergence(ours, nothing).relative_l2,
        state_divergence(nothing, nothing).relative_l2,
    ] == [math.inf, 0.0]


@pytest.mark.parametrize(
    ("ours", "theirs", "step"),
    [
        ({1: {0: 1.0}, 2: {0: 2.0}}, {1: {0: 1.0}, 2: {0: 2.0}}, None),
        ({1: {0: 1.0}, 2: {0: 2.0}}, {2: {0: 2.5}, 3: {0: 9.0}}, 2),
        ({1: {0: 1.0, 1: 5.0}}, {1: {0: 1.0, 2: 6.0}}, None),
        ({1: {0: math.nan}, 2: {0: 0.0}}, {1: {0: math.nan}, 2: {0: -0.0}}, 2),
        ({2: {0: 1.0}, 1: {0: 3.0}}, {1: {0: 4.0}, 2: {0: 5.0}}, 1),
        ({1: {0: 1.0}}, {2: {0: 1.0}}, None),
    ],
)
def test_the_first_loss_that_differs_is_one_that_both_have(
    ours: dict[int, dict[int, float]], theirs: dict[int, dict[int, float]], step: int | None
) -> None:
    assert (
        first_differing_step(ours, theirs)
        == step
        == loss_divergence(ours, theirs).first_differing_step
    )


def test_losses_are_compared_by_their_mean_over_ranks_and_its_area_over_the_steps() -> None:
    ours = {2: {0: 1.0, 1: 3.0}, 4: {0: 5.0}, 10: {0: 0.0}, 11: {0: 9.0}}
    theirs = {2: {0: 2.0}, 4: {0: 1.0, 1: 1.0}, 10: {0: 1.0}}
    found = loss_divergence(ours, theirs)
    assert (found.steps, found.maximum, found.mean, found.auc) == (
        3,
        4.0,
        pytest.approx(5 / 3),
        2 * 2.0 + 6 * 2.5,
    )
    none = loss_divergence(ours, {5: {0: 1.0}})
    assert (none.steps, none.maximum, none.mean, none.auc, none.first_differing_step) == (
        0,
        0.0,
        0.0,
        0.0,
        None,
    )


def test_a_header_that_is_longer_than_its_file_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((3).to_bytes(8, "little") + b"{}")
    with pytest.raises(RecordError, match="a header of 3 bytes"):
        read_tensors(path)


def test_a_torn_tail_is_counted_and_damage_is_named(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    tear(layout.attempt(0).rank(1))
    assert load(layout).torn == {"logs/attempt-00/rank1.jsonl": 1} and not load(layout).unread
    flip(layout.attempt(0).rank(1), 1)
    assert [file.path for file in load(layout).unread] == ["logs/attempt-00/rank1.jsonl"]


def test_a_torn_line_is_counted_in_every_journal_of_an_attempt(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    logs = layout.attempt(0)
    files = [
        logs.rank(1),
        logs.survivor_report(0),
        logs.lost_samples(0),
        logs.checkpoints,
        logs.spans(0),
        logs.evaluations,
    ]
    for path in files:
        with path.open("a") as file:
            file.write('{"')
    assert load(layout).torn == {layout.relative(path): 1 for path in files}


def test_a_folder_without_a_configuration_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(EvidenceMissing):
        load(RunLayout(tmp_path))


def test_a_run_that_grew_has_the_logs_of_all_its_ranks(tmp_path: Path) -> None:
    """Of 2 ranks at first; what more than the scheduled ranks left is reported."""
    layout, ranks = build_blk(tmp_path), 2 + SPARE_LOGS + 1
    for rank in range(2, ranks):
        shutil.copy(layout.attempt(0).rank(0), layout.attempt(0).rank(rank))
    (unread,) = load(layout).unread
    assert unread.path == "logs/attempt-00" and unread.reason.startswith(f"holds {ranks} entries")
    edit_json(
        layout.config, lambda document: document["config"]["elastic"].update(schedule={"7": ranks})
    )
    assert sorted(load(layout).logs(0).ranks) == list(range(ranks)) and not load(layout).unread


def test_disk_samples_have_a_limit_of_their_own(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.disk.touch()
    os.truncate(layout.disk, MOST_DISK_BYTES + 1)
    with pytest.raises(RecordError, match=f"at most {MOST_DISK_BYTES} are read"):
        load_disk(layout)


def test_as_many_claims_are_read_as_the_plan_has_entries(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    plan = json.loads(layout.failures.read_text())
    layout.failures.write_text(
        json.dumps([plan[0] | {"index": number} for number in range(SPARE_CLAIMS + 4)])
    )
    for number in range(1, 2 * SPARE_CLAIMS):
        shutil.copy(layout.fired_entry(0), layout.fired / f"{number:03d}.json")
    found = load(layout)
    assert len(found.fired) == 2 * SPARE_CLAIMS and not found.unread
    layout.failures.unlink()
    found = load(layout)
    assert len(found.fired) == SPARE_CLAIMS and [file.path for file in found.unread] == ["fired"]


@pytest.mark.parametrize(
    ("name", "edit", "said"),
    [
        (
            "supervisor",
            lambda record: record | {"schema_version": 2},
            "schema version 2, this ECRL reads 1",
        ),
        (
            "supervisor",
            lambda record: record | {"attempts": record["attempts"] * MOST_ATTEMPTS},
            f"names more than {MOST_ATTEMPTS} attempts",
        ),
        (
            "failures",
            lambda plan: {"entries": plan},
            f"is no list of at most {MOST_FAILURES} entries",
        ),
        (
            "failures",
            lambda plan: plan * MOST_FAILURES,
            f"is no list of at most {MOST_FAILURES} entries",
        ),
    ],
)
def test_a_document_beyond_its_limit_is_not_read(
    tmp_path: Path, name: str, edit: Callable[[Any], Any], said: str
) -> None:
    layout = build_blk(tmp_path)
    edit_json(getattr(layout, name), edit)
    (unread,) = [file for file in load(layout).unread if file.path != "fired"]
    assert unread.path == f"{name}.json" and said in unread.reason


def test_idle_time_behind_an_attempt_that_was_resized_is_the_next_ones(tmp_path: Path) -> None:
    run = load(build_elastic(tmp_path))
    account = timeline(run)
    for a in run.attempts:
        ended, last = a.ended_at or 0.0, run.logs(a.attempt).spans.events[-1].end
        behind = [
            (piece.category, piece.attempt)
            for piece in account.pieces
            if last <= piece.start < ended
        ]
        assert behind == (
            [("idle", a.attempt + 1)]
            if a.outcome == "resized"
            else [("detect", a.attempt)]
            if a.outcome == "died"
            else []
        )


def test_a_run_that_ends_with_survivors_alone_ends_behind_the_step_that_they_report(
    tmp_path: Path,
) -> None:
    """The supervisor was killed before the next attempt: rank 3, which died, had not logged the
    step.
    """
    run = load(build_lossy(tmp_path))
    assert run.supervisor is not None
    cut = dataclasses.replace(
        run, supervisor=dataclasses.replace(run.supervisor, attempts=run.attempts[:1])
    )
    assert lineage(cut).last_step == 9
    silent = dataclasses.replace(cut.logs(0), survivor_reports={})
    assert lineage(dataclasses.replace(cut, attempt_logs=(silent,))).last_step == 8


def test_an_attempt_that_began_behind_the_step_it_is_said_to_have_reached_is_a_gap() -> None:
    run = records(
        [attempt(0), attempt(1, 4, "a", outcome="completed")],
        [logs(0, range(1, 8), ((4, "a"),)), logs(1, final=final(1.0, 3))],
    )
    path = lineage(run)
    assert path.gaps == ("attempt 1 began at step 4, past the step 3 it is said to have reached",)


def test_of_two_faults_the_last_ends_what_rank_0_did() -> None:
    """Ranks 1 and 2 die at 2.1 and at 2.6; rank 0 is noticed at 5.0."""
    killed = tuple(
        InjectedFault(number, "kill", number + 1, 2, 0, at, at)
        for number, at in enumerate((2.1, 2.6))
    )
    run = records(
        [attempt(0, outcome="died", launched_at=0.0, ended_at=5.0)],
        [life(0, 0.0, range(1, 4))],
        sessions=(SupervisorSession(0.0, 0.0, "boot", ended_at=5.0),),
        fired=killed,
    )
    assert timeline(run).seconds["detect"] == pytest.approx(2.4)
    assert timeline(dataclasses.replace(run, fired=killed[::-1])).seconds[
        "detect"
    ] == pytest.approx(2.4)


def test_the_final_record_of_a_run_is_that_of_its_last_attempt() -> None:
    run = records(
        [attempt(0), attempt(1)], [logs(0, final=final(1.0, 3, 0)), logs(1, final=final(2.0, 4, 1))]
    )
    assert run.final is not None and run.final.attempt == 1
    assert records([attempt(0)], [logs(0)]).final is None


def test_idle_time_at_the_end_of_a_session_is_that_of_the_attempt_that_follows_it() -> None:
    run = records(
        [
            attempt(0, outcome="stopped", launched_at=0.0, ended_at=3.0),
            attempt(1, 2, "a", outcome="completed", launched_at=11.0, session=1),
        ],
        [
            life(0, 0.0, range(1, 3), commits=((2, "a"),)),
            life(1, 12.0, range(3, 5), final=final(14.1)),
        ],
        sessions=(
            SupervisorSession(0.0, 0.0, "boot", ended_at=4.0),
            SupervisorSession(10.0, 10.0, "boot"),
        ),
    )
    idle = [
        (piece.start, piece.end, piece.attempt)
        for piece in timeline(run).pieces
        if piece.category == "idle"
    ]
    assert idle == [(2.1, 3.0, 1), (3.0, 4.0, 1), (10.0, 11.0, 1)]
    assert phases(run, timeline(run))[1]["idle"] == pytest.approx(2.9)


def test_what_each_survivor_has_on_record_as_lost_counts_once(tmp_path: Path) -> None:
    """Ranks 0 and 1 of four outlive two others, and each has a line for either."""
    found = load(build_lossy(tmp_path)).logs(0)
    assert sorted(found.lost_sample_records) == [0, 1]
    assert [line.ranks for line in found.lost_samples] == [(3,), (2,)]


def test_how_far_a_run_ended_is_relative_to_the_reference() -> None:
    far = _distance(
        "parameters",
        {"parameters.w": np.ones(2), "buffers.w": np.ones(2)},
        {"parameters.w": np.full(2, 2.0), "buffers.w": np.zeros(2)},
    )
    assert far == {
        "l2": pytest.approx(math.sqrt(2)),
        "relative_l2": pytest.approx(0.5),
        "differing": 1,
    }


@pytest.mark.parametrize(("ranks", "until"), [((0, 1), 9), ((0,), 0), ((), 0)])
def test_of_an_attempt_in_which_a_rank_logged_nothing_no_step_is_committed(
    tmp_path: Path, ranks: tuple[int, ...], until: int
) -> None:
    records = load(build_blk(tmp_path))
    logs = records.logs(0).ranks
    assert (
        end_of(
            left(
                records,
                0,
                ranks={rank: lines if rank in ranks else NOTHING for rank, lines in logs.items()},
            ),
            records.attempts[0],
        )
        == until
    )
