"""`study=recovery-overhead`: closed forms, the simulation against them, predictions beside runs on
record, and gates that can fail.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ecrl_cli.cli.main import main
from ecrl_cli.config.studies import RecoveryOverhead
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.errors import EvidenceMissing
from ecrl_cli.history.load import load
from ecrl_cli.history.timeline import Timeline, TimelineSlice, phases, timeline
from ecrl_cli.records.layout import StudyLayout
from ecrl_cli.replication.overhead import closed_forms, experiments, record_index
from ecrl_cli.replication.overhead import study as overhead_study
from ecrl_cli.replication.overhead.closed_forms import (
    daly,
    daly_first,
    exact_interval,
    expected_wall,
    segment_s,
    young,
)
from ecrl_cli.replication.overhead.experiments import Estimate, inverse, search, told
from ecrl_cli.replication.overhead.findings import gates
from ecrl_cli.replication.overhead.record_index import (
    RecordIndex,
    measured_parts,
    parts_without,
    recordings,
)
from ecrl_cli.replication.overhead.simulate import (
    FailureProcess,
    JobCosts,
    simulate,
    sweep,
    system_mtbf,
)
from ecrl_cli.replication.overhead.strategies import (
    BY_NAME,
    JOIN_S,
    PUBLISHED,
    REGROUP_S,
    FailureScenario,
    Loss,
    Parts,
    expected_loss,
    job_spec,
    typed,
    waiting,
)
from ecrl_cli.replication.overhead.tables import published, scenarios, threshold
from ecrl_cli.report.build import report
from ecrl_cli.report.figures.studies import draw
from ecrl_cli.studies.frame.result import Figure, Series
from ecrl_cli.studies.frame.runner import run_study
from ecrl_cli.studies.frame.study import PreparedStudy, Record, StudyContext
from tests.runs.builder import build_blk, build_clean, build_ref
from tests.runs.survived import build_lossy, build_rollback

HOUR = 3600.0
RESNET = PUBLISHED["ResNet-50"]
SMALL = RecoveryOverhead(
    source="typed",
    mini_batch_s=0.2,
    checkpoint_s=0.5,
    init_s=3,
    restart_s=4,
    every=300,
    mtbf_min=(45, 600),
    workers=(8, 100_000),
)
SMALL = replace(SMALL, failures=60, repetitions=24)


# --- closed forms


def test_young_is_the_limit_of_daly() -> None:
    """As failures become rare all formulas meet; where they are not, Daly stays with the exact
    optimum and Young leaves it.
    """
    rare = 1e9
    assert young(5, rare) == pytest.approx(100_000)
    assert [daly(5, rare), daly_first(5, rare, 60), exact_interval(5, rare)] == pytest.approx(
        [young(5, rare)] * 3, rel=1e-4
    )
    often = exact_interval(60, 1800)
    assert daly(60, 1800) == pytest.approx(often, rel=1e-3) and young(60, 1800) > 1.08 * often
    assert daly(10, 4) == 4  # a checkpoint longer than twice the MTBF: his bound


def test_the_exact_interval_is_the_minimum_of_the_exact_wall_time() -> None:
    best = exact_interval(30, 2 * HOUR)

    def wall(interval: float) -> float:
        return segment_s(interval + 30, 2 * HOUR, 300) / interval

    assert wall(best) < min(wall(best * 0.99), wall(best * 1.01))


def test_without_failures_only_checkpoints_cost() -> None:
    """M to infinity: no overhead but the checkpoints' own; and no strategy that rolls nothing back
    has any.
    """
    assert expected_wall(JobCosts(100, 2, restart=50), 1000, 1e12) == pytest.approx(1020)
    # three intervals and a rest
    assert expected_wall(JobCosts(300, 2, restart=50), 1000, 1e12) == pytest.approx(1008)
    assert expected_wall(
        JobCosts(fatal=0, pause=50, grain=10, debt=5), 1000, 1e12
    ) == pytest.approx(1000)


def test_expected_walls_by_hand() -> None:
    """Daly: M exp(R/M) (exp((tau + delta)/M) - 1) W/tau. Wald: W (1 + tax) exp(P/M) / (1 - (grain/2
    + debt exp(P/M))/M).
    """
    assert expected_wall(JobCosts(500, 20, restart=80), 5000, 1000) == pytest.approx(
        1000 * math.exp(0.08) * (math.exp(0.52) - 1) * 10
    )
    forward = JobCosts(fatal=0, pause=200, grain=100, debt=30, tax=0.1)
    assert expected_wall(forward, 5000, 1000) == pytest.approx(
        5500 * math.exp(0.2) / (1 - (50 + 30 * math.exp(0.2)) / 1000)
    )
    assert math.isinf(expected_wall(JobCosts(fatal=0, debt=1001), 5000, 1000)) and math.isinf(
        expected_wall(JobCosts(1e6, 1), 1e6, 1)
    )


# --- the simulation


@dataclass(frozen=True)
class Given(FailureProcess):
    """Failures after these gaps, one after the other; then none."""

    times: tuple[float, ...] = ()

    def gaps(self, rng: Any, n: int) -> NDArray[np.float64]:
        rng.drawn += 1
        return np.full(n, self.times[rng.drawn - 1] if rng.drawn <= len(self.times) else 1e6)


class Half:
    """A generator that always draws the middle: no fatal failure where less than half are, but for
    those whose numbers are given.
    """

    def __init__(self, fatal: Sequence[int]) -> None:
        self.drawn, self.fatal, self.calls = 0, fatal, 0

    def random(self, n: int) -> NDArray[np.float64]:
        """First a share of the work in hand, then whether the failure is fatal."""
        self.calls += 1
        return np.full(n, 0.0 if self.calls % 2 == 0 and self.calls // 2 in self.fatal else 0.5)


def wall_of(
    spec: JobCosts, work: float, *times: float, fatal: Sequence[int] = ()
) -> tuple[float, float, float]:
    found = simulate(spec, work, Given(1.0, times=times), Half(fatal), 1)  # type: ignore[arg-type]
    return float(found.wall[0, 0]), float(found.failures[0, 0]), float(found.checkpoints[0, 0])


@pytest.mark.parametrize(
    ("times", "wall", "checkpoints"),
    [
        ((), 33, 3),
        ((15,), 15 + 5 + 22, 3),  # four seconds of work lost
        ((15, 3), 18 + 5 + 22, 3),  # struck again while restarting: the restart begins anew
        ((10.5,), 10.5 + 5 + 33, 3),  # in the checkpoint: it does not count
        ((11, 5), 16 + 5 + 22, 3),  # the instant after it: it does
        ((32.9,), 32.9 + 5 + 11, 3),
        ((23, 7), 30 + 5 + 11, 3),
    ],
)
def test_a_job_that_rolls_back_second_by_second(
    times: tuple[float, ...], wall: float, checkpoints: int
) -> None:
    """30 s of work, a checkpoint of 1 s after each 10 s, a restart of 5 s."""
    assert wall_of(JobCosts(10, 1, restart=5), 30, *times) == pytest.approx(
        (wall, len(times), checkpoints)
    )


def test_a_job_that_goes_forward_second_by_second() -> None:
    """A pause of 2 s, half of 4 s of work in hand lost and 1 s more; struck while pausing: the
    pause again, and only the second that is due.
    """
    forward = JobCosts(fatal=0, pause=2, grain=4, debt=1)
    assert wall_of(forward, 30, 12) == pytest.approx((30 + 2 + 3, 1, 1))
    assert wall_of(forward, 30, 12, 1) == pytest.approx((12 + 1 + 2 + 18 + 3 + 1, 2, 1))
    assert wall_of(replace(forward, tax=0.5), 30) == pytest.approx((45, 0, 1))


def test_what_survivors_lost_is_not_owed_once_a_fatal_failure_has_taken_them_back() -> None:
    """20 s of work, a checkpoint each 10 s; the first failure is survived and costs 3 s of work,
    which the second takes with all else, or a checkpoint has kept.
    """
    mixed = JobCosts(10, 1, restart=5, fatal=0.4, pause=2, debt=3)
    assert wall_of(mixed, 20, 14) == pytest.approx((14 + 2 + (7 + 1) + (3 + 1), 1, 3))
    assert wall_of(mixed, 20, 4, 3, fatal=[2]) == pytest.approx((7 + 5 + 22, 2, 2))
    assert wall_of(mixed, 20, 4, 2 + 6 + 1 + 4, fatal=[2]) == pytest.approx(
        (17 + 5 + 11 + (3 + 1), 2, 3)
    )
    # whoever restarts is taken back by any failure
    assert wall_of(mixed, 20, 4, 3, 2, fatal=[2]) == pytest.approx((9 + 5 + 22, 3, 2))


def test_the_simulation_agrees_with_the_closed_forms_and_planted_bugs_do_not() -> None:
    for name in closed_forms.CASES:
        said = closed_forms.check(name, np.random.default_rng(7), events=40, repetitions=400)
        assert said.within(len(closed_forms.CASES)), (name, said)
    for name in closed_forms.PLANTED:
        assert not closed_forms.check(
            name, np.random.default_rng(7), events=40, repetitions=400
        ).within(len(closed_forms.CASES)), name


def test_workers_together_fail_as_often_as_their_number_says() -> None:
    """The first failure of 100,000 exponential workers, 400 times over; and Weibull gaps keep the
    mean and scatter more.
    """
    rng = np.random.default_rng(3)
    first = [float(rng.exponential(4e5 * HOUR, 100_000).min()) for _ in range(400)]
    mean = system_mtbf(4e5 * HOUR, 100_000)
    assert mean == 4 * HOUR and np.mean(first) == pytest.approx(mean, rel=0.2)
    bursts = FailureProcess(100.0, shape=0.7).gaps(rng, 200_000)
    assert bursts.mean() == pytest.approx(100, rel=0.02) and bursts.std() > 1.3 * bursts.mean()


def test_every_interval_sees_the_same_failures() -> None:
    failures = FailureProcess(HOUR)
    both = sweep(
        JobCosts(checkpoint=5, restart=60),
        (300.0, 900.0),
        100 * HOUR,
        failures,
        np.random.default_rng(1),
        8,
    )
    alone = simulate(
        JobCosts(900.0, 5, restart=60), 100 * HOUR, failures, np.random.default_rng(1), 8
    )
    assert (both.wall[1] == alone.wall[0]).all() and (both.wall[0] != both.wall[1]).all()


def test_the_best_interval_may_lie_between_those_tried() -> None:
    grid = np.geomspace(10, 1000, 41)
    overheads = (np.log(grid / 130.0)) ** 2
    assert experiments._vertex(grid, overheads, int(overheads.argmin())) == pytest.approx(130)
    # no minimum there: the best one tried
    assert experiments._vertex(grid, -overheads, 20) == grid[20]


def test_the_search_finds_the_best_interval() -> None:
    found = search(
        JobCosts(checkpoint=60, restart=300),
        FailureProcess(2 * HOUR),
        100,
        48,
        np.random.default_rng(5),
    )
    assert found is not None and found.simulated == pytest.approx(found.exact, rel=0.1)
    assert found.low < found.exact < found.high < 2 * found.low
    best = found.at["simulated"]
    assert (
        found.surely <= 0 < found.at["daly"] < 1.02 * best
        and min(found.overheads[0], found.overheads[-1]) > 1.5 * best
    )
    # no restart ever ends
    assert (
        search(
            JobCosts(checkpoint=1, restart=1000),
            FailureProcess(10.0),
            5,
            3,
            np.random.default_rng(5),
        )
        is None
    )


# --- the model

PARTS = Parts(
    mini_batch=2.0,
    checkpoint=5.0,
    init=30.0,
    restart=10.0,
    every=100,
    detect=1.0,
    regroup=0.25,
    join=4.0,
    snapshot=0.1,
)


@pytest.mark.parametrize(
    ("strategy", "costs"),
    [
        (
            "checkpoint_restart",
            {"detect": 1, "replace": 60, "init": 30, "restart": 10, "replay": 80, "redo": 0.5},
        ),
        ("checkpoint_restart, spares", {"detect": 1, "spare": 10, "replay": 80, "redo": 0.5}),
        ("in_memory, spares", {"detect": 1, "spare": 10, "replay": 0, "redo": 0.5}),
        (
            "immediate_rollback",
            {"detect": 1, "replace": 60, "init": 30, "restart": 10, "join": 4, "redo": 0.5},
        ),
        ("immediate_rollback, spares", {"detect": 1, "spare": 10, "join": 4, "redo": 0.5}),
        ("skip", {"detect": 1, "regroup": 0.5, "join": 4, "redo": 0.5, "degraded": 25}),
        ("lossy_forward", {"detect": 1, "regroup": 0.5, "join": 4, "lost": 0.5, "degraded": 25}),
    ],
)
def test_a_failure_is_the_sum_of_its_parts(strategy: str, costs: dict[str, float]) -> None:
    """Two of eight workers die 40 mini-batches after the checkpoint, a quarter into the next; their
    places can be filled after a minute.
    """
    scenario = FailureScenario(8, casualties=2, replace_s=60, spare_share=0.25)
    assert BY_NAME[strategy].costs(PARTS, scenario, Loss(40, 0.25)) == pytest.approx(costs)


def test_half_an_interval_is_expected_and_jobs_have_the_parameters_of_their_strategy() -> None:
    loss = expected_loss(PARTS, 100)
    assert (loss.since + loss.share) * PARTS.mini_batch == 100
    scenario = FailureScenario(8, spare_share=0.25)
    made = job_spec(BY_NAME["checkpoint_restart, every epoch"], PARTS, scenario, HOUR, 0.0)
    assert made == JobCosts(200, 5, restart=41, fatal=1)
    assert job_spec(BY_NAME["checkpoint_restart"], PARTS, scenario, HOUR, 0.5) == replace(
        made, interval=daly(5, HOUR)
    )
    lossy = job_spec(BY_NAME["lossy_forward"], PARTS, scenario, HOUR, 0.0)
    assert lossy == JobCosts(fatal=0, pause=5.5, debt=0.25 + 5)
    assert job_spec(BY_NAME["lossy_forward"], PARTS, scenario, HOUR, 0.5) == replace(
        lossy, fatal=0.5, interval=daly(5, 2 * HOUR), checkpoint=5, restart=41
    )
    memory = job_spec(BY_NAME["in_memory, spares"], PARTS, scenario, HOUR, 0.5)
    assert (memory.tax, memory.grain, memory.restart) == (0.05, 2, 11)


def test_an_efficiency_is_the_inverse_of_the_mean_wall_time() -> None:
    """Of two jobs that take 1 and 3 times their work, half the time is work; the mean of both
    shares would be two thirds.
    """
    assert inverse(told(np.array([1.0, 3.0, 1.0, 3.0]))).mean == 0.5
    assert inverse(Estimate(2.0, 1.6, 2.5)) == Estimate(0.5, 0.4, 0.625) and inverse(
        Estimate(2.0, -1.0, 5.0)
    ) == Estimate(0.5, 0.2, 1.0)
    lab = experiments.Experiments(RecoveryOverhead(failures=5, repetitions=8))
    said = lab.published_interval(
        {"checkpoint": 30.0, "restart": 300.0, "mtbf": 600.0}, np.random.default_rng(2)
    )
    assert (
        said["mean"] == pytest.approx(1 / said["simulated"], rel=1e-12)
        and said["low"] < said["mean"] < said["high"]
    )


def test_the_published_numbers() -> None:
    """Table I as printed in its rows of times; replay in the scenarios; "two orders of magnitude"
    is 5.5 with what both pay.
    """
    assert (RESNET.mini_batch, RESNET.checkpoint, RESNET.init, RESNET.restart, RESNET.every) == (
        0.17,
        0.48,
        3.0,
        4.09,
        390,
    )
    after, back = (
        published(name, RESNET, 195) or 0 for name in ("checkpoint_restart", "immediate_rollback")
    )
    assert (after, back) == pytest.approx((40.24, 7.26)) and published(
        "lossy_forward", RESNET, 195
    ) == 0
    table = scenarios(RecordIndex(RecoveryOverhead(), PUBLISHED, [], []))
    assert [(row["epoch"], row["since"]) for row in table.rows] == [
        (0, 200),
        (10, 100),
        (25, 250),
        (64, 40),
        (0, 10),
        (4, 26),
        (8, 52),
    ]
    assert table.rows[2]["replay"] == pytest.approx(42.5) and table.rows[2][
        "epoch_s"
    ] == pytest.approx(66.3)


def test_a_snapshot_follows_from_the_mini_batch_that_is_typed() -> None:
    assert typed(RecoveryOverhead(), RESNET).snapshot == pytest.approx(0.0034)
    assert (
        typed(RecoveryOverhead(mini_batch_s=10), RESNET).snapshot
        == typed(RecoveryOverhead(mini_batch_s=10), PARTS).snapshot
        == pytest.approx(0.2)
    )
    assert typed(RecoveryOverhead(mini_batch_s=5, snapshot_s=0.3), RESNET).snapshot == 0.3


def test_the_crossover_is_where_both_cost_the_same() -> None:
    index = RecordIndex(RecoveryOverhead(replace_s=60), {}, [], [])
    lossy, spared = BY_NAME["lossy_forward"], BY_NAME["immediate_rollback, spares"]
    at = threshold(index, PARTS, lossy, spared)
    assert at is not None

    def cost(strategy: str, workers: float) -> float:
        return math.fsum(
            BY_NAME[strategy]
            .costs(PARTS, replace(index.scenario(8), workers=workers), Loss(0.0))
            .values()
        )  # type: ignore[arg-type]

    assert cost("lossy_forward", at) == pytest.approx(cost("immediate_rollback, spares", at))
    assert cost("lossy_forward", 2 * at) < cost("immediate_rollback, spares", 2 * at)
    assert threshold(index, replace(PARTS, regroup=1000), lossy, spared) is None


def test_two_minutes_at_a_hundred_thousand() -> None:
    """At the MTBF that makes the sentence true two minutes is the longest interval of 90%; the
    source's own 40,000 h want a slower restart.
    """
    needed = closed_forms.needed(0.48, 7.13)
    assert needed is not None and closed_forms.WORKERS * needed / HOUR == pytest.approx(
        18_700, rel=0.01
    )
    assert closed_forms.longest(0.48, 7.13, needed) == pytest.approx(120)
    read = closed_forms.read_claim(0.48, 7.13)
    assert read.longest == pytest.approx(279, abs=1) and read.restart == pytest.approx(
        85.3, abs=0.1
    )
    assert closed_forms.read_claim(0.48, read.restart or 0).longest == pytest.approx(120)
    assert closed_forms.read_claim(5, 30).longest == pytest.approx(120, rel=0.01)
    assert (
        closed_forms.read_claim(20, 0).needed_mtbf is None
        and closed_forms.read_claim(5, 600).longest is None
    )


# --- runs on record


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: one without failures, and one killed 3 and 2 steps after its checkpoints."""
    folder = tmp_path_factory.mktemp("sweep")
    build_ref(folder)
    build_blk(folder)
    return folder


