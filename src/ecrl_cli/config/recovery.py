"""What a choice of recovery means for the rest of a run."""

from __future__ import annotations

from ecrl_cli.config.schema import RunConfig


def live(config: RunConfig) -> bool:
    """Whether ranks outlive others: recovery in memory, or warm spares that take the places of the dead."""
    return config.recovery.name != "checkpoint_restart" or config.supervision.spares > 0
