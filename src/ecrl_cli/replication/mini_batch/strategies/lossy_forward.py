"""Lossy forward recovery: the survivors finish the mini-batch, averaging among themselves what was not applied yet."""

from __future__ import annotations

from ecrl_cli.recovery.lost_samples import lost
from ecrl_cli.replication.mini_batch.scene import Failure, Scene


def lossy_forward(scene: Scene, failure: Failure) -> None:
    """The casualties' samples keep their influence on the layers that were applied before and lose it on the others.

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
