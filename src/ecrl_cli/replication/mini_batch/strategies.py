"""What becomes of a mini-batch in which workers died: one function per strategy, each leaves the scene behind that mini-batch."""

from __future__ import annotations

from collections.abc import Callable

from ecrl_cli.recovery.lost_samples import lost, repeated
from ecrl_cli.replication.mini_batch.scene import Failure, Scene

Recover = Callable[[Scene, Failure], None]


def checkpoint_restart(scene: Scene, failure: Failure) -> None:
    """Restart from the latest checkpoint, taken at the beginning of the epoch, and replay up to the mini-batch that failed.

    Ends where the run without the failure does, bit for bit.
    """
    scene.fail(failure)
    scene.undo_behind(scene.checkpoints.restore())
    while scene.done < failure.mini_batch:
        scene.step()


def immediate_rollback(scene: Scene, failure: Failure) -> None:
    """Immediate mini-batch rollback: spares take up the survivors' state as it is, possibly half updated, and the same mini-batch runs again.

    What had been applied is applied once more; with a failure in forward, and buffers that are rolled back, the result is exact.

    To roll the buffers back a survivor keeps a copy of them from before its forward pass: they are small.
    """
    buffers = scene.trainee.buffers_now()
    scene.fail(failure)
    if scene.corrections.buffers:
        scene.trainee.put_buffers(buffers)
    scene.step()
    applied = scene.layers(slice(0, scene.places(failure.percent)))
    samples = scene.samples.window(failure.mini_batch)
    scene.ledger += repeated(failure.mini_batch, samples, applied, scene.casualties(failure), immediate_rollback.__name__)


def consistent_rollback(scene: Scene, failure: Failure) -> None:
    """Immediate rollback as it is right: the survivors still have the state from before the update, and the same mini-batch runs again from that.

    Costs a copy of the state per mini-batch; ends where the run without the failure does, bit for bit.
    """
    before = scene.trainee.state()
    scene.fail(failure)
    scene.trainee.restore(before)
    scene.undo_behind(failure.mini_batch - 1)
    scene.step()


def lossy_forward(scene: Scene, failure: Failure) -> None:
    """Lossy forward recovery: the survivors finish the mini-batch, averaging among themselves what was not applied yet.

    The casualties' samples keep their influence on the layers that were applied before and lose it on the others.

    The buffers are those of the first survivor, who leads from there on. Replacements join at the next mini-batch.
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
    scene.ledger += lost(mini_batch, scene.shards(mini_batch, dead), scene.layers(slice(places, None)), dead, lossy_forward.__name__)


def skip(scene: Scene, failure: Failure) -> None:
    """Skip: what was applied stays, the rest of the mini-batch is given up, and training goes on with the next one.

    The whole mini-batch loses its influence on the layers that were not reached. The buffers stay as the leader's forward pass left them.
    """
    scene.fail(failure)
    scene.trainee.cursor.done = failure.mini_batch
    rest = scene.layers(slice(scene.places(failure.percent), None))
    samples = scene.samples.window(failure.mini_batch)
    scene.ledger += lost(failure.mini_batch, samples, rest, scene.casualties(failure), skip.__name__)


RECOVER: dict[str, Recover] = {
    "checkpoint_restart": checkpoint_restart,
    "immediate_rollback": immediate_rollback,
    "consistent_rollback": consistent_rollback,
    "lossy_forward": lossy_forward,
    "skip": skip,
}
# These end where a run without the failure ends, bit for bit; and these use what survivors computed after it.
EXACT = ("checkpoint_restart", "consistent_rollback")
WITH_SURVIVORS = ("lossy_forward",)
