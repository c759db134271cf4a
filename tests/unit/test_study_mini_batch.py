"""The simulated study of failures within a mini-batch: its statements about bits, what it plans,
and that each of its gates can fail.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ecrl_cli.cli.main import main
from ecrl_cli.config.studies import MiniBatchFailure
from ecrl_cli.config.study import build_study
from ecrl_cli.errors import ConfigError, DatasetError
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import StudyLayout
from ecrl_cli.records.survivor_records import LOST, REPEATED
from ecrl_cli.replication.mini_batch import long_run
from ecrl_cli.replication.mini_batch.cells import (
    ScenarioTrial,
    corrections,
    left_out,
    planned,
    survivors,
    try_scenario,
)
from ecrl_cli.replication.mini_batch.claims import claims
from ecrl_cli.replication.mini_batch.counts import MiniBatch, MiniBatchCounts, measured, predicted_s
from ecrl_cli.replication.mini_batch.findings import due, findings
from ecrl_cli.replication.mini_batch.long_run import struck
from ecrl_cli.replication.mini_batch.samples import samples_of
from ecrl_cli.replication.mini_batch.simulated_run import (
    EXACT,
    RECOVER,
    Corrections,
    SimulatedFailure,
    SimulatedRun,
)
from ecrl_cli.replication.mini_batch.simulated_trainer import (
    Pass,
    SimulatedCheckpoints,
    State,
    Trainee,
    Workers,
    average,
)
from ecrl_cli.replication.mini_batch.sizes import PAPER, SIZES, SMALL, SMOKE
from ecrl_cli.report.figures.studies import draw
from ecrl_cli.report.model.inputs import StudyInput
from ecrl_cli.report.model.study_record import read_studies
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.verify.sample_accounting import unaccounted

WORKERS, FAILING, SEED = 4, 3, 7
CONFIG = MiniBatchFailure(
    scale="smoke",
    replicas=WORKERS,
    survivors=(2, 3),
    percents=(25, 75),
    seeds=2,
    failures=2,
    rounds=1,
    averages=0,
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["resnet50", "nt3"])
def sim(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SimulatedRun]:
    """A run right before the mini-batch that fails, with a checkpoint from its beginning. With
    BatchNorm and momentum, and without either.
    """
    size = SMOKE[request.param]
    trainer = Trainee(size, SEED)
    workers = Workers(trainer, samples_of(CONFIG, request.param, size, SEED))
    made = SimulatedRun(trainer, workers, SimulatedCheckpoints(tmp_path / "checkpoints", trainer))
    made.run_to(FAILING - 1)
    yield made
    made.checkpoints.close()


def without_failure(sim: SimulatedRun) -> tuple[str, State]:
    """The digest after the mini-batch, and the state before it, in which the run is again."""
    before = sim.trainee.state()
    sim.step()
    digest = sim.trainee.digest()
    sim.trainee.restore(before)
    sim.undo_after(FAILING - 1)
    return digest, before


def has_momentum(sim: SimulatedRun) -> bool:
    return sim.workers.samples.size.optimizer.momentum > 0


def test_backward_goes_from_the_last_layer_to_the_first_and_a_death_stops_it_there(
    sim: SimulatedRun,
) -> None:
    names = [sim.trainee.names[index] for index in sim.workers.order]
    assert sorted(names) == sorted(sim.trainee.names)
    assert {names[0], names[1]} == set(sim.trainee.names[-2:])
    assert set(names[-2:]) & set(sim.trainee.names[:2])
    whole = sim.workers.compute(FAILING, 2)
    before = sim.trainee.buffers_now()
    for until in (0, 1, 3):
        sim.trainee.put_buffers(before)
        part = sim.workers.compute(FAILING, 2, until=until)
        assert len(part.gradients) == until
    sim.trainee.put_buffers(before)
    again = sim.workers.compute(FAILING, 2, until=3)
    sim.trainee.put_buffers(before)
    assert all(
        torch.equal(one, other)
        for one, other in zip(
            again.gradients, sim.workers.compute(FAILING, 2).gradients, strict=False
        )
    )
    assert len(whole.gradients) == len(names)


def test_a_masked_update_leaves_every_bit_and_a_zero_gradient_does_not(sim: SimulatedRun) -> None:
    """Under momentum or weight decay. Contradiction C-35: plain SGD stays where it is."""
    before = sim.trainee.state()
    passes = sim.workers.all(FAILING)
    first, rest = sim.workers.order[0], list(sim.workers.order[1:])
    (gradient,) = average(passes, slice(0, 1), WORKERS)
    sim.trainee.update({first: gradient})
    assert sim.trainee.unmoved(before, rest) and not sim.trainee.unmoved(before, [first])
    sim.trainee.restore(before)
    sim.trainee.update({first: gradient}, zero_others=True)
    assert sim.trainee.unmoved(before, rest) is not has_momentum(sim)


def test_a_restored_state_has_every_bit_and_a_copy_shares_nothing(sim: SimulatedRun) -> None:
    digest, state = sim.trainee.digest(), sim.trainee.state()
    sim.step()
    assert sim.trainee.digest() != digest
    sim.trainee.restore(state)
    assert sim.trainee.digest() == digest
    fresh = Trainee(sim.samples.size, SEED)
    start, beginning = fresh.digest(), fresh.state()
    fresh.restore(state)
    fresh.restore(beginning)  # moments that were not there yet are not there again
    assert fresh.digest() == start


def test_an_average_is_the_sum_in_the_workers_order_by_the_divisor() -> None:
    gradients = [
        (torch.tensor([1e8]), torch.tensor([2.0])),
        (torch.tensor([1.0]), torch.tensor([4.0])),
        (torch.tensor([-1e8]), torch.tensor([6.0])),
    ]
    passes = [Pass(worker, each, (), 0.0, 0.0) for worker, each in enumerate(gradients)]
    head, tail = average(passes, slice(0, 1), 3), average([passes[0], passes[2]], slice(1, None), 2)
    assert torch.equal(
        head[0], torch.tensor([(np.float32(1e8) + np.float32(1.0)) + np.float32(-1e8)]) / 3
    )
    assert [each.item() for each in tail] == [4.0]
    assert [each.item() for each in gradients[0]] == [1e8, 2.0]
    assert average(passes, slice(0, 0), 3) == []


@pytest.mark.parametrize("percent", [0, 25, 75])
@pytest.mark.parametrize("name", list(RECOVER))
def test_exact_recoveries_end_where_the_run_without_a_failure_ends_and_the_others_do_not(
    sim: SimulatedRun, name: str, percent: int
) -> None:
    digest, _ = without_failure(sim)
    RECOVER[name](sim, SimulatedFailure(FAILING, percent, (1, 3)))
    exact = name in EXACT or (name == "half_updated_rollback" and percent == 0)
    assert (sim.trainee.digest() == digest) is exact
    assert sim.done == FAILING and sim.kept
    windows = {step: sim.samples.window(step) for step in range(1, FAILING + 1)}
    assert unaccounted(windows, sim.trainee.names, sim.applied, sim.lost_samples) == []
    assert bool(sim.lost_samples) is not exact


def test_a_rollback_that_leaves_the_buffers_is_not_exact_even_in_forward(sim: SimulatedRun) -> None:
    """Contradiction C-36: forward is not read-only where there is BatchNorm."""
    digest, _ = without_failure(sim)
    sim.corrections = Corrections(buffers=False)
    RECOVER["half_updated_rollback"](sim, SimulatedFailure(FAILING, 0))
    assert (sim.trainee.digest() == digest) is not bool(sim.trainee.buffers)


def test_survivors_average_among_themselves_and_lose_the_dead_ones_samples(
    sim: SimulatedRun,
) -> None:
    _, before = without_failure(sim)
    places, order = sim.places(25), sim.workers.order
    passes = sim.workers.all(FAILING)
    sim.trainee.restore(before)
    head, tail = (
        average(passes, slice(0, places), WORKERS),
        average([passes[1], passes[3]], slice(places, None), 2),
    )
    sim.trainee.update(dict(zip(order, [*head, *tail], strict=True)))
    sim.trainee.put_buffers(passes[1].buffers)
    expected = sim.trainee.digest()
    sim.trainee.restore(before)
    RECOVER["lossy_forward"](sim, SimulatedFailure(FAILING, 25, (1, 3)))
    assert sim.trainee.digest() == expected
    (line,) = sim.lost_samples
    dead = [int(each) for worker in (0, 2) for each in sim.samples.ids(FAILING, worker)]
    assert (line.effect, line.ranks, list(line.samples)) == (LOST, (0, 2), dead)
    assert line.layers == tuple(sim.trainee.names[index] for index in order[places:])
    sim.trainee.restore(before)
    sim.undo_after(FAILING - 1)
    sim.corrections = Corrections(division=False)
    RECOVER["lossy_forward"](sim, SimulatedFailure(FAILING, 25, (1, 3)))
    assert sim.trainee.digest() != expected


def test_what_a_rollback_repeats_and_a_skip_loses_is_on_record(sim: SimulatedRun) -> None:
    _, before = without_failure(sim)
    places, names = sim.places(75), [sim.trainee.names[index] for index in sim.workers.order]
    for name, effect, layers in (
        ("half_updated_rollback", REPEATED, names[:places]),
        ("skip", LOST, names[places:]),
    ):
        sim.trainee.restore(before)
        sim.undo_after(FAILING - 1)
        sim.lost_samples.clear()
        RECOVER[name](sim, SimulatedFailure(FAILING, 75))
        (line,) = sim.lost_samples
        assert (line.effect, list(line.layers), line.samples) == (
            effect,
            layers,
            sim.samples.window(FAILING),
        )


def test_who_restarts_replays_from_the_beginning_of_the_epoch(sim: SimulatedRun) -> None:
    sim.steps_s.clear()
    RECOVER["checkpoint_restart"](sim, SimulatedFailure(FAILING, 25))
    assert len(sim.steps_s) == FAILING and len(sim.checkpoints.loading_s) == 1


@pytest.mark.parametrize("percent", [1, 99])
def test_a_failure_in_backward_always_comes_between_two_gradients(
    sim: SimulatedRun, percent: int
) -> None:
    """One percent of ten tensors is none, 99 are all: neither would be a failure in backward."""
    digest, _ = without_failure(sim)
    RECOVER["half_updated_rollback"](sim, SimulatedFailure(FAILING, percent))
    assert sim.trainee.digest() != digest and 0 < sim.places(percent) < len(sim.workers.order)
    assert sim.places(0) == 0


def test_the_record_misses_what_a_restart_did_not_replay(
    sim: SimulatedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hasty(sim: SimulatedRun, failure: SimulatedFailure) -> None:
        sim.undo_after(sim.checkpoints.restore() + 1)
        while sim.done < failure.mini_batch:
            sim.step()

    monkeypatch.setitem(RECOVER, "checkpoint_restart", hasty)
    config = replace(CONFIG, strategies=("checkpoint_restart",))
    (found,) = try_scenario(sim, FAILING, config, "key", random.Random(1))["cells"]
    assert found["unaccounted"][0].startswith("step 1: ")


def test_what_survivors_leave_out_is_measured_against_everybody(sim: SimulatedRun) -> None:
    """Worker 2's gradients are ten times those of the others: its death is the one that matters."""
    like = [torch.ones_like(sim.trainee.parameters[index]) for index in sim.workers.order]
    sim.remembered[FAILING] = [
        Pass(worker, tuple(each * size for each in like), (), 0.0, 0.0)
        for worker, size in enumerate((1.0, 1.0, 10.0, 1.0))
    ]
    assert left_out(sim, FAILING, 25, (0, 1, 2, 3)) == {"off": 0.0, "outlier_lost": False}
    without = left_out(sim, FAILING, 25, (0, 1))
    assert without["outlier_lost"] and without["off"] == pytest.approx(1 - 1 / 3.25)
    assert left_out(sim, FAILING, 25, (0, 2)) == {
        "off": pytest.approx(5.5 / 3.25 - 1),
        "outlier_lost": False,
    }


