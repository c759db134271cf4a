"""`exit`: the published protocol. Rank 0 leaves with code 137 after the final barrier of a step and a flush: the politest death."""

from __future__ import annotations

import os
from typing import NoReturn

from ecrl_cli.config.fault_spec import IN_STEP, STARTING
from ecrl_cli.failures.fault_kind import FaultKind, InjectionContext

EXIT_CODE = 137


def blow(scene: InjectionContext) -> NoReturn:
    del scene
    os._exit(EXIT_CODE)


STRIKE = FaultKind("exits with code 137 after a flush", (*IN_STEP, "capture", *STARTING), blow, flushes=True)