def test_parts_are_those_on_record(recorded: Path) -> None:
    """By the builder: steps of 25 ms, stalls of 36 ms, 2 of them a wait for one another;
    0.2 s to notice, 0.1 s to choose, then 0.3, 0.5, 0.1 and 0.2 s to start."""
    parts = measured_parts(recordings(recorded))
    found = (
        parts.mini_batch,
        parts.checkpoint,
        parts.detect,
        parts.init,
        parts.restart,
        parts.every,
    )
    assert found == pytest.approx((0.025, 0.036, 0.2, 0.9, 0.3, 6))
    (blk,) = recordings(recorded / "blk")
    assert [(f.attempt, f.since) for f in blk.failures] == [(1, 3), (2, 2)] and [
        f.replay for f in blk.failures
    ] == pytest.approx([0.075, 0.05])


def test_live_recoveries_on_record_go_before_what_is_assumed(
    recorded: Path, tmp_path: Path
) -> None:
    """What survivors took to notice, to regroup and to take a spare in, as the timeline has it;
    without any of them the assumptions stay.
    """
    assumed = measured_parts(recordings(recorded))
    assert (assumed.regroup, assumed.join) == (REGROUP_S, JOIN_S)
    shutil.copytree(recorded, tmp_path / "both")
    records = load(build_rollback(tmp_path / "both"))
    spent = phases(records, timeline(records))
    (live,) = (recording.live for recording in recordings(tmp_path / "both") if recording.live)
    assert [(each.detect, each.regroup, each.join) for each in live] == [
        tuple(spent[n][p] for p in ("detect", "rendezvous", "load")) for n in (1, 2)
    ]
    parts = measured_parts(recordings(tmp_path / "both"))
    assert (
        parts.regroup == pytest.approx(sum(each.regroup for each in live) / 2)
        and parts.regroup != REGROUP_S
    )
    assert (
        parts.join == pytest.approx(sum(each.join or 0.0 for each in live) / 2)
        and parts.join != JOIN_S
    )
    assert parts.detect == pytest.approx(
        (2 * assumed.detect + sum(each.detect for each in live)) / 4
    )
    assert (parts.init, parts.restart) == (assumed.init, assumed.restart)


