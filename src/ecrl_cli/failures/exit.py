"""`exit`: the published protocol. Rank 0 leaves with code 137 after the final barrier of a step and a flush: the politest death."""

from __future__ import annotations

import os
from typing import NoReturn

from ecrl_cli.config.schema import RunConfig

TEXT = "exits with code 137 after a flush"
EXIT_CODE = 137


def available(config: RunConfig) -> str | None:
    return "kind exit always strikes rank 0; use failure=kill for another rank" if config.failure.rank else None


def hits(config: RunConfig) -> tuple[tuple[int, int], ...]:
    return tuple((step, 0) for step in config.failure.steps)


def blow() -> NoReturn:
    os._exit(EXIT_CODE)
