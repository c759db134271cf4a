"""The picture of a run is its record: nothing moved, nothing lost, one clock."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ecrl_cli.config.codec import encode
from ecrl_cli.history.load import load
from ecrl_cli.records.events import SupervisorSession
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.model.timeline_view import thinned, ticks, timeline_view
from ecrl_cli.report.palette import ALL, CATEGORY_COLOURS, FAMILY_OF
from ecrl_cli.storage.files import write_json
from tests.unit.report_runs import Plan, Simulation


def test_attempts_failures_and_checkpoints_stand_where_they_happened(tmp_path: Path) -> None:
    run = Simulation(Plan("ovl", strategy="overlapped"))
    seen = timeline_view(load(RunLayout(run.write(tmp_path / "run"))))
    assert seen.wall_s == pytest.approx(run.ended - run.started)
    assert [a.start for a in seen.attempts] == pytest.approx(
        [a.launched_at - run.started for a in run.attempts]
    )
    assert [b.step for b in seen.faults] == [f.global_step for f in run.fired] == [24, 45]
    assert [b.at for b in seen.faults] == pytest.approx([f.at - run.started for f in run.fired])
    submitted = [
        line for lines in run.saves.values() for line in lines if line.event == "submitted"
    ]
    assert [w.step for w in seen.writes] == [line.global_step for line in submitted]
    assert [w.start for w in seen.writes] == pytest.approx(
        [line.at - run.started for line in submitted]
    )
    assert all(
        w.end - w.start == pytest.approx(0.12) and w.outcome == "committed"
        for w in seen.writes[:-1]
    )


def test_the_strip_covers_the_wall_time_and_shows_the_shares_recorded(tmp_path: Path) -> None:
    run = Simulation(Plan("blk"))
    seen = timeline_view(load(RunLayout(run.write(tmp_path / "run"))))
    assert seen.bands[0].start == 0 and seen.bands[-1].end == pytest.approx(seen.wall_s)
    assert all(
        a.end == b.start and a.family != b.family
        for a, b in zip(seen.bands, seen.bands[1:], strict=False)
    )
    for family in ("starting", "replay"):
        drawn = sum(s.end - s.start for s in seen.bands if s.family == family)
        recorded = sum(
            seconds for name, seconds in run.seconds().items() if FAMILY_OF[name] == family
        )
        assert drawn == pytest.approx(recorded, rel=0.05)


def test_the_clock_stands_still_while_no_supervisor_is_there(tmp_path: Path) -> None:
    run = Simulation(Plan("blk", kills=(24,)))
    layout = RunLayout(run.write(tmp_path / "run"))
    first, second = run.attempts
    absent = 500.0
    sessions = (
        SupervisorSession(run.started, 0.0, "boot", first.ended_at),
        SupervisorSession(second.launched_at + absent, 600.0, "boot", run.ended + absent),
    )
    moved = dataclasses.replace(
        second, session=1, launched_at=second.launched_at + absent, ended_at=run.ended + absent
    )
    write_json(
        layout.supervisor,
        encode(
            dataclasses.replace(
                run.supervisor(tmp_path), attempts=(first, moved), sessions=sessions
            )
        ),
    )
    layout.attempt(1).final.unlink()
    seen = timeline_view(load(layout))
    assert seen.attempts[1].start == pytest.approx((first.ended_at or 0) - run.started)
    assert seen.wall_s == pytest.approx(run.ended - run.started)


def test_a_checkpoint_without_an_end_is_open(tmp_path: Path) -> None:
    layout = RunLayout(Simulation(Plan("blk", kills=())).write(tmp_path / "run"))
    journal = layout.attempt(0).checkpoints
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]))
    assert [w.outcome for w in timeline_view(load(layout)).writes][-1] == "open"


def test_thinning_keeps_the_ends() -> None:
    assert thinned(range(1000), 10)[0] == 0 and thinned(range(1000), 10)[-1] == 999
    assert (
        len(thinned(range(1000), 10)) <= 11 and thinned([], 10) == () and thinned([5], 10) == (5,)
    )


@pytest.mark.parametrize("longest", [0.02, 0.9, 7.3, 61.0, 5000.0])
def test_ticks_are_few_and_within(longest: float) -> None:
    found = ticks(longest)
    assert found[0] == 0 and found[-1] <= longest and 3 <= len(found) <= 7


def test_every_category_has_a_colour_of_its_own() -> None:
    assert len({c.light for c in CATEGORY_COLOURS.values()}) == len(CATEGORY_COLOURS) == 17
    assert len({c.light for c in ALL}) == len({c.name for c in ALL}) == len(ALL)
