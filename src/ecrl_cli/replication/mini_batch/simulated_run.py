"""One simulated run that can fail in the middle of a mini-batch, with a record of applied and lost
samples; and what each strategy does then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ecrl_cli.linux.clock import processor
from ecrl_cli.records.survivor_records import AppliedSamples, LostSamples, lost, repeated
from ecrl_cli.replication.mini_batch.samples import Samples
from ecrl_cli.replication.mini_batch.simulated_trainer import (
    Pass,
    SimulatedCheckpoints,
    Trainee,
    Workers,
    average,
)


@dataclass(frozen=True)
class Corrections:
    """Corrections of the published simulation. False is the published (for `division`, the naive)
    behaviour.

    `mask`: layers that a dead mini-batch does not update stay unchanged (published: they get zero
    gradients, which still moves them under momentum or weight decay). `buffers`: a rollback
    restores BatchNorm's buffers. `division`: survivors divide by their own number, not by that of
    all workers.
    """

    mask: bool = True
    buffers: bool = True
    division: bool = True


@dataclass(frozen=True)
class SimulatedFailure:
    """A failure in `mini_batch` after `percent` of the gradient tensors, in backward order, were
    averaged among all workers and applied.

    0: at the end of the forward pass. `survivors`: the surviving workers; if empty, no gradients
    are used after the failure.
    """

    mini_batch: int
    percent: int
    survivors: tuple[int, ...] = ()


@dataclass
class SimulatedRun:
    """`remembered`: all workers' passes from the state before a mini-batch, shared by the failures
    tried in it. `kept`: whether everything that had to stay unchanged did. `steps_s`: processor
    time of each whole mini-batch, as if its workers ran in parallel.
    """

    trainee: Trainee
    workers: Workers
    checkpoints: SimulatedCheckpoints
    corrections: Corrections = field(default_factory=Corrections)
    remembered: dict[int, list[Pass]] = field(default_factory=dict)
    applied: list[AppliedSamples] = field(default_factory=list)
    lost_samples: list[LostSamples] = field(default_factory=list)
    kept: bool = True
    steps_s: list[float] = field(default_factory=list)

    @property
    def samples(self) -> Samples:
        return self.workers.samples

    @property
    def done(self) -> int:
        """Number of mini-batches done."""
        return self.trainee.cursor.done

    def casualties(self, failure: SimulatedFailure) -> tuple[int, ...]:
        return tuple(
            worker for worker in range(self.workers.number) if worker not in failure.survivors
        )

    def places(self, percent: int) -> int:
        """The number of gradient tensors in `percent` of all. A failure in backward has at least
        one applied and one not applied.
        """
        tensors = len(self.workers.order)
        return min(max(1, round(tensors * percent / 100)), tensors - 1) if percent else 0

    def layers(self, places: slice) -> tuple[str, ...]:
        """Names of the parameters at `places` of the backward order."""
        return tuple(self.trainee.names[index] for index in self.workers.order[places])

    def shards(self, mini_batch: int, who: Sequence[int]) -> tuple[int, ...]:
        """The sample ids of these workers."""
        return tuple(int(each) for worker in who for each in self.samples.ids(mini_batch, worker))

    def run_to(self, mini_batch: int) -> None:
        """Train without failures up to and including `mini_batch`, with a checkpoint at the start
        of each epoch.
        """
        while self.done < mini_batch:
            self.checkpoint_if_due()
            self.step()

    def checkpoint_if_due(self) -> None:
        if self.done % self.samples.per_epoch == 0:
            self.checkpoints.save(self.done)

    def step(self) -> list[Pass]:
        """Run the next mini-batch without a failure."""
        mini_batch, began = self.done + 1, processor()
        passes = self.workers.all(mini_batch)
        computed = processor()
        self.apply(mini_batch, passes, slice(None))
        self.steps_s.append((computed - began) / self.workers.number + processor() - computed)
        self.trainee.cursor.done = mini_batch
        return passes

    def passes(self, mini_batch: int) -> list[Pass]:
        """All workers' passes from the current state, which must be that before `mini_batch`; the
        leader's buffers are kept.
        """
        found = self.remembered.get(mini_batch)
        if found is None:
            return self.workers.all(mini_batch)
        self.trainee.put_buffers(found[0].buffers)
        return found

    def fail(self, failure: SimulatedFailure) -> None:
        """Run a mini-batch up to its failure: all forward passes, then the update of the gradients
        there by then; the other layers stay.
        """
        places = self.places(failure.percent)
        passes = self.passes(failure.mini_batch)
        if not places:
            return
        before = self.trainee.state()
        self.apply(
            failure.mini_batch, passes, slice(0, places), zero_others=not self.corrections.mask
        )
        self.kept = self.kept and self.trainee.unmoved(before, list(self.workers.order[places:]))

    def apply(
        self, mini_batch: int, passes: Sequence[Pass], places: slice, *, zero_others: bool = False
    ) -> None:
        """Average these passes' gradients at `places` and update with the result."""
        self.update(mini_batch, [(passes, places, len(passes))], zero_others=zero_others)

    def update(
        self,
        mini_batch: int,
        parts: Sequence[tuple[Sequence[Pass], slice, int]],
        *,
        zero_others: bool = False,
    ) -> None:
        """One optimizer step from several parts; each has passes, places in the backward order and
        a divisor.
        """
        gradients: dict[int, torch.Tensor] = {}
        for passes, places, divisor in parts:
            gradients |= zip(
                self.workers.order[places], average(passes, places, divisor), strict=True
            )
            samples = self.shards(mini_batch, [each.worker for each in passes])
            self.applied.append(AppliedSamples(mini_batch, samples, self.layers(places)))
        self.trainee.update(gradients, zero_others=zero_others)

    def undo_after(self, mini_batch: int) -> None:
        """Drop the records after `mini_batch`; the state is the one after it."""
        self.applied = [each for each in self.applied if each.global_step <= mini_batch]
        self.trainee.cursor.done = mini_batch


