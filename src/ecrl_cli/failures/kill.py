"""`kill`: SIGKILL of one rank at a step boundary: no flush, no barrier, nothing said."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from ecrl_cli.config.elastic import ranks_at
from ecrl_cli.config.schema import RunConfig

TEXT = "is killed by SIGKILL, without a flush"


def available(config: RunConfig) -> str | None:
    rank, world = config.failure.rank, min((ranks_at(config, step) for step in config.failure.steps), default=config.world_size)
    return None if rank < world else f"rank {rank} does not exist with {world} ranks"


def hits(config: RunConfig) -> tuple[tuple[int, int], ...]:
    return tuple((step, config.failure.rank) for step in config.failure.steps)


def blow() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived SIGKILL")
