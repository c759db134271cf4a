"""Restart from the latest checkpoint, taken at the beginning of the epoch, and replay up to the mini-batch that failed."""

from __future__ import annotations

from ecrl_cli.replication.mini_batch.scene import Failure, Scene


def checkpoint_restart(scene: Scene, failure: Failure) -> None:
    """Ends where the run without the failure does, bit for bit."""
    scene.fail(failure)
    scene.undo_behind(scene.checkpoints.restore())
    while scene.done < failure.mini_batch:
        scene.step()