Recover = Callable[[SimulatedRun, SimulatedFailure], None]


def checkpoint_restart(sim: SimulatedRun, failure: SimulatedFailure) -> None:
    """Restart from the latest checkpoint, taken at the start of the epoch, and replay including the
    mini-batch that failed.

    Ends bit for bit in the state of the run without the failure.
    """
    sim.fail(failure)
    sim.undo_after(sim.checkpoints.restore())
    while sim.done < failure.mini_batch:
        sim.step()


def half_updated_rollback(sim: SimulatedRun, failure: SimulatedFailure) -> None:
    """Immediate mini-batch rollback: spares take the survivors' state as it is, possibly half
    updated, and the mini-batch runs again.

    Gradients applied before the failure are applied twice; exact only for a failure in forward with
    buffers rolled back.

    To roll back the buffers a survivor copies them before its forward pass: they are small.
    """
    buffers = sim.trainee.buffers_now()
    sim.fail(failure)
    if sim.corrections.buffers:
        sim.trainee.put_buffers(buffers)
    sim.step()
    applied = sim.layers(slice(0, sim.places(failure.percent)))
    samples = sim.samples.window(failure.mini_batch)
    sim.lost_samples += repeated(
        failure.mini_batch,
        samples,
        applied,
        sim.casualties(failure),
        half_updated_rollback.__name__,
    )


def consistent_rollback(sim: SimulatedRun, failure: SimulatedFailure) -> None:
    """Immediate rollback from a consistent state: survivors keep the state from before the update,
    and the mini-batch runs again from it.

    Costs a copy of the state per mini-batch; ends bit for bit in the state of the run without the
    failure.
    """
    before = sim.trainee.state()
    sim.fail(failure)
    sim.trainee.restore(before)
    sim.undo_after(failure.mini_batch - 1)
    sim.step()


def lossy_forward(sim: SimulatedRun, failure: SimulatedFailure) -> None:
    """Lossy forward recovery: survivors finish the mini-batch and average among themselves what was
    not yet applied.

    The casualties' samples count in the layers already applied and are lost for the others.

    The buffers are those of the first survivor, the new leader. Replacements join at the next
    mini-batch.
    """
    mini_batch, places = failure.mini_batch, sim.places(failure.percent)
    passes = sim.passes(mini_batch)
    left = [each for each in passes if each.worker in failure.survivors]
    divisor = len(left) if sim.corrections.division else len(passes)
    head = [(passes, slice(0, places), len(passes))] if places else []
    sim.update(mini_batch, [*head, (left, slice(places, None), divisor)])
    sim.trainee.put_buffers(left[0].buffers)
    sim.trainee.cursor.done = mini_batch
    dead = sim.casualties(failure)
    sim.lost_samples += lost(
        mini_batch,
        sim.shards(mini_batch, dead),
        sim.layers(slice(places, None)),
        dead,
        lossy_forward.__name__,
    )


def skip(sim: SimulatedRun, failure: SimulatedFailure) -> None:
    """Skip: keep what was applied, drop the rest of the mini-batch and continue with the next one.

    The layers not reached get no update from this mini-batch. The buffers stay as the leader's
    forward pass left them.
    """
    sim.fail(failure)
    sim.trainee.cursor.done = failure.mini_batch
    rest = sim.layers(slice(sim.places(failure.percent), None))
    samples = sim.samples.window(failure.mini_batch)
    sim.lost_samples += lost(
        failure.mini_batch, samples, rest, sim.casualties(failure), skip.__name__
    )


RECOVER: dict[str, Recover] = {
    "checkpoint_restart": checkpoint_restart,
    "half_updated_rollback": half_updated_rollback,
    "consistent_rollback": consistent_rollback,
    "lossy_forward": lossy_forward,
    "skip": skip,
}
# The first end bit for bit as a run without the failure; the second use what survivors computed
# after it.
EXACT = ("checkpoint_restart", "consistent_rollback")
WITH_SURVIVORS = ("lossy_forward",)