def test_the_model_adds_up_what_a_strategy_does() -> None:
    parts = MiniBatch(whole_s=10.0, forward_s=4.0, copy_s=1.0)
    assert [parts.begun_s(percent) for percent in (0, 50)] == [4.0, 7.0]
    expected = {
        "checkpoint_restart": 30.0,
        "half_updated_rollback": 18.0,
        "consistent_rollback": 19.0,
        "lossy_forward": 10.0,
        "skip": 7.0,
    }
    assert {name: predicted_s(name, 50, 3, parts) for name in RECOVER} == expected


def test_only_the_small_resnet_begins_with_branches_that_add_nothing() -> None:
    branch = Trainee(SMALL["resnet50"], SEED).model.layer1[1]  # type: ignore[index]
    x = torch.rand(2, 16, 8, 8)
    assert torch.equal(branch(x), x)
    assert [size.quiet for size in PAPER.values()] == [False, False]


def test_every_worker_has_its_own_samples_and_an_epoch_has_each_as_often_as_it_should() -> None:
    shared, own = (samples_of(CONFIG, name, SMOKE[name], SEED) for name in ("resnet50", "nt3"))
    seen = sorted(
        sample for step in range(1, shared.per_epoch + 1) for sample in shared.window(step)
    )
    assert seen == list(range(SMOKE["resnet50"].train))
    for worker in range(WORKERS):
        assert sorted(
            int(each) for step in range(1, own.per_epoch + 1) for each in own.ids(step, worker)
        ) == list(range(SMOKE["nt3"].train))
    assert own.ids(1, 0).tolist() != own.ids(1, 1).tolist()
    assert np.array_equal(own.ids(1, 1), samples_of(CONFIG, "nt3", SMOKE["nt3"], SEED).ids(1, 1))


