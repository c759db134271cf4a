"""What one blow is, as data and a function: the `kind` of an entry of the plan. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.layout import RunLayout

NON_FATAL = ("slow_rank", "slow_disk", "enospc", "eio", "corrupt")  # kinds of which no attempt ends


@dataclass(frozen=True)
class InjectionContext:
    """What a blow may use. `peers`: by rank, the processes of those that go with the victim. `output`: of the module whose forward is struck."""

    layout: RunLayout
    entry: PlannedFailure
    peers: Mapping[int, int] = field(default_factory=dict)
    output: Any = None


def always(config: RunConfig) -> str | None:
    """`available` of what can strike any run."""
    del config
    return None


@dataclass(frozen=True)
class FaultKind:
    """`text`: what happens, behind its subject; `{seconds}` stands for how long. `moments`: when it can strike, its own first.

    `blow`: does it; what it returns takes the place of a struck module's output. `ends`: whether the victim goes no further: only then may
    it be struck in the middle of an update. `flushes`: whether every rank first waits for the checkpoints in flight (boundary only).
    `several`: whether it can take several ranks at once. `seconds`: how long by default, 0: it takes no time. `lasts`: for how many steps.
    `available`: why it cannot be planned for this configuration, or None.
    """

    text: str
    moments: tuple[str, ...]
    inject: Callable[[InjectionContext], Any]
    ends: bool = True
    flushes: bool = False
    several: bool = False
    subject: str = ""
    seconds: float = 0.0
    lasts: int = 1
    available: Callable[[RunConfig], str | None] = always
