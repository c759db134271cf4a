"""`kill`: SIGKILL of one rank at a step boundary: no flush, no barrier, nothing said."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from ecrl_cli.config.schema import RunConfig

TEXT = "is killed by SIGKILL, without a flush"


def available(config: RunConfig) -> str | None:
    world = config.world_size
    return None if config.failure.rank < world else f"rank {config.failure.rank} does not exist with {world} ranks"


def victim(config: RunConfig) -> int:
    return config.failure.rank


def blow() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived SIGKILL")