def test_survivors_whom_nobody_joins_say_nothing_of_joining(recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded, tmp_path / "both")
    build_lossy(tmp_path / "both")
    parts = measured_parts(recordings(tmp_path / "both"))
    assert parts.join == JOIN_S and parts.regroup != REGROUP_S


def test_a_first_step_that_is_done_again_warms_up() -> None:
    """Steps 7 and 8 of attempt 1 are replayed in 100 and 25 ms, where a mini-batch takes 25: three
    quarters of a tenth belong to the restart.
    """
    pieces = (
        TimelineSlice("replay", 0.0, 0.06, 1, 0, 7),
        TimelineSlice("replay", 0.06, 0.1, 1, 0, 7),
        TimelineSlice("replay", 0.1, 0.125, 1, 0, 8),
    )
    again = (TimelineSlice("replay", 1.0, 3.0, 2, 0, 3), TimelineSlice("load", 0.5, 1.0, 1, 0))
    times = Timeline((*pieces, *again), ((0.0, 3.0),), 0.0)
    assert record_index._warm_up(times, 1, 0.025) == pytest.approx(0.075)
    assert record_index._warm_up(times, 3, 0.025) == record_index._warm_up(times, 1, 0.2) == 0


def test_a_mini_batch_is_a_step_done_once_and_warm() -> None:
    """Step 1 warms up, step 2 takes 25 ms and stands still for a checkpoint, step 3 is done
    again.
    """
    spans = (
        ("warm_up", 0.0, 0.3, 1),
        ("compute", 0.3, 0.32, 1),
        ("compute", 0.32, 0.34, 2),
        ("sync", 0.34, 0.345, 2),
        ("write_wait", 0.345, 0.4, 2),
    )
    pieces = tuple(
        TimelineSlice(category, start, end, 0, 0, step)
        for category, start, end, step in (*spans, ("replay", 0.4, 0.5, 3))
    )
    assert record_index._mini_batches(Timeline(pieces, ((0.0, 0.5),), 0.0)) == pytest.approx(
        [0.025]
    )


