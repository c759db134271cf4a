"""The kinds of failure, a closed registry: one file per kind, its name here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.failures import exit as planned_exit
from ecrl_cli.failures import kill, mtbf


@dataclass(frozen=True)
class Strike:
    """What one blow is: the `kind` of an entry of the plan.

    `flushes`: whether every rank first waits for the checkpoints in flight. `blow`: ends the calling process, the victim; does not return.
    """

    text: str
    flushes: bool
    blow: Callable[[], NoReturn]


@dataclass(frozen=True)
class Kind:
    """What `failure.kind` can name: which blow, and whom it takes when.

    `available`: why it cannot be planned for this configuration, or None. `hits`: (global step, rank) of each entry, in order.
    """

    strike: str
    available: Callable[[RunConfig], str | None]
    hits: Callable[[RunConfig], tuple[tuple[int, int], ...]]


STRIKES: dict[str, Strike] = {
    "exit": Strike(planned_exit.TEXT, True, planned_exit.blow),
    "kill": Strike(kill.TEXT, False, kill.blow),
}

KINDS: dict[str, Kind] = {
    "exit": Kind("exit", planned_exit.available, planned_exit.hits),
    "kill": Kind("kill", kill.available, kill.hits),
    "mtbf": Kind("kill", mtbf.available, mtbf.hits),
}
