"""Compiles a typed entry into entries of the failure plan: defaults come from the failure kind; an impossible entry is refused in one line."""

from __future__ import annotations

from ecrl_cli.config.elastic import ranks_at, sizes
from ecrl_cli.config.fault_spec import KEY, Entry
from ecrl_cli.config.launchers import launcher_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import ConfigError
from ecrl_cli.failures.fault_kind import FaultKind, RefusedFault, Victim
from ecrl_cli.failures.registry import fault_kind
from ecrl_cli.records.events import PlannedFailure

_SHARED = ("forward", "backward", "optimizer")  # moments that take a share


def planned(entry: Entry, config: RunConfig) -> tuple[PlannedFailure, ...]:
    """The plan's entries (all with index 0) that `entry` stands for. ConfigError, under the typed key, if it cannot happen in this run."""
    try:
        return tuple(_planned(part, config) for part in fault_kind(entry.what).expand(entry, config))
    except RefusedFault as refused:
        if config.failure.kind == "listed":
            raise ConfigError(KEY, f"'{entry}': {refused.reason}", refused.remedy) from refused
        raise ConfigError(f"failure.{refused.key}", refused.reason, refused.remedy) from refused


def _planned(entry: Entry, config: RunConfig) -> PlannedFailure:
    kind = fault_kind(entry.what)
    if reason := kind.refuses(config):
        raise RefusedFault("kind", reason)
    moment = entry.moment or kind.moments[0]
    if moment not in kind.moments:
        raise RefusedFault("moment", f"{entry.what} does not strike at {moment}", f"it does at: {', '.join(kind.moments)}")
    if moment == "wall" and entry.after_s is None:
        raise RefusedFault("moment", "a wall time has no step", "use failure=listed 'failure.entries=[kill@3.5s:1]'")
    _check_due(entry, moment, config)
    ranks = _victims(entry, kind, moment, config)
    found = PlannedFailure(
        index=0,
        kind=entry.what,
        rank=ranks[0],
        global_step=entry.step,
        moment=moment,
        others=ranks[1:],
        node=entry.who == "node",
        share=_share(entry, kind, moment),
        point=_point(entry, kind, moment, config),
        seconds=_seconds(entry, kind, moment),
    )
    kind.check(found, config)
    return found


def _check_due(entry: Entry, moment: str, config: RunConfig) -> None:
    """RefusedFault if a failure of a save has no save due before the target step: nothing would be left to recover."""
    every = config.checkpoint.every
    if moment == "capture" and not strategy_of(config).saves:
        raise RefusedFault("moment", "nothing is captured with checkpoint=none", "add checkpoint=blocking")
    what, key = "checkpoint", "every"
    if moment == "capture" and strategy_of(config).snapshots and config.checkpoint.memory_every <= every:
        what, key, every = "snapshot", "memory_every", config.checkpoint.memory_every
    if moment in ("capture", "save") and (due := -(-entry.step // every) * every) >= config.target_steps:
        fact = f"no {what} is due between step {entry.step} and the target {config.target_steps} (the next one at step {due})"
        raise RefusedFault("steps", fact, f"strike earlier or lower checkpoint.{key}")


def _victims(entry: Entry, kind: FaultKind, moment: str, config: RunConfig) -> tuple[int, ...]:
    there = ranks_at(config, entry.step) if moment != "wall" else min(sizes(config))
    if isinstance(entry.who, str):
        ranks = tuple(range(there))
    else:
        ranks = entry.who or (0,)
        if ranks[-1] >= there:
            raise RefusedFault("rank", f"rank {ranks[-1]} does not exist with {there} ranks", f"use 0 to {there - 1}")
        if ranks != (0,) and not kind.victim.is_rank:
            raise RefusedFault("rank", f"{entry.what} strikes {kind.victim.value}, not rank {ranks[0]}", "leave the rank out")
        if ranks != (0,) and kind.victim is Victim.RANK_0:
            raise RefusedFault("rank", f"{entry.what} strikes rank 0 only, got {'+'.join(map(str, ranks))}", "leave it out, or choose failure=kill")
    if len(ranks) == 1 and entry.who != "node":
        return ranks
    if kind.victim is not Victim.RANKS or moment in ("start", "rendezvous", "wall"):
        where = f" at {moment}" if kind.victim is Victim.RANKS else ""
        raise RefusedFault("who", f"{entry.what} takes one rank alone{where}", "name one rank")
    if config.supervision.nodes > 1:
        raise RefusedFault("who", "ranks on other machines cannot be struck from here, supervision.nodes > 1", "name one rank")
    if entry.who == "node" and not launcher_of(config).several_nodes:
        raise RefusedFault("who", "a node has an agent of its own under supervision.launcher=torchrun only", "name ranks or all")
    return ranks


def _share(entry: Entry, kind: FaultKind, moment: str) -> float:
    if moment in _SHARED and (entry.share is None or kind.takes_share):
        return kind.share if entry.share is None else entry.share
    if entry.share is not None:
        raise RefusedFault("share", f"{entry.what} at {moment} has no share", f"leave it out or strike at {', '.join(_SHARED)}")
    return 0.0


def _point(entry: Entry, kind: FaultKind, moment: str, config: RunConfig) -> str:
    if moment != "save":
        if entry.point:
            raise RefusedFault("point", f"{entry.what} at {moment} has no point of the store's protocol", "leave it out")
        return ""
    point = entry.point or kind.point
    if point and (reason := kind.wrong_point(point, config)):
        raise RefusedFault("point", reason)
    return point


def _seconds(entry: Entry, kind: FaultKind, moment: str) -> float:
    if moment == "wall":
        return entry.after_s or 0.0
    if entry.seconds is not None and not kind.seconds:
        raise RefusedFault("seconds", f"{entry.what} takes no time", "leave the seconds out")
    return kind.seconds if entry.seconds is None else entry.seconds
