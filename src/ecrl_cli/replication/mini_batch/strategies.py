"""How each strategy handles a mini-batch in which workers died; every function leaves the scene after that mini-batch."""

from __future__ import annotations

from collections.abc import Callable

from ecrl_cli.records.survivor_records import lost, repeated
from ecrl_cli.replication.mini_batch.scene import Failure, Scene

Recover = Callable[[Scene, Failure], None]


def checkpoint_restart(scene: Scene, failure: Failure) -> None:
    """Restart from the latest checkpoint, taken at the start of the epoch, and replay including the mini-batch that failed.

    Ends bit for bit in the state of the run without the failure.
    """
    scene.fail(failure)
    scene.undo_behind(scene.checkpoints.restore())
    while scene.done < failure.mini_batch:
        scene.step()


def immediate_rollback(scene: Scene, failure: Failure) -> None:
    """Immediate mini-batch rollback: spares take the survivors' state as it is, possibly half updated, and the mini-batch runs again.

    Gradients applied before the failure are applied twice; exact only for a failure in forward with buffers rolled back.

    To roll back the buffers a survivor copies them before its forward pass: they are small.
    """
    buffers = scene.trainee.buffers_now()
    scene.fail(failure)
    if scene.corrections.buffers:
        scene.trainee.put_buffers(buffers)
    scene.step()
    applied = scene.layers(slice(0, scene.places(failure.percent)))
    samples = scene.samples.window(failure.mini_batch)
    scene.lost_samples += repeated(failure.mini_batch, samples, applied, scene.casualties(failure), immediate_rollback.__name__)


def consistent_rollback(scene: Scene, failure: Failure) -> None:
    """Immediate rollback from a consistent state: survivors keep the state from before the update, and the mini-batch runs again from it.

    Costs a copy of the state per mini-batch; ends bit for bit in the state of the run without the failure.
    """
    before = scene.trainee.state()
    scene.fail(failure)
    scene.trainee.restore(before)
    scene.undo_behind(failure.mini_batch - 1)
    scene.step()


def lossy_forward(scene: Scene, failure: Failure) -> None:
    """Lossy forward recovery: survivors finish the mini-batch and average among themselves what was not yet applied.

    The casualties' samples count in the layers already applied and are lost for the others.

    The buffers are those of the first survivor, the new leader. Replacements join at the next mini-batch.
    """
    mini_batch, places = failure.mini_batch, scene.places(failure.percent)
    passes = scene.passes(mini_batch)
    left = [each for each in passes if each.worker in failure.survivors]
    divisor = len(left) if scene.corrections.division else len(passes)
    head = [(passes, slice(0, places), len(passes))] if places else []
    scene.update(mini_batch, [*head, (left, slice(places, None), divisor)])
    scene.trainee.put_buffers(left[0].buffers)
    scene.trainee.cursor.done = mini_batch
    dead = scene.casualties(failure)
    scene.lost_samples += lost(mini_batch, scene.shards(mini_batch, dead), scene.layers(slice(places, None)), dead, lossy_forward.__name__)


def skip(scene: Scene, failure: Failure) -> None:
    """Skip: keep what was applied, drop the rest of the mini-batch and continue with the next one.

    The layers not reached get no update from this mini-batch. The buffers stay as the leader's forward pass left them.
    """
    scene.fail(failure)
    scene.trainee.cursor.done = failure.mini_batch
    rest = scene.layers(slice(scene.places(failure.percent), None))
    samples = scene.samples.window(failure.mini_batch)
    scene.lost_samples += lost(failure.mini_batch, samples, rest, scene.casualties(failure), skip.__name__)


RECOVER: dict[str, Recover] = {
    "checkpoint_restart": checkpoint_restart,
    "immediate_rollback": immediate_rollback,
    "consistent_rollback": consistent_rollback,
    "lossy_forward": lossy_forward,
    "skip": skip,
}
# The first end bit for bit as a run without the failure; the second use what survivors computed after it.
EXACT = ("checkpoint_restart", "consistent_rollback")
WITH_SURVIVORS = ("lossy_forward",)
