"""The kinds of failure, a closed registry: one file per kind, its name here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.failures import exit as planned_exit
from ecrl_cli.failures import kill


@dataclass(frozen=True)
class Strike:
    """What one kind of failure is.

    `available`: why it cannot be planned for this configuration, or None. `victim`: the rank it takes. `flushes`: whether every rank
    first waits for the checkpoints in flight. `blow`: ends the calling process, the victim; does not return.
    """

    text: str
    available: Callable[[RunConfig], str | None]
    victim: Callable[[RunConfig], int]
    flushes: bool
    blow: Callable[[], NoReturn]


STRIKES: dict[str, Strike] = {
    "exit": Strike(planned_exit.TEXT, planned_exit.available, planned_exit.victim, True, planned_exit.blow),
    "kill": Strike(kill.TEXT, kill.available, kill.victim, False, kill.blow),
}
