"""What becomes of a mini-batch in which workers died: one file per strategy, each a function that leaves the scene behind that mini-batch."""

from __future__ import annotations

from collections.abc import Callable

from ecrl_cli.replication.mini_batch.scene import Failure, Scene
from ecrl_cli.replication.mini_batch.strategies.checkpoint_restart import checkpoint_restart
from ecrl_cli.replication.mini_batch.strategies.consistent_rollback import consistent_rollback
from ecrl_cli.replication.mini_batch.strategies.immediate_rollback import immediate_rollback
from ecrl_cli.replication.mini_batch.strategies.lossy_forward import lossy_forward
from ecrl_cli.replication.mini_batch.strategies.skip import skip

Recover = Callable[[Scene, Failure], None]

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
