"""From an entry in the words of the grammar to the plan: what was left out is the kind's own, what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace

from ecrl_cli.config.elastic import ranks_at, sizes
from ecrl_cli.config.fault_spec import KEY, Entry, parse
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError
from ecrl_cli.failures.bit_rot import too_early
from ecrl_cli.failures.fault_kind import FaultKind
from ecrl_cli.failures.registry import STRIKES
from ecrl_cli.failures.storage_faults import HALF, wrong_point
from ecrl_cli.records.events import PlannedFailure

__all__ = ["KEY", "Entry", "parse", "planned"]

_SHARED = ("forward", "backward", "optimizer")  # moments that have a share


def planned(entry: Entry, config: RunConfig) -> tuple[PlannedFailure, ...]:
    """The plan's entries (their indices all 0) that `entry` stands for. ConfigError where it cannot strike this run."""
    return tuple(_planned(part, config) for part in _parts(entry, config))


def _parts(entry: Entry, config: RunConfig) -> tuple[Entry, ...]:
    """`backward` is a kill, `corrupt` a kill and the damage before the next attempt (`corrupt@40.rest`: the damage alone)."""
    if entry.what == "backward":
        if entry.moment not in ("", "backward"):
            raise _refused(entry, config, "moment", f"backward is a moment of its own, got {entry.moment}", "use kill")
        return (replace(entry, what="kill", moment="backward"),)
    if entry.what != "corrupt":
        return (entry,)
    if reason := too_early(entry.step, config):
        raise _refused(entry, config, "steps", reason)
    damage = Entry("corrupt", entry.step, "rest")
    return (damage,) if entry.moment == "rest" else (replace(entry, what="kill"), damage)


def _planned(entry: Entry, config: RunConfig) -> PlannedFailure:
    strike = STRIKES[entry.what]
    if reason := strike.available(config):
        raise _refused(entry, config, "kind", reason)
    moment = entry.moment or strike.moments[0]
    if moment not in strike.moments:
        raise _refused(entry, config, "moment", f"{entry.what} does not strike at {moment}", f"it does at: {', '.join(strike.moments)}")
    if moment == "wall" and entry.after_s is None:
        raise _refused(entry, config, "moment", "a wall time has no step", "use failure=listed 'failure.entries=[kill@3.5s:1]'")
    _check_due(entry, moment, config)
    ranks = _victims(entry, strike, moment, config)
    return PlannedFailure(
        index=0,
        kind=entry.what,
        rank=ranks[0],
        global_step=entry.step,
        moment=moment,
        others=ranks[1:],
        node=entry.who == "node",
        share=_share(entry, moment, config),
        point=_point(entry, moment, config),
        seconds=_seconds(entry, strike, moment, config),
    )


def _check_due(entry: Entry, moment: str, config: RunConfig) -> None:
    """A failure of a save needs one that is not the last: behind it nothing would be left to recover."""
    every = config.checkpoint.every
    if moment == "capture" and config.checkpoint.strategy == "none":
        raise _refused(entry, config, "moment", "nothing is captured with checkpoint=none", "add checkpoint=blocking")
    kind, key = "checkpoint", "every"
    if moment == "capture" and config.checkpoint.strategy == "in_memory" and config.checkpoint.memory_every <= every:
        kind, key, every = "snapshot", "memory_every", config.checkpoint.memory_every
    if moment in ("capture", "save") and (due := -(-entry.step // every) * every) >= config.target_steps:
        fact = f"no {kind} is due between step {entry.step} and the target {config.target_steps} (the next one at step {due})"
        raise _refused(entry, config, "steps", fact, f"strike earlier or lower checkpoint.{key}")


def _victims(entry: Entry, strike: FaultKind, moment: str, config: RunConfig) -> tuple[int, ...]:
    there = ranks_at(config, entry.step) if moment != "wall" else min(sizes(config))
    if entry.what == "partition" and there < 2:
        raise _refused(entry, config, "kind", f"partition needs two ranks to part, {there} there at step {entry.step}", "strike where there are more")
    if not isinstance(entry.who, str):
        ranks = entry.who or (0,)
        if ranks[-1] >= there:
            raise _refused(entry, config, "rank", f"rank {ranks[-1]} does not exist with {there} ranks", f"use 0 to {there - 1}")
        if strike.subject and ranks != (0,):
            raise _refused(entry, config, "rank", f"{entry.what} strikes {strike.subject}, not rank {ranks[0]}", "leave the rank out")
        if entry.what in ("exit", "readonly") and ranks != (0,):
            raise _refused(entry, config, "rank", f"{entry.what} strikes rank 0 only, got {'+'.join(map(str, ranks))}", "leave the rank out")
    else:
        ranks = tuple(range(there))
    if len(ranks) == 1 and entry.who != "node":
        return ranks
    if not strike.several or moment in ("start", "rendezvous", "wall"):
        where = "" if not strike.several else f" at {moment}"
        raise _refused(entry, config, "who", f"{entry.what} takes one rank alone{where}", "name one rank")
    if config.supervision.nodes > 1:
        raise _refused(entry, config, "who", "ranks on other machines cannot be struck from here, supervision.nodes > 1", "name one rank")
    if entry.who == "node" and config.supervision.launcher != "torchrun":
        raise _refused(entry, config, "who", "a node has an agent of its own under supervision.launcher=torchrun only", "name ranks or all")
    return ranks


def _share(entry: Entry, moment: str, config: RunConfig) -> float:
    if entry.what == "nan" and entry.share is None:
        return 1.0  # the output of the whole model
    if moment in _SHARED and entry.what != "nan":
        return 0.5 if entry.share is None else entry.share
    if entry.share is not None:
        raise _refused(entry, config, "share", f"{entry.what} at {moment} has no share", f"leave it out or strike at {', '.join(_SHARED)}")
    return 0.0


def _point(entry: Entry, moment: str, config: RunConfig) -> str:
    if moment != "save":
        if entry.point:
            raise _refused(entry, config, "point", f"{entry.what} at {moment} has no point of the store's protocol", "leave it out")
        return ""
    if entry.what == "slow_disk" and not entry.point:
        return ""
    if reason := wrong_point(entry.what, entry.point or HALF, config):
        raise _refused(entry, config, "point", reason)
    return entry.point or HALF


def _seconds(entry: Entry, strike: FaultKind, moment: str, config: RunConfig) -> float:
    if moment == "wall":
        return entry.after_s or 0.0
    if entry.seconds is not None and not strike.seconds:
        raise _refused(entry, config, "seconds", f"{entry.what} takes no time", "leave the seconds out")
    seconds, limit = strike.seconds if entry.seconds is None else entry.seconds, config.supervision.hang_timeout_s
    if entry.what == "slow_rank" and seconds >= limit:
        fact = f"{seconds:g} s per step would be a hang: supervision.hang_timeout_s is {limit:g}"
        raise _refused(entry, config, "seconds", fact, "lower the seconds or raise the timeout")
    return seconds


def _refused(entry: Entry, config: RunConfig, key: str, reason: str, remedy: str = "") -> ConfigError:
    """Under the key that was typed: the entry itself where it was listed."""
    if config.failure.kind == "listed":
        return ConfigError(KEY, f"'{entry}': {reason}", remedy)
    return ConfigError(f"failure.{key}", reason, remedy)
