"""One run, mini-batch by mini-batch, that a failure can strike in the middle of one; it keeps the record of what was applied and what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ecrl_cli.linux.clock import processor
from ecrl_cli.records.survivor_records import AppliedSamples, LostSamples
from ecrl_cli.replication.mini_batch.checkpoints import Checkpoints
from ecrl_cli.replication.mini_batch.samples import Samples
from ecrl_cli.replication.mini_batch.simulated_trainer import Trainee
from ecrl_cli.replication.mini_batch.workers import Pass, Workers, average


@dataclass(frozen=True)
class Corrections:
    """Where the published simulation is not followed. False is the published (or, for `division`, the naive) way.

    `mask`: what a dead mini-batch does not update does not move (published: gradients of zero, which move it under momentum or weight decay).
    `buffers`: a rollback takes back what the forward pass did to BatchNorm's buffers. `division`: survivors divide by their number, not by
    the number of all.
    """

    mask: bool = True
    buffers: bool = True
    division: bool = True


@dataclass(frozen=True)
class Failure:
    """In `mini_batch`, when `percent` of the gradient tensors, in backward order, had been averaged among all and applied.

    0: in the forward pass, when it was about to end. `survivors`: who is left; none: nobody's gradients are used from there on.
    """

    mini_batch: int
    percent: int
    survivors: tuple[int, ...] = ()


@dataclass
class Scene:
    """`remembered`: the passes of all workers from the state before a mini-batch, for whoever tries several failures in it. `kept`: whether all
    that was to stay as it is did. `steps_s`: processor time of each whole mini-batch, were its workers computed side by side.
    """

    trainee: Trainee
    workers: Workers
    checkpoints: Checkpoints
    corrections: Corrections = field(default_factory=Corrections)
    remembered: dict[int, list[Pass]] = field(default_factory=dict)
    applied: list[AppliedSamples] = field(default_factory=list)
    ledger: list[LostSamples] = field(default_factory=list)
    kept: bool = True
    steps_s: list[float] = field(default_factory=list)

    @property
    def samples(self) -> Samples:
        return self.workers.samples

    @property
    def done(self) -> int:
        """Mini-batches."""
        return self.trainee.cursor.done

    def casualties(self, failure: Failure) -> tuple[int, ...]:
        return tuple(worker for worker in range(self.workers.number) if worker not in failure.survivors)

    def places(self, percent: int) -> int:
        """How many gradient tensors `percent` of all are. In backward there is always one that was applied, and one that was not."""
        tensors = len(self.workers.order)
        return min(max(1, round(tensors * percent / 100)), tensors - 1) if percent else 0

    def layers(self, places: slice) -> tuple[str, ...]:
        """The names of the parameters at `places` of the backward order."""
        return tuple(self.trainee.names[index] for index in self.workers.order[places])

    def shards(self, mini_batch: int, who: Sequence[int]) -> tuple[int, ...]:
        """The sample ids of these workers."""
        return tuple(int(each) for worker in who for each in self.samples.ids(mini_batch, worker))

    def run_to(self, mini_batch: int) -> None:
        """Train without failures up to and with `mini_batch`, a checkpoint at the beginning of each epoch."""
        while self.done < mini_batch:
            self.checkpoint_if_due()
            self.step()

    def checkpoint_if_due(self) -> None:
        if self.done % self.samples.per_epoch == 0:
            self.checkpoints.save(self.done)

    def step(self) -> list[Pass]:
        """The next mini-batch, as it is without a failure."""
        mini_batch, began = self.done + 1, processor()
        passes = self.workers.all(mini_batch)
        computed = processor()
        self.apply(mini_batch, passes, slice(None))
        self.steps_s.append((computed - began) / self.workers.number + processor() - computed)
        self.trainee.cursor.done = mini_batch
        return passes

    def passes(self, mini_batch: int) -> list[Pass]:
        """All workers' passes from the state before `mini_batch`, which is the state now; the buffers become the leader's."""
        found = self.remembered.get(mini_batch)
        if found is None:
            return self.workers.all(mini_batch)
        self.trainee.put_buffers(found[0].buffers)
        return found

    def fail(self, failure: Failure) -> None:
        """The first part of a mini-batch: all forward passes, and the update of what was there when it died. The rest does not move."""
        places = self.places(failure.percent)
        passes = self.passes(failure.mini_batch)
        if not places:
            return
        before = self.trainee.state()
        self.apply(failure.mini_batch, passes, slice(0, places), zero_others=not self.corrections.mask)
        self.kept = self.kept and self.trainee.unmoved(before, list(self.workers.order[places:]))

    def apply(self, mini_batch: int, passes: Sequence[Pass], places: slice, *, zero_others: bool = False) -> None:
        """Average these passes' gradients at `places` and update with them."""
        self.update(mini_batch, [(passes, places, len(passes))], zero_others=zero_others)

    def update(self, mini_batch: int, parts: Sequence[tuple[Sequence[Pass], slice, int]], *, zero_others: bool = False) -> None:
        """One step of the optimizer from several parts: passes, their places in the backward order, and what their sum is divided by."""
        gradients: dict[int, torch.Tensor] = {}
        for passes, places, divisor in parts:
            gradients |= zip(self.workers.order[places], average(passes, places, divisor), strict=True)
            samples = self.shards(mini_batch, [each.worker for each in passes])
            self.applied.append(AppliedSamples(mini_batch, samples, self.layers(places)))
        self.trainee.update(gradients, zero_others=zero_others)

    def undo_behind(self, mini_batch: int) -> None:
        """The state is that of before: what was applied behind `mini_batch` was not."""
        self.applied = [each for each in self.applied if each.global_step <= mini_batch]
        self.trainee.cursor.done = mini_batch
