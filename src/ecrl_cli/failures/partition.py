"""`partition`: the network between the ranks goes down. The attempt runs in a network namespace of its own, whose only device is taken down."""

from __future__ import annotations

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.failures.fault_kind import FaultKind, InjectionContext
from ecrl_cli.linux.netns import set_loopback


def blow(scene: InjectionContext) -> None:
    del scene
    set_loopback(up=False)


def available(config: RunConfig) -> str | None:
    if config.supervision.nodes > 1:
        return "kind partition needs all ranks on one machine, supervision.nodes > 1"
    return None if config.world_size > 1 else "kind partition needs two ranks to part, world_size is 1"


STRIKE = FaultKind("loses the network to all others", ("boundary", "forward", "backward", "load"), blow, ends=False, available=available)