def test_a_failure_is_predicted_from_the_others(recorded: Path) -> None:
    """The second restart is made to last a second longer: the first is predicted with it, the
    second without, each by a second wrong.
    """
    ref, blk = sorted(recordings(recorded), key=lambda recording: len(recording.failures))
    first, second = blk.failures[0], replace(blk.failures[1], restart=blk.failures[1].restart + 1)
    blk = replace(blk, failures=(first, second))
    lab = experiments.Experiments(RecoveryOverhead())
    for failure, error in ((first, 1.0), (second, -1.0)):
        parts, others = parts_without([ref, blk], blk, failure)
        facts = {"others": vars(parts), "workers": 2, **vars(failure)}
        said = lab.recorded(facts, np.random.default_rng(0))
        assert others == 1 and said["total"] - said["measured"] == pytest.approx(error)
    context = StudyContext(StudyConfig(RecoveryOverhead(source=str(recorded))), recorded)
    context._shared[overhead_study._recordings] = [ref, blk]
    study = overhead_study.STUDY.open(context)
    planned = [trial.facts for trial in study.plan() if trial.facts["kind"] == "recorded"]
    assert [facts["others"]["restart"] - facts["restart"] for facts in planned] == pytest.approx(
        [1.0, -1.0]
    )


def test_the_study_predicts_recorded_failures(recorded: Path, tmp_path: Path) -> None:
    config = RecoveryOverhead(
        source=str(recorded),
        mtbf_min=(600,),
        workers=(4000,),
        failures=30,
        repetitions=12,
        checkpoint_s=0.05,
        replace_s=9,
    )
    result = result_of(config, tmp_path / "study")
    tables = {table["name"]: table["rows"] for table in result["tables"]}
    assert [row["error"] for row in tables["recorded"]] == pytest.approx([0, 0], abs=1e-9)
    assert {row["run"]: row["failures"] for row in tables["runs"]} == {"blk": 2, "ref": 0}
    assert all(abs(row["error"]) < 0.02 for row in tables["runs"])
    assert next(row for row in tables["per-failure"] if row["strategy"] == "checkpoint_restart")[
        "init"
    ] == pytest.approx(0.9)
    assert tables["two-minutes"][-1]["checkpoint"] == 0.05  # typed: it goes before the record's


