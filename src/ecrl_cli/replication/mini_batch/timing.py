"""Times a mini-batch under each strategy, in random order: one worker's compute, the averages, the update and the state transfer.

The workers of a real job are alike and run in parallel, so only the first is timed. A failed part is stopped inside backward, like a killed
worker. Times are processor time: trials of a study share the machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import Protocol

from ecrl_cli.linux.clock import processor
from ecrl_cli.replication.mini_batch.scene import Scene
from ecrl_cli.replication.mini_batch.simulated_trainer import State
from ecrl_cli.replication.mini_batch.workers import average

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

    def __init__(self, scene: Scene, mini_batch: int, before: State, rng: random.Random) -> None:
        self._scene, self._mini_batch, self._before, self._rng = scene, mini_batch, before, rng
        self._passes = scene.remembered[mini_batch]
        self._all = scene.workers.number

    def measure(self, cells: Sequence[Tried], rounds: int) -> dict[Tried | str | None, float]:
        """Median seconds of each cell that is one mini-batch long; key None is the mini-batch without a failure, the names in PARTS are a forward
        pass and a copy of the state."""
        works: dict[Tried | str | None, Callable[[], object]] = {None: self._whole, "forward": self._forward, "copy": self._scene.trainee.state}
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
            "immediate_rollback": lambda: self._rolled_back(places),
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
        self._scene.trainee.update(dict(zip(self._scene.workers.order, [*head, *tail], strict=True)))

    def _update(self, places: slice, divisor: int) -> None:
        gradients = average(self._passes, places, divisor)
        self._scene.trainee.update(dict(zip(self._scene.workers.order[places], gradients, strict=True)))
