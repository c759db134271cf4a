"""One scenario: every failure in one mini-batch under every strategy, from the same state, timed,
beside the mini-batch without a failure.

Times: one worker's compute, the averages, the update and the state transfer, in random order. The
workers of a real job are alike and run in parallel, so only the first is timed. A failed part is
stopped inside backward, like a killed worker. Processor time: trials share the machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Protocol

import torch

from ecrl_cli.config.studies import MiniBatchFailure
from ecrl_cli.linux.clock import processor
from ecrl_cli.records.survivor_records import LOST, REPEATED
from ecrl_cli.replication.mini_batch.simulated_run import (
    RECOVER,
    Corrections,
    SimulatedFailure,
    SimulatedRun,
)
from ecrl_cli.replication.mini_batch.simulated_trainer import State, average
from ecrl_cli.verify.sample_accounting import unaccounted

PARTS = ("forward", "copy")


class Tried(Hashable, Protocol):
    @property
    def strategy(self) -> str: ...
    @property
    def percent(self) -> int: ...
    @property
    def survivors(self) -> int: ...


class Timing:
    """Times strategies from the state `before`, with all workers' passes remembered."""

    def __init__(
        self, sim: SimulatedRun, mini_batch: int, before: State, rng: random.Random
    ) -> None:
        self._scene, self._mini_batch, self._before, self._rng = sim, mini_batch, before, rng
        self._passes = sim.remembered[mini_batch]
        self._all = sim.workers.number

    def measure(self, cells: Sequence[Tried], rounds: int) -> dict[Tried | str | None, float]:
        """Median seconds of each cell that is one mini-batch long; key None is the mini-batch
        without a failure, the names in PARTS are a forward pass and a copy of the state.
        """
        works: dict[Tried | str | None, Callable[[], object]] = {
            None: self._whole,
            "forward": self._forward,
            "copy": self._scene.trainee.state,
        }
        works |= {cell: work for cell in cells if (work := self._work(cell)) is not None}
        found: dict[Tried | str | None, list[float]] = {cell: [] for cell in works}
        for _ in range(rounds):
            order = list(works)
            self._rng.shuffle(order)
            for cell in order:
                self._scene.trainee.restore(self._before)
                began = processor()
                works[cell]()
                found[cell].append(processor() - began)
        return {cell: median(values) for cell, values in found.items()}

    def _work(self, cell: Tried) -> Callable[[], None] | None:
        places = self._scene.places(cell.percent)
        works: dict[str, Callable[[], None]] = {
            "half_updated_rollback": lambda: self._rolled_back(places),
            "consistent_rollback": lambda: self._consistently(places),
            "lossy_forward": lambda: self._among_survivors(places, cell.survivors),
            "skip": lambda: self._part(places),
        }
        return works.get(cell.strategy)

    def _forward(self) -> None:
        self._scene.workers.compute(self._mini_batch, 0, until=0)

    def _whole(self) -> None:
        self._scene.workers.compute(self._mini_batch, 0)
        self._update(slice(None), self._all)

    def _part(self, places: int) -> None:
        """Forward, backward until the failure, and the update of the gradients there by then."""
        self._scene.workers.compute(self._mini_batch, 0, until=places)
        if places:
            self._update(slice(0, places), self._all)

    def _rolled_back(self, places: int) -> None:
        """The survivor's state is copied once for the spares."""
        buffers = self._scene.trainee.buffers_now()
        self._part(places)
        self._scene.trainee.state()
        self._scene.trainee.put_buffers(buffers)
        self._whole()

    def _consistently(self, places: int) -> None:
        """The copy before the mini-batch is part of the price."""
        before = self._scene.trainee.state()
        self._part(places)
        self._scene.trainee.restore(before)
        self._whole()

    def _among_survivors(self, places: int, number: int) -> None:
        self._scene.workers.compute(self._mini_batch, 0)
        head = average(self._passes, slice(0, places), self._all)
        tail = average(self._passes[:number], slice(places, None), number)
        self._scene.trainee.update(
            dict(zip(self._scene.workers.order, [*head, *tail], strict=True))
        )

    def _update(self, places: slice, divisor: int) -> None:
        gradients = average(self._passes, places, divisor)
        self._scene.trainee.update(
            dict(zip(self._scene.workers.order[places], gradients, strict=True))
        )