def test_a_trial_needs_nothing_but_its_facts(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(recorded, folder)
    config = RecoveryOverhead(source=str(folder), mtbf_min=(600,), workers=(8,))
    plan = {trial.key: trial for trial in study_of(config, tmp_path).plan()}
    shutil.rmtree(folder)
    found = study_of(config, tmp_path).run(plan["recorded/blk/1"])
    assert found["total"] == pytest.approx(found["measured"]) == pytest.approx(1.475)


def test_runs_that_say_nothing_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_clean(tmp_path)
    for source, fact in (
        (tmp_path, "none of its runs had a failure"),
        (tmp_path / "clean" / "logs", "no run with a recorded step"),
    ):
        with pytest.raises(EvidenceMissing, match=fact):
            study_of(RecoveryOverhead(source=str(source)), tmp_path).plan()
    monkeypatch.chdir(tmp_path)
    assert (
        main(["study", "study=recovery-overhead", f"study.source={tmp_path}", "run_dir=out"]) == 3
    )
    assert not StudyLayout(tmp_path / "out").study.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["study.source=nowhere"], "study.source: 'nowhere' is no folder"),
        (["study.source=typed", "study.checkpoint_s=1"], "study.mini_batch_s: is 0"),
        (["study.mtbf_min=[0]"], "study.mtbf_min: must be >= 1"),
        (["study.fatal_percent=[101]"], "study.fatal_percent: must be >= 0"),
        (["study.workers=[8,8]"], "study.workers: must name at least one, each once"),
        (
            ["study.workers=[64,8]", "study.casualties=8"],
            "study.casualties: 8 of 8 workers leave no survivor",
        ),
        (["study.workers=[1]"], "study.casualties: 1 of 1 workers leave no survivor"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", "study=recovery-overhead", *words]) == 2
    assert said in capsys.readouterr().err and list(tmp_path.iterdir()) == []


# --- the study


def study_of(config: RecoveryOverhead, scratch: Path) -> PreparedStudy:
    return overhead_study.STUDY.open(StudyContext(StudyConfig(config), scratch))


def result_of(config: RecoveryOverhead, folder: Path) -> dict[str, Any]:
    assert run_study(StudyConfig(config, workers=1), folder, lambda line: None) == 0
    found: dict[str, Any] = json.loads(StudyLayout(folder).result.read_text())
    return found


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Every trial of SMALL, as a journal gives them back."""
    study = study_of(SMALL, tmp_path_factory.mktemp("study"))
    return [
        Record(t.key, json.loads(json.dumps(t.facts)), json.loads(json.dumps(study.run(t))), 0.0)
        for t in study.plan()
    ]


def failed(records: Sequence[Record]) -> set[str]:
    parts = {"typed": typed(SMALL, PARTS)}
    return {gate.name for gate in gates(RecordIndex(SMALL, parts, [], records)) if not gate.passed}


def bent(records: Sequence[Record], kind: str, change: Any, key: str = "") -> list[Record]:
    """`records` with the found of those of `kind` (whose key holds `key`) changed."""
    return [
        replace(r, found=change(r.found)) if r.facts["kind"] == kind and key in r.key else r
        for r in records
    ]


def test_every_gate_passes_and_can_fail(records: list[Record]) -> None:
    assert failed(records) == set()
    off = {"score": 30.0}
    assert failed(
        bent(records, "check", lambda found: found | off, "rollback: interval 1 M, checkpoint 0.1")
    ) == {"closed form"}
    assert failed(bent(records, "two minutes", lambda found: found | off, "published")) == {
        "two minutes"
    }
    assert failed(
        bent(records, "check", lambda found: found | {"score": 0.1}, "a restart never fails")
    ) == {"planted: a restart never fails"}

    def dear(found: dict[str, Any]) -> dict[str, Any]:
        return {
            "rows": [row | {"mean": 2.0, "low": 1.9, "high": 2.1} for row in found["rows"]],
            "pairs": found["pairs"],
        }

    assert failed(bent(records, "scale", dear, "/600/8")) == {"monotone"}
    assert failed(
        bent(
            records,
            "scale",
            lambda found: found | {"rows": [row | {"mean": None} for row in found["rows"]]},
            "/45/8",
        )
    ) == {"ends"}

    def steep(found: dict[str, Any]) -> dict[str, Any]:
        best = found["optimum"]
        return {"optimum": best | {"surely": 0.06 * best["at"]["simulated"]}}

    assert failed(bent(records, "optimum", steep, "/45/8")) == {"optimum: flat"}
    far = bent(
        records,
        "optimum",
        lambda found: {"optimum": found["optimum"] | {"low": 1.6 * found["optimum"]["exact"]}},
        "/45/8",
    )
    assert failed(far) == {"optimum: near"}
    assert failed([]) >= {"closed form", "optimum", "two minutes", "ends"}


def test_a_prediction_that_is_far_off_fails_its_gate(
    recorded: Path, records: list[Record], tmp_path: Path
) -> None:
    config = RecoveryOverhead(source=str(recorded), mtbf_min=(600,), workers=(8,))
    study = study_of(config, tmp_path)
    trials = [trial for trial in study.plan() if trial.key.startswith("recorded")]
    found = [Record(trial.key, trial.facts, study.run(trial), 0.0) for trial in trials]
    far = [
        replace(record, found=record.found | {"total": 2 * record.found["measured"]})
        for record in found
    ]

    def prediction(records: Sequence[Record]) -> bool:
        index = RecordIndex(config, {}, recordings(recorded), records)
        return next(gate.passed for gate in gates(index) if gate.name == "prediction")

    assert prediction(found) and not prediction(far) and not prediction([])


def test_one_failure_on_record_is_no_prediction_of_itself(recorded: Path, tmp_path: Path) -> None:
    """Neither gate nor sentence nor error, and the reason is told; with another one beside it all
    of them.
    """
    ref, blk = sorted(recordings(recorded), key=lambda recording: len(recording.failures))
    config = RecoveryOverhead(source=str(recorded), mtbf_min=(600,), workers=(8,))
    for failures, due in ((blk.failures[:1], 0), (blk.failures, 1)):
        context = StudyContext(StudyConfig(config), tmp_path)
        context._shared[overhead_study._recordings] = [ref, replace(blk, failures=failures)]
        study = overhead_study.STUDY.open(context)
        found = [
            Record(t.key, t.facts, study.run(t), 0.0)
            for t in study.plan()
            if t.facts["kind"] == "recorded"
        ]
        shown = study.findings(found)
        assert (
            sum(gate.name == "prediction" for gate in shown.gates)
            == sum("on record, predicted" in note for note in shown.notes)
            == due
        )
        (rows,) = (table.rows for table in shown.tables if table.name == "recorded")
        assert [row["error"] is not None for row in rows] == [bool(due)] * len(failures)
        assert any(figure.name == "recorded" for figure in shown.figures) == bool(due)
        assert [skip.arm for skip in study.skips()] == ["prediction"] * (not due)


def test_a_strategy_costs_what_its_closed_form_expects(records: list[Record]) -> None:
    """In every cell, exactly known or approximated, within six standard errors and a fiftieth; and
    they rank as they must.
    """
    rows = [
        row for record in records if record.facts["kind"] == "scale" for row in record.found["rows"]
    ]
    assert len(rows) == 4 * (3 + 2 * 5)
    for row in rows:
        assert (
            abs(row["mean"] - row["expected"])
            < 3 * (row["high"] - row["low"]) / 2 + 0.02 * row["expected"]
        ), row
    for record in records:
        if record.facts["kind"] == "scale":
            mean = {
                row["strategy"]: row["mean"]
                for row in record.found["rows"]
                if row["fatal_percent"] in (None, 0)
            }
            assert (
                mean["lossy_forward"] < mean["skip"]
                and mean["immediate_rollback, spares"]
                < mean["immediate_rollback"]
                < mean["checkpoint_restart"]
            )
            assert (
                mean["checkpoint_restart, spares"]
                < mean["checkpoint_restart"]
                <= 1.02 * mean["checkpoint_restart, every epoch"]
            )


def test_the_study_has_its_report(tmp_path: Path) -> None:
    small = RecoveryOverhead(mtbf_min=(45, 600), workers=(8, 100_000), failures=20, repetitions=8)
    result = result_of(small, tmp_path / "study")
    assert [table["name"] for table in result["tables"]][:4] == [
        "overheads",
        "per-failure",
        "scenarios",
        "crossovers",
    ]
    assert {figure["name"].split("-")[0] for figure in result["figures"]} == {
        "workers",
        "mtbf",
        "parts",
        "interval",
        "flat",
    }
    assert any("5.5 times" in note for note in result["notes"]) and any(
        "18,70" in note for note in result["notes"]
    )
    made = report([tmp_path / "study"])
    assert made.exit_code == 0 and made.page.read_text().count("<figure") == len(result["figures"])
    assert waiting({"detect": 1.0, "replay": 5.0}) == 1.0


@pytest.mark.parametrize(("least", "scale"), [(0.1, "log"), (0.0, "linear")])
def test_a_logarithmic_axis_hides_no_zero(least: float, scale: str) -> None:
    figure = Figure(
        "name", "title", "lines", "x", "y", (Series("a", (least, 10.0), (1.0, 2.0)),), log_y=True
    )
    assert draw(figure).axes[0].get_yscale() == scale