def test_the_published_geometry() -> None:
    """390 and 56 mini-batches an epoch; 56 and not the 55 of the published table puts NT3's 500th
    into epoch 8.
    """
    assert [PAPER[name].per_epoch(8) for name in ("resnet50", "nt3")] == [390, 56]
    assert [(each - 1) // 390 for each in PAPER["resnet50"].scenarios] == [0, 10, 25, 64]
    assert [(each - 1) // 56 for each in PAPER["nt3"].scenarios] == [0, 4, 8]
    for sizes in SIZES.values():
        assert all(
            0 < each <= size.mini_batches(8)
            for size in sizes.values()
            for each in size.scenarios.values()
        )


def test_files_give_the_shape_and_a_drawn_part_of_the_samples(tmp_path: Path) -> None:
    (tmp_path / "nt3").mkdir()
    for name, rows in (("nt_train2.csv", 40), ("nt_test2.csv", 24)):
        lines = (
            ",".join(map(str, [row % 2, *(row * 7 % 5 + column % 3 for column in range(50))]))
            for row in range(rows)
        )
        (tmp_path / "nt3" / name).write_text("\n".join(lines) + "\n")
    config = replace(CONFIG, data="files", root=str(tmp_path))
    samples = samples_of(config, "nt3", SMOKE["nt3"], SEED)
    assert (samples.size.shape, len(samples.train_ids), len(set(samples.train_ids.tolist()))) == (
        (1, 1, 50),
        24,
        24,
    )
    assert max(samples.train_ids) > 24 and samples.held_out_ids.tolist() == list(range(24))
    assert {
        sample for step in range(1, samples.per_epoch + 1) for sample in samples.window(step)
    } == set(samples.train_ids.tolist())
    assert len(Workers(Trainee(samples.size, SEED), samples).compute(1, 0).gradients) == 10
    with pytest.raises(DatasetError, match="nt3 has 24 samples, this scale needs 25"):
        samples_of(config, "nt3", replace(SMOKE["nt3"], held_out=25), SEED)


def test_the_plan_has_every_cell_and_fewer_survivors_are_among_the_more() -> None:
    plan = planned(MiniBatchFailure())
    assert len(set(plan)) == len(plan)
    usual = [cell for cell in plan if not cell.flipped]
    assert {(c.percent, c.survivors) for c in usual if c.strategy == "lossy_forward"} == {
        (p, s) for p in (25, 50, 75) for s in (2, 3, 4, 5, 6)
    }
    assert {c.percent for c in usual if c.strategy == "half_updated_rollback"} == {0, 25, 50, 75}
    assert {c.percent for c in usual if c.strategy == "skip"} == {25, 50, 75}
    for casualties in ("drawn", "last", "first"):
        config = MiniBatchFailure(casualties=casualties)
        groups = [set(survivors(config, random.Random(3), number)) for number in (2, 4, 6)]
        assert groups[0] < groups[1] < groups[2] and [len(each) for each in groups] == [2, 4, 6]
    assert survivors(MiniBatchFailure(casualties="last"), random.Random(3), 2) == (0, 1)
    assert survivors(MiniBatchFailure(casualties="first"), random.Random(3), 2) == (6, 7)


def test_a_correction_left_out_is_left_out_and_its_comparison_is_the_other_way_round() -> None:
    assert corrections(MiniBatchFailure()) == Corrections()
    assert corrections(MiniBatchFailure(mask=False)) == Corrections(mask=False)
    assert corrections(MiniBatchFailure(mask=False), "mask") == Corrections()
    assert corrections(MiniBatchFailure(), "division") == Corrections(division=False)


def test_failures_are_spread_over_the_run() -> None:
    assert struck(MiniBatchFailure(failures=3), 100, "once") == [50]
    assert struck(MiniBatchFailure(failures=3), 100, "repeatedly") == [25, 50, 75]


def test_the_published_sizes_are_refused_where_they_do_not_fit_or_take_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = MiniBatchFailure(scale="paper")
    nt3 = 4 * (
        128 * 6045 * 200 + 200 + 128 * 20 + 128 + 128 * 128 * 10 + 128 + 200 * 20 + 20 + 20 * 2 + 2
    )
    assert long_run.needed_bytes(config, PAPER["nt3"]) == 16 * nt3
    monkeypatch.setattr(
        long_run.psutil, "virtual_memory", lambda: type("Memory", (), {"available": nt3})
    )
    with pytest.raises(
        ConfigError, match=r"nt3 at the scale paper needs 9\.9 GB of memory, 0\.6 GB are free"
    ):
        long_run.refuse_what_cannot_be(replace(config, applications=("nt3",)), 1)
    with pytest.raises(ConfigError, match=r"would take about .* hours here"):
        long_run.refuse_what_cannot_be(replace(CONFIG, hours=1e-9), 1)
    long_run.refuse_what_cannot_be(CONFIG, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["study.percents=[25,100]"], "study.percents: must be >= 0 and < 100, got 100"),
        (
            ["study.survivors=[8]"],
            (
                "study.survivors: 8 survivors of 8 workers: nobody would have died; lower it or"
                " raise study.replicas"
            ),
        ),
        (["study.strategies=[rollback]"], "study.strategies: must be one of checkpoint_restart"),
        (
            ["study.replicas=64"],
            "study.replicas: with 64 workers the run has 6 mini-batches, the last scenario is the",
        ),
        (["study.data=files", "study.root=nowhere"], "tinyimagenet is not there"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", "study=mini-batch-failure", *words]) == 2
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """The study from the command line, at its smallest."""
    folder = tmp_path_factory.mktemp("study") / "out"
    words = [
        f"study.{key}={value}"
        for key, value in (
            ("scale", "smoke"),
            ("replicas", WORKERS),
            ("seeds", 2),
            ("failures", 2),
            ("rounds", 1),
        )
    ]
    words += [
        "study.survivors=[2,3]",
        "study.percents=[25,75]",
        "study.averages=0",
        f"run_dir={folder}",
        "workers=1",
    ]
    return main(["study", "study=mini-batch-failure", *words]), folder


def records_of(ran: tuple[int, Path]) -> list[Record]:
    return list(read_journal(ran[1] / "trials.jsonl", Record).events)


def test_the_study_runs_and_says_everything(ran: tuple[int, Path]) -> None:
    code, folder = ran
    result = json.loads((folder / "result.json").read_text())
    assert (code, result["complete"], [gate for gate in result["gates"] if not gate["passed"]]) == (
        0,
        True,
        [],
    )
    assert [table["name"] for table in result["tables"]] == (
        "claims accuracy scenarios properties replay corrections model outliers long-run ledger"
    ).split()
    rows = {table["name"]: table["rows"] for table in result["tables"]}
    accuracy = rows["accuracy"]
    assert {(row["application"], row["published"], row["mini_batch"]) for row in accuracy} == {
        *(("small_cnn of width 4", 200, 2), ("NT3 of width 4", 10, 2), ("NT3 of width 4", 500, 5))
    }, "what was run, not what stands for it"
    assert sum(row["application"] == "NT3 of width 4" for row in accuracy) == 2 * (
        2 + 1 + 3 + 3 + 2 * 2 + 2
    )
    exact = [row for row in accuracy if row["state"].startswith(("Checkpoint", "Consistent"))]
    assert exact and all(row["difference"] == 0 for row in exact)
    assert {figure["name"] for figure in result["figures"]} >= {
        "replay",
        "accuracy-nt3-10",
        "slowdown-nt3-500",
        "end-nt3",
        "evolution-nt3-accuracy",
    }
    drawn = {figure["name"]: figure for figure in result["figures"]}
    assert drawn["accuracy-nt3-10"]["title"].startswith(
        "NT3 of width 4, mini-batch 2 (published: 10)"
    )
    assert "Checkpoint restart" in drawn["slowdown-nt3-500"]["categories"]
    assert "Checkpoint restart (+0.0%)" in drawn["accuracy-nt3-500"]["categories"], (
        "the relative difference to Baseline stands by its bar"
    )
    restarts = [row for row in rows["replay"] if row["application"] == "NT3 of width 4"]
    assert [row["replayed"] for row in restarts] == [2, 5]


def made(accuracies: list[tuple[float, float]], scale: str = "small") -> MiniBatchCounts:
    """By seed: how far immediate rollback and lossy forward end from Baseline, in one cell each."""

    def scenario(back: float, forward: float) -> dict[str, Any]:
        cells = [
            ScenarioTrial("half_updated_rollback", 25, 0, ""),
            ScenarioTrial("lossy_forward", 25, 2, ""),
        ]
        found = [
            asdict(cell) | {"accuracy": 0.5 + far, "seconds": 1.8}
            for cell, far in zip(cells, (-back, forward), strict=True)
        ]
        return {
            "mini_batch": 2,
            "before": {"accuracy": 0.45},
            "baseline": {"accuracy": 0.5, "seconds": 1.0},
            "cells": found,
        }

    records = [
        Record(
            f"cells/nt3/{seed:03d}",
            {"kind": "cells", "application": "nt3", "seed": seed},
            {"scenarios": [scenario(*far)]},
            0.0,
        )
        for seed, far in enumerate(accuracies)
    ]
    return MiniBatchCounts(replace(CONFIG, scale=scale, applications=("nt3",)), records)


@pytest.mark.parametrize(
    ("accuracies", "verdict", "measured"),
    [
        ([(0.03, 0.01), (0.04, 0.01), (0.035, 0.01)], "supported", 2.5),
        ([(0.01, 0.03), (0.01, 0.04), (0.01, 0.035)], "contradicted", -2.5),
        ([(0.03, 0.01), (0.01, 0.03), (0.02, 0.02)], "undecided", 0.0),
        ([(0.03, 0.01)], "undecided", 2.0),
    ],
)
def test_a_published_claim_is_judged_by_its_interval_over_the_seeds(
    accuracies: list[tuple[float, float]], verdict: str, measured: float
) -> None:
    nearer, twice, moved, farthest, _ = claims(made(accuracies, "small")).rows
    assert (nearer["verdict"], nearer["n"]) == (verdict, len(accuracies)) and nearer[
        "measured"
    ] == pytest.approx(measured)
    assert (twice["verdict"], twice["measured"]) == (
        "supported" if len(accuracies) > 1 else "undecided",
        1.8,
    )
    assert moved["measured"] == pytest.approx(5.0) and farthest["measured"] == pytest.approx(
        100 * sum(back for back, _ in accuracies) / len(accuracies)
    )
    assert {moved["verdict"], farthest["verdict"]} == {"scale too small to say"}


def tried(application: str, *of_seed: dict[tuple[int, int, int], float]) -> dict[str, Any]:
    """The claims by their text. `of_seed`: by scenario (0 or 1), survivors (0: rollback) and
    percent, how far from Baseline in points; Before lies 46 points away at first, then 10.
    """
    places = tuple(PAPER[application].scenarios.values())[:2]
    records = []
    for seed, cells in enumerate(of_seed):
        scenarios = []
        for scenario, gap in ((1, 10), (0, 46)):
            found = [
                asdict(
                    ScenarioTrial(
                        "lossy_forward" if survivors else "half_updated_rollback",
                        percent,
                        survivors,
                        "",
                    )
                )
                | {"accuracy": 0.9 - far / 100, "seconds": 1.02 if survivors else 1.9}
                for (of, survivors, percent), far in cells.items()
                if of == scenario
            ]
            scenarios.append(
                {
                    "mini_batch": places[scenario],
                    "before": {"accuracy": 0.9 - gap / 100},
                    "baseline": {"accuracy": 0.9, "seconds": 1.0},
                    "cells": found,
                }
            )
        place = {"kind": "cells", "application": application, "seed": seed}
        records.append(
            Record(f"cells/{application}/{seed:03d}", place, {"scenarios": scenarios}, 0.0)
        )
    config = replace(CONFIG, scale="paper", applications=(application,))
    return {row["claim"]: row for row in claims(MiniBatchCounts(config, records)).rows}


def as_published(seed: int) -> dict[tuple[int, int, int], float]:
    """Four survivors nearer than two, nearer still with progress, at 75% not apart; rollback
    farther later on.
    """
    more = 0.01 * seed
    return {
        (scenario, survivors, percent): far + (more if far else 0.0)
        for scenario, back in ((0, 1.0), (1, 3.0))
        for survivors, percent, far in (
            *((0, 25, back), (2, 25, 2.0), (2, 75, 1.0), (4, 25, 0.5), (4, 75, 0.0)),
        )
    }


def mirrored(seed: int) -> dict[tuple[int, int, int], float]:
    """The opposite of all that."""
    more = 0.01 * seed
    return {
        (scenario, survivors, percent): far + more
        for scenario, back in ((0, 3.0), (1, 1.0))
        for survivors, percent, far in (
            *((0, 25, back), (2, 25, 0.1), (2, 75, 0.5), (4, 25, 0.2), (4, 75, 2.0)),
        )
    }


FOUR = "four survivors end nearer to Baseline than two"
LATER = "with four survivors, later failures"
NONE = "with four survivors and 75%"
FIRST = "a mini-batch moves the accuracy most in the beginning"
GROWS = "immediate rollback ends farther from Baseline as the training goes on"


def test_the_claims_of_survivors_and_progress_are_judged_either_way() -> None:
    found = tried("resnet50", *map(as_published, range(3)))
    said = {
        start: row
        for start in (FOUR, LATER, NONE, FIRST, GROWS)
        for text, row in found.items()
        if text.startswith(start)
    }
    assert len(said) == 5
    assert {row["verdict"] for row in said.values()} == {"supported"}
    # two: 2.0 and 1.0, four: 0.5 and 0.0, each a hundredth more by seed where it is not zero
    assert said[FOUR]["measured"] == pytest.approx(1.5 + 0.01 - 0.25 - 0.005)
    assert said[LATER]["measured"] == pytest.approx(0.5 + 0.01)
    assert said[NONE]["measured"] == 0.0
    assert said[FIRST]["measured"] == pytest.approx(36.0)  # Before is 46 and 10 points away
    assert said[GROWS]["measured"] == pytest.approx(2.0)
    other = tried("resnet50", *map(mirrored, range(3)))
    verdicts = {
        start: row["verdict"]
        for start in (FOUR, LATER, NONE, GROWS)
        for text, row in other.items()
        if text.startswith(start)
    }
    assert set(verdicts.values()) == {"contradicted"} and len(verdicts) == 4


def test_of_nt3_the_study_claims_the_opposite() -> None:
    found = tried("nt3", *map(mirrored, range(3)))
    assert found["more survivors do not end nearer to Baseline"]["verdict"] == "supported"
    assert found["later failures do not end nearer to Baseline"]["verdict"] == "supported"
    farthest = "immediate rollback ends farthest from Baseline in the beginning of the training"
    assert found[farthest]["verdict"] == "supported"
    other = tried("nt3", *map(as_published, range(3)))
    assert other["more survivors do not end nearer to Baseline"]["verdict"] == "contradicted"
    assert other["later failures do not end nearer to Baseline"]["verdict"] == "contradicted"
    assert other[farthest]["verdict"] == "contradicted"


def test_whether_lossy_forward_takes_longer_than_baseline_is_judged() -> None:
    near = "lossy forward recovery takes about as long as Baseline"
    row = tried("nt3", *map(as_published, range(3)))[near]
    assert (row["verdict"], row["measured"]) == ("supported", pytest.approx(1.02))
    slow = made([(0.03, 0.01), (0.04, 0.01)])  # 1.8 times
    (row,) = [row for row in claims(slow).rows if row["claim"] == near]
    assert row["verdict"] == "contradicted"


def test_what_failed_in_forward_or_with_a_correction_turned_round_says_nothing_of_a_claim() -> None:
    counts = made([(0.03, 0.01), (0.04, 0.01)])
    before = claims(counts).rows
    for record in counts.records:
        for cell in (
            ScenarioTrial("half_updated_rollback", 0, 0, ""),
            ScenarioTrial("lossy_forward", 25, 2, "mask"),
        ):
            record.found["scenarios"][0]["cells"].append(
                asdict(cell) | {"accuracy": 0.0, "seconds": 9.0}
            )
    assert claims(counts).rows == before


def test_without_one_of_the_two_recoveries_nothing_is_claimed() -> None:
    counts = made([(0.03, 0.01), (0.04, 0.01)])
    for record in counts.records:
        record.found["scenarios"][0]["cells"].pop()
    assert not claims(counts).rows


def test_the_report_accepts_what_it_found(ran: tuple[int, Path]) -> None:
    (study,) = read_studies([StudyInput(StudyLayout(ran[1]), "out")])
    assert study.exit_code == 0 and study.result is not None and len(study.result.figures) >= 10
    for figure in study.result.figures[:2]:
        draw(figure)


def test_the_measured_parts_are_plain_numbers(ran: tuple[int, Path]) -> None:
    resnet, nt3 = measured(records_of(ran))
    assert (resnet.application, resnet.workers, resnet.mini_batches_per_epoch) == (
        "resnet50",
        WORKERS,
        SMOKE["resnet50"].per_epoch(WORKERS),
    )
    assert nt3.restart_s == nt3.init_s + nt3.load_s
    config = build_study({"study": {"name": "recovery-overhead", "source": "typed", **nt3.typed()}})
    assert (config.study.every, config.study.restart_s) == (
        nt3.mini_batches_per_epoch,
        pytest.approx(nt3.restart_s, rel=0.01),
    )
    assert all(
        getattr(each, key) > 0
        for each in (resnet, nt3)
        for key in ("mini_batch_s", "init_s", "checkpoint_s", "load_s", "model_bytes")
    )


def cell(records: list[Record], wanted: ScenarioTrial) -> dict[str, Any]:
    """The first one of ResNet-50."""
    cells = next(
        r.found["scenarios"][0]["cells"]
        for r in records
        if r.facts["kind"] == "cells" and r.facts["application"] == "resnet50"
    )
    return next(
        c
        for c in cells
        if ScenarioTrial(c["strategy"], c["percent"], c["survivors"], c["flipped"]) == wanted
    )


def baseline(records: list[Record]) -> str:
    found = next(
        r.found["scenarios"][0]
        for r in records
        if r.facts["kind"] == "cells" and r.facts["application"] == "resnet50"
    )
    return str(found["baseline"]["digest"])


def _put(wanted: ScenarioTrial, **values: Any) -> Callable[[list[Record]], None]:
    return lambda records: cell(records, wanted).update(values)


def _long(**values: Any) -> Callable[[list[Record]], None]:
    def put(records: list[Record]) -> None:
        arms = next(
            r.found["arms"] for r in records if r.facts["kind"] == "long" and r.facts["seed"] == 0
        )
        next(arm for arm in arms if arm["strategy"] in EXACT).update(values)

    return put


def _as_baseline(wanted: ScenarioTrial) -> Callable[[list[Record]], None]:
    return lambda records: cell(records, wanted).update(digest=baseline(records))


ROLLBACK, FORWARD = (
    ScenarioTrial("half_updated_rollback", 25),
    ScenarioTrial("lossy_forward", 25, 2),
)


@pytest.mark.parametrize(
    ("gate", "spoil"),
    [
        ("cells", lambda records: records[-1].found["scenarios"][0]["cells"].pop()),
        ("casualties", _put(FORWARD, contributed=[4, 3])),
        ("masked", _put(ROLLBACK, kept=False)),
        ("zero gradients", _put(replace(ROLLBACK, flipped="mask"), kept=True)),
        ("exact", _put(ScenarioTrial("consistent_rollback", 25), digest="0")),
        ("exact", _put(ScenarioTrial("checkpoint_restart", 75), digest="0")),
        ("inexact", _as_baseline(FORWARD)),
        ("forward", _put(ScenarioTrial("half_updated_rollback", 0), digest="0")),
        (
            "forward is not read-only",
            _as_baseline(ScenarioTrial("half_updated_rollback", 0, flipped="buffers")),
        ),
        ("ledger", _put(FORWARD, unaccounted=["step 2: 1 samples"])),
        ("ledger, planted", _put(FORWARD, blind=True)),
        ("long run, ledger", _long(unaccounted=["step 2: 1 samples"])),
        ("long run, exact", _long(same=False)),
        ("dormant", lambda records: records.append(dormant(same=False))),
        ("dormant, trained", lambda records: records.append(dormant(losses=[1.0, 1.0]))),
        ("dormant, planned", lambda records: records.append(dormant(counted=[4, 4, 3, 4]))),
    ],
)
def test_every_gate_can_fail(
    ran: tuple[int, Path], gate: str, spoil: Callable[[list[Record]], object]
) -> None:
    records = copy.deepcopy(sorted(records_of(ran), key=lambda record: record.key, reverse=True))
    assert all(each.passed for each in findings(CONFIG, records).gates)
    spoil(records)
    assert gate in [each.name for each in findings(CONFIG, records).gates if not each.passed]


def dormant(**values: Any) -> Record:
    seconds = {name: [0.1, 0.2] for name in ("all", "dormant", "leave", "rebuild", "return")}
    found = {
        "same": True,
        "counted": [4, 3, 3, 4],
        "rounds": 2,
        "losses": [2.0, 1.0],
        "seconds": seconds,
    }
    return Record("dormant", {"kind": "dormant"}, found | values, 1.0)


def test_a_dormant_arm_in_order_passes_and_is_told(ran: tuple[int, Path]) -> None:
    found = findings(CONFIG, [*records_of(ran), dormant()])
    assert all(gate.passed for gate in found.gates) and {
        "dormant",
        "dormant, planned",
        "dormant, trained",
    } <= {gate.name for gate in found.gates}
    assert any("as a dormant worker without a call" in note for note in found.notes)


def test_the_form_of_made_up_samples_is_told_where_it_is_not_the_published_one(
    ran: tuple[int, Path],
) -> None:
    (note,) = [
        note for note in findings(CONFIG, records_of(ran)).notes if note.startswith("Made-up data")
    ]
    assert (
        ", published 3 x 64 x 64 in 200 classes" in note
        and ", published 1 x 1 x 60483 in 2 classes" in note
    )


def test_who_contributes_to_what_is_part_of_the_state() -> None:
    assert (
        due(ScenarioTrial("checkpoint_restart", 50), 8)
        == due(ScenarioTrial("consistent_rollback", 0), 8)
        == [8]
    )
    assert (
        due(ScenarioTrial("half_updated_rollback", 50), 8),
        due(ScenarioTrial("half_updated_rollback", 0), 8),
    ) == ([8, 8], [8])
    assert (
        due(ScenarioTrial("lossy_forward", 50, 3), 8),
        due(ScenarioTrial("lossy_forward", 0, 3), 8),
        due(ScenarioTrial("skip", 50), 8),
    ) == ([8, 3], [3], [8])
