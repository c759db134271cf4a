"""`kill`: SIGKILL of one rank, of several or of a whole node: no flush, no barrier, nothing said. `backward` is the same inside backward."""

from __future__ import annotations

import signal
from typing import NoReturn

from ecrl_cli.config.fault_spec import IN_STEP, STARTING
from ecrl_cli.failures.fault_kind import FaultKind, InjectionContext
from ecrl_cli.failures.signals import to_victims


def blow(scene: InjectionContext) -> NoReturn:
    to_victims(scene, signal.SIGKILL)
    raise AssertionError("survived SIGKILL")


STRIKE = FaultKind("is killed by SIGKILL, without a flush", (*IN_STEP, "capture", *STARTING, "wall"), blow, several=True)