def left_out(
    sim: SimulatedRun, mini_batch: int, percent: int, survivors: Sequence[int]
) -> dict[str, Any]:
    """Computed over the gradients after the failure. `off`: distance of the two averages divided by
    the norm of the full one (None if that is 0).
    `outlier_lost`: whether the worker whose gradients are farthest from the full average is a
    casualty.
    """
    passes, rest = sim.remembered[mini_batch], slice(sim.places(percent), None)
    whole = _flat(average(passes, rest, len(passes)))
    left = [each for each in passes if each.worker in survivors]
    away = [float((_flat(each.gradients[rest]) - whole).norm()) for each in passes]
    length = float(whole.norm())
    distance = float((_flat(average(left, rest, len(left))) - whole).norm())
    return {
        "off": distance / length if length else None,
        "outlier_lost": passes[away.index(max(away))].worker not in survivors,
    }


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.reshape(-1) for each in tensors])


CORRECTIONS = ("mask", "buffers", "division")


@dataclass(frozen=True)
class ScenarioTrial:
    """One trial of a scenario. `survivors`: their number; 0 where no gradients are used after the
    failure. `flipped`: the correction whose setting is inverted for this cell, or empty.
    """

    strategy: str
    percent: int
    survivors: int = 0
    flipped: str = ""


def planned(config: MiniBatchFailure) -> list[ScenarioTrial]:
    """Every cell of a scenario. A checkpoint restart and its replay do not depend on when the
    failure came, so they are run once.
    """
    cells: list[ScenarioTrial] = []
    for strategy in config.strategies:
        for percent in _percents(config, strategy):
            numbers = config.survivors if strategy == "lossy_forward" else (0,)
            cells += [ScenarioTrial(strategy, percent, number) for number in numbers]
    return [*cells, *_flipped(config)]


def _percents(config: MiniBatchFailure, strategy: str) -> tuple[int, ...]:
    """Failure points of `strategy`. The rollbacks are also tried in the forward pass (0), where the
    published study assumes a consistent state.
    """
    if strategy == "checkpoint_restart":
        return (middle(config.percents),)
    in_forward = (0,) if strategy in ("half_updated_rollback", "consistent_rollback") else ()
    return tuple(dict.fromkeys((*in_forward, *config.percents)))


def _flipped(config: MiniBatchFailure) -> Iterator[ScenarioTrial]:
    """Cells with one correction inverted, wherever it can make a difference; for the survivors'
    division at the least, the middle and the largest number.
    """
    numbers = sorted({min(config.survivors), middle(config.survivors), max(config.survivors)})
    for strategy in config.strategies:
        for percent in _percents(config, strategy):
            if strategy in ("half_updated_rollback", "skip") and percent:
                yield ScenarioTrial(strategy, percent, flipped="mask")
            if strategy == "half_updated_rollback":
                yield ScenarioTrial(strategy, percent, flipped="buffers")
            if strategy == "lossy_forward":
                yield from (
                    ScenarioTrial(strategy, percent, number, "division") for number in numbers
                )


