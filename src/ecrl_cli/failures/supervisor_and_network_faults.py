"""`supervisor`: SIGKILL of the supervisor. All its processes go down with it; the keeper starts a new one, which sweeps and goes on."""

from __future__ import annotations

import signal

from ecrl_cli.config.fault_spec import IN_STEP
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.failures.fault_kind import FaultKind, InjectionContext
from ecrl_cli.failures.signals import supervisor_pid, to_process


def blow(scene: InjectionContext) -> None:
    """In a rank: does not return, because the kernel takes the rank down with its supervisor."""
    del scene
    to_process(supervisor_pid(), signal.SIGKILL)
    while True:
        signal.pause()


def available(config: RunConfig) -> str | None:
    return "kind supervisor strikes from a rank beside it, supervision.nodes > 1" if config.supervision.nodes > 1 else None


STRIKE = FaultKind("is killed by SIGKILL", (*IN_STEP, "capture", "load", "rest", "wall"), blow, subject="the supervisor", available=available)
