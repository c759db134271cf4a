"""`raise`: an exception in a rank's own code."""

from __future__ import annotations

from typing import NoReturn

from ecrl_cli.config.fault_spec import STARTING
from ecrl_cli.failures.fault_kind import FaultKind, InjectionContext


class PlannedError(RuntimeError):
    """Raised on purpose by failure=raise."""


def blow(scene: InjectionContext) -> NoReturn:
    raise PlannedError(f"planned failure {scene.entry.index + 1}")


STRIKE = FaultKind("raises an exception", ("forward", "boundary", "backward", "optimizer", "capture", *STARTING), blow)
