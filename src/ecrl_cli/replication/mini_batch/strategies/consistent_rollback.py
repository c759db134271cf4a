"""Immediate rollback as it is right: the survivors still have the state from before the update, and the same mini-batch runs again from that."""

from __future__ import annotations

from ecrl_cli.replication.mini_batch.scene import Failure, Scene


def consistent_rollback(scene: Scene, failure: Failure) -> None:
    """Costs a copy of the state per mini-batch; ends where the run without the failure does, bit for bit."""
    before = scene.trainee.state()
    scene.fail(failure)
    scene.trainee.restore(before)
    scene.undo_behind(failure.mini_batch - 1)
    scene.step()