def middle(values: tuple[int, ...]) -> int:
    return sorted(values)[len(values) // 2]


def corrections(config: MiniBatchFailure, flipped: str = "") -> Corrections:
    """The corrections as configured, with `flipped` inverted."""
    asked = {name: getattr(config, name) for name in CORRECTIONS}
    return Corrections(**{name: value is (name != flipped) for name, value in asked.items()})


def survivors(config: MiniBatchFailure, rng: random.Random, number: int) -> tuple[int, ...]:
    """`number` surviving workers in ascending order. With drawn casualties a smaller set of one
    draw is a subset of a larger one.
    """
    order = list(range(config.replicas))
    if config.casualties == "drawn":
        rng.shuffle(order)
    if config.casualties == "first":
        order.reverse()
    return tuple(sorted(order[:number]))


def try_scenario(
    sim: SimulatedRun, mini_batch: int, config: MiniBatchFailure, key: str, rng: random.Random
) -> dict[str, Any]:
    """Run every cell in `mini_batch`, the next one; leaves the run after the mini-batch without a
    failure. Returns JSON values.
    """
    sim.checkpoint_if_due()
    before, buffers = sim.trainee.state(), sim.trainee.buffers_now()
    accuracy, loss = sim.samples.accuracy(sim.trainee.model)
    sim.remembered[mini_batch] = sim.workers.all(mini_batch)
    sim.trainee.put_buffers(buffers)
    timing = Timing(sim, mini_batch, before, rng)
    seconds = timing.measure([cell for cell in planned(config) if not cell.flipped], config.rounds)
    sim.trainee.restore(before)
    sim.step()
    after, baseline = sim.trainee.state(), sim.trainee.digest()
    reached = sim.samples.accuracy(sim.trainee.model)
    cells = []
    for cell in planned(config):
        sim.trainee.restore(before)
        sim.undo_after(mini_batch - 1)
        who = survivors(config, random.Random(f"{key}/{mini_batch}"), cell.survivors)
        found = _try(
            replace_corrections(sim, corrections(config, cell.flipped)), cell, mini_batch, who
        )
        found |= {"seconds": found.pop("replayed_s", None) or seconds.get(cell)}
        cells.append(asdict(cell) | found)
    sim.trainee.restore(after)
    sim.undo_after(mini_batch)
    sim.remembered.clear()
    return {
        "mini_batch": mini_batch,
        "before": {"accuracy": accuracy, "loss": loss},
        "baseline": {
            "accuracy": reached[0],
            "loss": reached[1],
            "digest": baseline,
            "seconds": seconds[None],
        },
        "parts": {part: seconds[part] for part in PARTS},
        "cells": cells,
    }


def replace_corrections(sim: SimulatedRun, chosen: Corrections) -> SimulatedRun:
    """The same run with other corrections and an empty record."""
    return replace(sim, corrections=chosen, applied=[], lost_samples=[], kept=True, steps_s=[])


def _try(
    sim: SimulatedRun, cell: ScenarioTrial, mini_batch: int, who: tuple[int, ...]
) -> dict[str, Any]:
    RECOVER[cell.strategy](sim, SimulatedFailure(mini_batch, cell.percent, who))
    accuracy, loss = sim.samples.accuracy(sim.trainee.model)
    restarted = cell.strategy == "checkpoint_restart"
    first = mini_batch - (mini_batch - 1) % sim.samples.per_epoch if restarted else mini_batch
    return {
        "accuracy": accuracy,
        "loss": loss,
        "digest": sim.trainee.digest(),
        "kept": sim.kept,
        "contributed": _contributed(sim, mini_batch),
        **_accounts(sim, first, mini_batch),
        **(left_out(sim, mini_batch, cell.percent, who) if who else {}),
        "replayed": len(sim.steps_s),
        "replayed_s": sum(sim.steps_s) if restarted else None,
    }


def _contributed(sim: SimulatedRun, mini_batch: int) -> list[int]:
    """How many workers contributed to each update of `mini_batch` that is part of the state."""
    return [
        len(each.samples) // sim.samples.size.batch
        for each in sim.applied
        if each.global_step == mini_batch and each.layers
    ]


def _accounts(sim: SimulatedRun, first: int, mini_batch: int) -> dict[str, Any]:
    """Lost and repeated samples of the mini-batches from `first` on, what the record misses, and
    whether an empty record would have passed.
    """
    windows = {step: sim.samples.window(step) for step in range(first, mini_batch + 1)}
    names = sim.trainee.names
    pairs = len(windows[mini_batch]) * len(names)
    shares = {
        effect: (
            sum(len(e.samples) * len(e.layers) for e in sim.lost_samples if e.effect == effect)
            / pairs
        )
        for effect in (LOST, REPEATED)
    }
    wrong = unaccounted(windows, names, sim.applied, sim.lost_samples)
    blind = bool(sim.lost_samples) and not unaccounted(windows, names, sim.applied, [])
    return {**shares, "unaccounted": wrong[:3], "blind": blind}
