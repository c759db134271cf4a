"""Skip: what was applied stays, the rest of the mini-batch is given up, and training goes on with the next one."""

from __future__ import annotations

from ecrl_cli.recovery.lost_samples import lost
from ecrl_cli.replication.mini_batch.scene import Failure, Scene


def skip(scene: Scene, failure: Failure) -> None:
    """The whole mini-batch loses its influence on the layers that were not reached. The buffers stay as the leader's forward pass left them."""
    scene.fail(failure)
    scene.trainee.cursor.done = failure.mini_batch
    rest = scene.layers(slice(scene.places(failure.percent), None))
    samples = scene.samples.window(failure.mini_batch)
    scene.ledger += lost(failure.mini_batch, samples, rest, scene.casualties(failure), skip.__name__)
