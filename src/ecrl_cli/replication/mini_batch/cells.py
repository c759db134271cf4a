"""Runs one scenario: every failure in one mini-batch under every strategy, from the same state, beside the mini-batch without a failure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from ecrl_cli.config.studies import MiniBatchFailure
from ecrl_cli.records.survivor_records import LOST, REPEATED
from ecrl_cli.replication.mini_batch.outliers import left_out
from ecrl_cli.replication.mini_batch.scene import Corrections, Failure, Scene
from ecrl_cli.replication.mini_batch.strategies import RECOVER
from ecrl_cli.replication.mini_batch.timing import PARTS, Timing
from ecrl_cli.verify.sample_accounting import unaccounted

CORRECTIONS = ("mask", "buffers", "division")


@dataclass(frozen=True)
class Cell:
    """One trial of a scenario. `survivors`: their number; 0 where no gradients are used after the failure. `flipped`: the correction whose setting
    is inverted for this cell, or empty."""

    strategy: str
    percent: int
    survivors: int = 0
    flipped: str = ""


def planned(config: MiniBatchFailure) -> list[Cell]:
    """Every cell of a scenario. A checkpoint restart and its replay do not depend on when the failure came, so they are run once."""
    cells: list[Cell] = []
    for strategy in config.strategies:
        for percent in _percents(config, strategy):
            numbers = config.survivors if strategy == "lossy_forward" else (0,)
            cells += [Cell(strategy, percent, number) for number in numbers]
    return [*cells, *_flipped(config)]


def _percents(config: MiniBatchFailure, strategy: str) -> tuple[int, ...]:
    """Failure points of `strategy`. The rollbacks are also tried in the forward pass (0), where the published study assumes a consistent state."""
    if strategy == "checkpoint_restart":
        return (middle(config.percents),)
    in_forward = (0,) if strategy in ("immediate_rollback", "consistent_rollback") else ()
    return tuple(dict.fromkeys((*in_forward, *config.percents)))


def _flipped(config: MiniBatchFailure) -> Iterator[Cell]:
    """Cells with one correction inverted, wherever it can make a difference; for the survivors' division at the least, the middle and the largest
    number."""
    numbers = sorted({min(config.survivors), middle(config.survivors), max(config.survivors)})
    for strategy in config.strategies:
        for percent in _percents(config, strategy):
            if strategy in ("immediate_rollback", "skip") and percent:
                yield Cell(strategy, percent, flipped="mask")
            if strategy == "immediate_rollback":
                yield Cell(strategy, percent, flipped="buffers")
            if strategy == "lossy_forward":
                yield from (Cell(strategy, percent, number, "division") for number in numbers)


def middle(values: tuple[int, ...]) -> int:
    return sorted(values)[len(values) // 2]


def corrections(config: MiniBatchFailure, flipped: str = "") -> Corrections:
    """The corrections as configured, with `flipped` inverted."""
    asked = {name: getattr(config, name) for name in CORRECTIONS}
    return Corrections(**{name: value is (name != flipped) for name, value in asked.items()})


def survivors(config: MiniBatchFailure, rng: random.Random, number: int) -> tuple[int, ...]:
    """`number` surviving workers in ascending order. With drawn casualties a smaller set of one draw is a subset of a larger one."""
    order = list(range(config.replicas))
    if config.casualties == "drawn":
        rng.shuffle(order)
    if config.casualties == "first":
        order.reverse()
    return tuple(sorted(order[:number]))


def try_scenario(scene: Scene, mini_batch: int, config: MiniBatchFailure, key: str, rng: random.Random) -> dict[str, Any]:
    """Run every cell in `mini_batch`, the next one; leaves the scene after the mini-batch without a failure. Returns JSON values."""
    scene.checkpoint_if_due()
    before, buffers = scene.trainee.state(), scene.trainee.buffers_now()
    accuracy, loss = scene.samples.accuracy(scene.trainee.model)
    scene.remembered[mini_batch] = scene.workers.all(mini_batch)
    scene.trainee.put_buffers(buffers)
    timing = Timing(scene, mini_batch, before, rng)
    seconds = timing.measure([cell for cell in planned(config) if not cell.flipped], config.rounds)
    scene.trainee.restore(before)
    scene.step()
    after, baseline = scene.trainee.state(), scene.trainee.digest()
    reached = scene.samples.accuracy(scene.trainee.model)
    cells = []
    for cell in planned(config):
        scene.trainee.restore(before)
        scene.undo_behind(mini_batch - 1)
        who = survivors(config, random.Random(f"{key}/{mini_batch}"), cell.survivors)
        found = _try(replace_corrections(scene, corrections(config, cell.flipped)), cell, mini_batch, who)
        found |= {"seconds": found.pop("replayed_s", None) or seconds.get(cell)}
        cells.append(asdict(cell) | found)
    scene.trainee.restore(after)
    scene.undo_behind(mini_batch)
    scene.remembered.clear()
    return {
        "mini_batch": mini_batch,
        "before": {"accuracy": accuracy, "loss": loss},
        "baseline": {"accuracy": reached[0], "loss": reached[1], "digest": baseline, "seconds": seconds[None]},
        "parts": {part: seconds[part] for part in PARTS},
        "cells": cells,
    }


def replace_corrections(scene: Scene, chosen: Corrections) -> Scene:
    """The same run with other corrections and an empty record."""
    return replace(scene, corrections=chosen, applied=[], lost_samples=[], kept=True, steps_s=[])


def _try(scene: Scene, cell: Cell, mini_batch: int, who: tuple[int, ...]) -> dict[str, Any]:
    RECOVER[cell.strategy](scene, Failure(mini_batch, cell.percent, who))
    accuracy, loss = scene.samples.accuracy(scene.trainee.model)
    restarted = cell.strategy == "checkpoint_restart"
    first = mini_batch - (mini_batch - 1) % scene.samples.per_epoch if restarted else mini_batch
    return {
        "accuracy": accuracy,
        "loss": loss,
        "digest": scene.trainee.digest(),
        "kept": scene.kept,
        "contributed": _contributed(scene, mini_batch),
        **_accounts(scene, first, mini_batch),
        **(left_out(scene, mini_batch, cell.percent, who) if who else {}),
        "replayed": len(scene.steps_s),
        "replayed_s": sum(scene.steps_s) if restarted else None,
    }


def _contributed(scene: Scene, mini_batch: int) -> list[int]:
    """How many workers contributed to each update of `mini_batch` that is part of the state."""
    return [len(each.samples) // scene.samples.size.batch for each in scene.applied if each.global_step == mini_batch and each.layers]


def _accounts(scene: Scene, first: int, mini_batch: int) -> dict[str, Any]:
    """Lost and repeated samples of the mini-batches from `first` on, what the record misses, and whether an empty record would have passed."""
    windows = {step: scene.samples.window(step) for step in range(first, mini_batch + 1)}
    names = scene.trainee.names
    pairs = len(windows[mini_batch]) * len(names)
    shares = {effect: sum(len(e.samples) * len(e.layers) for e in scene.lost_samples if e.effect == effect) / pairs for effect in (LOST, REPEATED)}
    wrong = unaccounted(windows, names, scene.applied, scene.lost_samples)
    blind = bool(scene.lost_samples) and not unaccounted(windows, names, scene.applied, [])
    return {**shares, "unaccounted": wrong[:3], "blind": blind}
