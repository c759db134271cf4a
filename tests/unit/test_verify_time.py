"""The gate on unaccounted time, the budget of restarts, clocks of odd but honest machines, and what
nothing can contradict.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.history.load import load
from ecrl_cli.history.timeline import Timeline, TimelineSlice
from ecrl_cli.records.events import Span
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify import labels
from ecrl_cli.verify.clocks import Instant, _check_agreement
from ecrl_cli.verify.rank_spans import SpanAccount
from ecrl_cli.verify.spans import _left_over
from ecrl_cli.verify.time_accounting import time_conserved
from ecrl_cli.verify.verdict import INVALID, VALID, FindingBuilder, render
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_spoilt_runs import found
from tests.runs.builder import WALL, build_blk, build_ref
from tests.runs.spoil import edit_json
from tests.runs.spoilt_clocks import TIME, refold, slower

Wall = Callable[[float], float]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    build_ref(folder)
    return build_blk(folder).root


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> RunLayout:
    shutil.copytree(recorded.parent / "ref", tmp_path / "ref", symlinks=True)
    return RunLayout(Path(shutil.copytree(recorded, tmp_path / "blk", symlinks=True)))


@pytest.mark.parametrize(
    ("more", "status"), [(0.019, VALID), (0.021, INVALID), (-0.019, VALID), (-0.021, INVALID)]
)
def test_time_on_no_account_and_time_on_two_are_gated_alike(
    recorded: Path, more: float, status: str
) -> None:
    """Two pieces that do not overlap, in a window that is longer or shorter than they are
    together.
    """
    pieces = (TimelineSlice("compute", 0.0, 5.0, 0, 0), TimelineSlice("idle", 5.0, 10.0, 0, 0))
    case = Case(load(RunLayout(recorded)))
    case.__dict__["timeline"] = Timeline(pieces, ((0.0, 10.0 / (1 - more)),), 0.0)
    assert time_conserved(case).status == status


def test_a_final_loss_that_is_not_the_reference_s_is_seen(run: RunLayout) -> None:
    edit_json(run.attempt(2).final, lambda final: final | {"loss": final["loss"] + 1e-9})
    refold(run)
    finding = found(verify_run(run.root), "same-trajectory")
    assert finding.status == INVALID and "the final loss is" in finding.message


@pytest.mark.parametrize(("most", "status"), [(2, VALID), (1, INVALID)])
def test_no_run_was_restarted_more_often_than_it_may_be(
    run: RunLayout, most: int, status: str
) -> None:
    from ecrl_cli.verify.supervisor_record import _check_budget

    edit_json(
        run.config, lambda document: document["config"]["supervision"].update(max_restarts=most)
    )
    case, notes = Case(load(run)), FindingBuilder("records-consistent")
    assert case.run.supervisor is not None
    _check_budget(case, case.run.supervisor, notes)
    assert notes.clean == (status == VALID)


def agree(wall: Wall, late: dict[int, float] | None = None, every: float = 0.02) -> str:
    """The status of 1000 instants of two processes whose wall clock shows `wall(at)`; some were
    read `late` by so many seconds.
    """
    notes = FindingBuilder(TIME)
    instants = []
    for number in range(1000):
        at = every * number
        instants.append(
            Instant(
                at, wall(at) + (late or {}).get(number, 0.0), (0, number % 2), f"instant {number}"
            )
        )
    _check_agreement("boot", instants, notes)
    return notes.finding("").status


@pytest.mark.parametrize(
    ("wall", "late"),
    [
        (lambda at: WALL + at, {}),
        (lambda at: WALL + at * 1.0005, {}),
        (lambda at: WALL + at * 1.083, {}),
        (lambda at: WALL + at * 0.917, {}),
        (lambda at: WALL + at + (7200.0 if at > 10 else 0.0), {}),
        (lambda at: WALL + at - (7200.0 if at > 10 else 0.0), {}),
        (lambda at: WALL + at + 28800.0 * (at > 5) + 60.0 * (at > 10), {}),
        (lambda at: WALL + at + 60.0 * (at > 5) + 60.0 * (at > 10) + 60.0 * (at > 15), {}),
        (lambda at: WALL + at, {17: 0.015, 500: 0.01, 900: 0.018}),
        (lambda at: WALL + at, {999: 500.0}),
        (lambda at: WALL + at + 0.04 * (int(at) % 2), {}),
    ],
    ids=[
        "even",
        "slewed by the kernel",
        "slewed by chrony",
        "slewed back",
        "set forward",
        "set back",
        "suspended twice",
        "suspended as often as it may be",
        "busy",
        "held up at the end",
        "jitter",
    ],
)
def test_an_odd_but_honest_wall_clock_is_believed(wall: Wall, late: dict[int, float]) -> None:
    assert agree(wall, late) == VALID


@pytest.mark.parametrize(
    "wall",
    [
        lambda at: WALL + at / 2,
        lambda at: WALL + at * 2,
        lambda at: WALL - at,
        lambda at: WALL,
        lambda at: WALL + at * 1.25,
        lambda at: WALL + at + 86400.0 * (5 < at < 10),
        lambda at: WALL + at + 1.0 * (int(at * 10) % 2),
        lambda at: WALL + at + 60.0 * int(at / 4),
    ],
    ids=[
        "half",
        "double",
        "backwards",
        "standing",
        "a quarter too fast",
        "to and fro",
        "hopping",
        "set once too often",
    ],
)
def test_clocks_that_do_not_advance_together_are_not(wall: Wall) -> None:
    assert agree(wall) == INVALID


def test_a_process_that_is_held_up_between_its_two_readings_reads_the_second_one_late() -> None:
    """Half a minute, and then it goes on: its next instant is as much later. Nobody else is held
    up.
    """
    notes = FindingBuilder(TIME)
    own = [Instant(at, WALL + at, (0, 0), "own") for at in (0.0, 1.0, 40.0, 41.0)]
    others = [Instant(float(at), WALL + at, (0, 1), "other") for at in range(50)]
    held = Instant(2.0, WALL + 32.0, (0, 0), "held up")
    _check_agreement("boot", [*own, *others, held], notes)
    assert notes.clean


@pytest.mark.parametrize(("late_s", "status"), [(0.19, VALID), (-0.19, INVALID)])
def test_readings_that_are_late_are_told_from_a_clock_that_is_set(
    late_s: float, status: str
) -> None:
    """Five processes are held up for 0.19 s between their two readings, of 0.2 s until they read
    again; nobody reads the wall clock early.
    """
    assert (
        agree(lambda at: WALL + at, dict.fromkeys((1, 4, 7, 10, 13), late_s), every=0.1) == status
    )


def test_what_is_scaled_alike_everywhere_contradicts_nothing(run: RunLayout) -> None:
    """Stated in docs/decisions/cross-checks.md: a slower machine looks like this. The chain and the
    seal see the edit.
    """
    slower(run)
    refold(run)
    verdict = verify_run(run.root)
    assert found(verdict, TIME).status == VALID, render(verdict)
    assert found(verdict, "records-consistent").status == INVALID


def test_other_kernels_than_the_reference_s_are_told_and_change_nothing(run: RunLayout) -> None:
    edit_json(
        run.environment, lambda document: document | {"math_kernels": {"MKL_CBWR": "COMPATIBLE"}}
    )
    verdict = verify_run(run.root)
    assert verdict.status == VALID, render(verdict)
    told = found(verdict, "records-consistent").evidence
    assert told == (
        "the reference ran with math_kernels.MKL_CBWR not set, this run with 'COMPATIBLE'",
    )


def test_another_machine_than_the_reference_s_is_told_and_changes_nothing(run: RunLayout) -> None:
    def edit(document: dict[str, Any]) -> dict[str, Any]:
        return document | {"source_sha256": "6" * 64, "packages": {"torch": "2.11.0"}}

    edit_json(run.environment, edit)
    verdict = verify_run(run.root)
    assert verdict.status == VALID, render(verdict)
    told = found(verdict, "records-consistent").evidence
    assert (
        "the reference ran with packages.torch '2.10.0', this run with '2.11.0'" in told
        and len(told) == 2
    )


def test_each_difference_from_the_reference_s_machine_is_told(run: RunLayout) -> None:
    other = {"kernel": "7.1", "git_revision": "ab", "memory_bytes": 5, "gpus": [{}] * 8}
    other |= {"cpu": {"logical": 64}, "file_system": {"type": "tmpfs"}}
    edit_json(run.environment, lambda document: document | other)
    finding = found(verify_run(run.root), "records-consistent")
    for name in [
        "kernel",
        "git_revision",
        "memory_bytes",
        "gpus",
        "cpu.logical",
        "file_system.type",
    ]:
        assert f"the reference ran with {name} not set, this run with" in str(finding)
    assert "names 8 GPUs, and the checkpoints hold the state of a CPU" in str(finding)
    assert finding.status == VALID


def test_a_gpu_whose_generator_is_in_the_checkpoints_was_used(
    run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_json(run.environment, lambda document: document | {"gpus": [{}]})
    case = Case(load(run))
    assert len(labels.unused_gpus(case)) == 1
    drawn = dict.fromkeys(("rng.rank0.torch", "rng.rank0.cuda"), "6" * 64)
    monkeypatch.setattr(labels, "tensor_digests", lambda manifest: drawn)
    assert labels.unused_gpus(case) == ()


@pytest.mark.parametrize(
    ("before", "left"),
    [
        (("compute", "snapshot", "sync"), 0.25),
        (("sync", "snapshot"), 0.25),
        (("snapshot", "compute", "sync"), 0.0),
        (("sync",), 0.0),
        ((), 0.0),
    ],
)
def test_a_save_behind_a_snapshot_in_memory_has_what_ran_on_until_the_gathering(
    before: tuple[str, ...], left: float
) -> None:
    spans = [
        Span(category, 0.25 * place, 0.25 * (place + 1), 0, 6)
        for place, category in enumerate((*before, "snapshot"))
    ]
    assert _left_over(SpanAccount(tuple(spans)), len(before), "snapshot") == left


def test_kernels_that_the_reference_alone_recorded_are_told_too(run: RunLayout) -> None:
    environment = RunLayout(run.root.parent / "ref").environment
    edit_json(environment, lambda document: document | {"math_kernels": {"MKL_CBWR": "COMPATIBLE"}})
    told = found(verify_run(run.root), "records-consistent").evidence
    assert told == (
        "the reference ran with math_kernels.MKL_CBWR 'COMPATIBLE', this run with not set",
    )


def test_a_span_that_began_before_an_interval_and_reaches_into_it_overlaps_it() -> None:
    account = SpanAccount(
        tuple(Span("compute", start, start + 1.0, 0, 1) for start in (0.0, 1.0, 2.0))
    )
    for (start, end), expected in {
        (0.5, 0.75): [0.0],
        (0.5, 1.5): [0.0, 1.0],
        (1.0, 2.0): [1.0],
        (1.5, 9.0): [1.0, 2.0],
        (3.5, 4.0): [],
    }.items():
        assert [span.start for span in account.between(start, end)] == expected
