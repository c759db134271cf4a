"""`term`: SIGTERM to the supervisor, as Slurm and Kubernetes preempt: a last checkpoint within the grace, a clean end, and the keeper goes on."""

from __future__ import annotations

import signal

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.failures.fault_kind import FaultKind, InjectionContext
from ecrl_cli.failures.signals import supervisor_pid, to_process


def blow(scene: InjectionContext) -> None:
    del scene
    to_process(supervisor_pid(), signal.SIGTERM)


def available(config: RunConfig) -> str | None:
    if config.supervision.nodes > 1:
        return "kind term strikes from a rank beside the supervisor, supervision.nodes > 1"
    return "kind term ends in a last checkpoint, checkpoint=none takes none" if config.checkpoint.strategy == "none" else None


_MOMENTS = ("boundary", "forward", "backward", "load", "wall")
STRIKE = FaultKind("is told to stop by SIGTERM", _MOMENTS, blow, ends=False, subject="the supervisor", available=available)
