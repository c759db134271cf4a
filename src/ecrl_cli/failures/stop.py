"""`stop`: SIGSTOP of a rank, which then neither works nor dies: only whoever watches its progress can tell."""

from __future__ import annotations

import signal

from ecrl_cli.config.entries import IN_STEP, STARTING
from ecrl_cli.failures.signals import to_victims
from ecrl_cli.failures.strike import Scene, Strike


def blow(scene: Scene) -> None:
    """Returns where somebody wakes it up again."""
    to_victims(scene, signal.SIGSTOP)


STRIKE = Strike("is stopped by SIGSTOP and hangs", (*IN_STEP, "capture", *STARTING, "wall"), blow, ends=False, several=True)
