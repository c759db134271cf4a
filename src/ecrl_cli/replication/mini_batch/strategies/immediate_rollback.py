"""Immediate mini-batch rollback: spares take up the survivors' state as it is, possibly half updated, and the same mini-batch runs again."""

from __future__ import annotations

from ecrl_cli.recovery.lost_samples import repeated
from ecrl_cli.replication.mini_batch.scene import Failure, Scene


def immediate_rollback(scene: Scene, failure: Failure) -> None:
    """What had been applied is applied once more; with a failure in forward, and buffers that are rolled back, the result is exact.

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
