"""`stop`: SIGSTOP of a rank, which then neither works nor dies: only whoever watches its progress can tell."""

from __future__ import annotations

import signal

from ecrl_cli.config.fault_spec import IN_STEP, STARTING
from ecrl_cli.failures.fault_kind import FaultKind, InjectionContext
from ecrl_cli.failures.signals import to_victims


def blow(scene: InjectionContext) -> None:
    """Never returns: whoever is woken to say what its threads were doing shall not go on training meanwhile."""
    to_victims(scene, signal.SIGSTOP)
    while True:
        signal.pause()


STRIKE = FaultKind("is stopped by SIGSTOP and hangs", (*IN_STEP, "capture", *STARTING, "wall"), blow, ends=False, several=True)
