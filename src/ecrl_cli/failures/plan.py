"""The failure plan of a run: derived from its configuration and seed alone, printed before the run
and stored with it.

Typed entries are compiled with the defaults of their kind, and one that cannot happen is refused in
one line; `failure=mtbf` draws kills at random distances; with a recovery that shrinks, the ranks
left by each failure must divide the global batch.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import groupby, islice

from ecrl_cli.config.codec import decode
from ecrl_cli.config.elastic import fits, ranks_at, sizes
from ecrl_cli.config.fault_spec import STARTING, Entry
from ecrl_cli.config.launchers import launcher_of
from ecrl_cli.config.limits import MOST_FAILURES
from ecrl_cli.config.plan_kinds import PlanKind, plan_kind
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import ConfigError, RecordError, plural
from ecrl_cli.failures.fault_kind import Ends, FaultKind, RefusedFault, Victim, fault_kind
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout

_MOMENTS = {
    "boundary": "after step {step}",
    "forward": "in step {step}, {share:.0%} into forward",
    "backward": "in step {step}, after {share:.0%} of the gradients",
    "optimizer": "in step {step}, after the update of {share:.0%} of the parameters",
    "capture": "while the checkpoint of step {step}, or the next one due, is captured",
    "save": "in the first save due at step {step} or after it{point}",
    "start": "at the start of the first attempt{after}",
    "rendezvous": "before the rendezvous of the first attempt{after}",
    "load": "before the first attempt{after} loads its state",
    "rest": "before the first attempt after step {step} chooses what to resume from",
    "wall": "after {seconds:.3f} s of supervised time",
}

_SHARED = ("forward", "backward", "optimizer")  # moments that take a share


@dataclass(frozen=True)
class _Plan:
    entries: tuple[PlannedFailure, ...]


def plan(config: RunConfig) -> tuple[PlannedFailure, ...]:
    """The planned failures, in order; none for a variant without failures. ConfigError if a kind
    cannot happen in this run.
    """
    kind = plan_kind(config.failure.kind)
    if not config.variant.failures or kind.plans_none:
        return ()
    if max(len(config.failure.steps), len(config.failure.entries)) > MOST_FAILURES:
        raise too_many()
    entries = (each for entry in kind.entries(config) for each in planned(entry, config, kind))
    found = tuple(
        replace(entry, index=index)
        for index, entry in enumerate(islice(entries, MOST_FAILURES + 1))
    )
    if len(found) > MOST_FAILURES:
        raise too_many()
    for entry in found:
        _check_occasion(entry, found, config)
    check_sizes(found, config, drawn=kind.draws)
    return found


def too_many() -> ConfigError:
    return ConfigError(
        "failure",
        f"plans more than {MOST_FAILURES} failures",
        "plan fewer, or raise the mean between two of them",
    )


def _check_occasion(
    entry: PlannedFailure, found: tuple[PlannedFailure, ...], config: RunConfig
) -> None:
    """ConfigError for an entry that waits for an attempt beginning after some step, if nothing ends
    an attempt there.
    """
    if entry.moment not in ("rest", *STARTING) or not entry.global_step:
        return
    others = (
        each
        for each in found
        if each is not entry
        and fault_kind(each.kind).ends is not Ends.NOTHING
        and each.moment != "rest"
    )
    ends = any(each.moment == "wall" or each.global_step >= entry.global_step for each in others)
    if not ends and not any(step >= entry.global_step for step in config.elastic.schedule):
        fact = (
            f"{entry.kind} at {entry.moment} waits for an attempt that begins after step"
            f" {entry.global_step}, and nothing ends one there"
        )
        raise ConfigError(
            "failure",
            fact,
            f"plan a failure at step {entry.global_step} before it: failure=listed"
            " 'failure.entries=[kill@...]'",
        )


def describe(entries: tuple[PlannedFailure, ...]) -> tuple[str, ...]:
    """One line per entry, for people."""
    if not entries:
        return ("no failures planned",)
    return tuple(
        f"failure {p.index + 1} of {len(entries)}: {_subject(p)}"
        f" {fault_kind(p.kind).text.format(seconds=p.seconds)}, {_when(p)}"
        for p in entries
    )


def _subject(entry: PlannedFailure) -> str:
    victim = fault_kind(entry.kind).victim
    if not victim.is_rank:
        return victim.value
    ranks = (entry.rank, *entry.others)
    whole = " and their agent" if entry.node else ""
    return (
        f"rank {entry.rank}"
        if len(ranks) == 1 and not whole
        else f"each of ranks {', '.join(map(str, ranks))}{whole}"
    )


def _when(entry: PlannedFailure) -> str:
    following = f" after step {entry.global_step}" if entry.global_step else ""
    point = f", at {entry.point}" if entry.point else ""
    return _MOMENTS[entry.moment].format(
        step=entry.global_step,
        share=entry.share,
        seconds=entry.seconds,
        after=following,
        point=point,
    )


def pending(
    entries: tuple[PlannedFailure, ...], fired: Collection[int]
) -> tuple[PlannedFailure, ...]:
    """The entries whose index is not among `fired`."""
    return tuple(entry for entry in entries if entry.index not in fired)


def read_plan(layout: RunLayout) -> tuple[PlannedFailure, ...]:
    """Reads failures.json; RecordError where it is missing or damaged."""
    try:
        return decode(_Plan, {"entries": read_json(layout.failures)}).entries
    except FileNotFoundError as error:
        raise RecordError("failures.json", "is missing", "restore the file") from error
    except (KeyError, TypeError) as error:
        raise RecordError("failures.json", f"not a plan ({error})", "restore the file") from error


def planned(entry: Entry, config: RunConfig, by: PlanKind) -> tuple[PlannedFailure, ...]:
    """The plan's entries (all with index 0) that `entry`, planned as `by` says, stands for.
    ConfigError, under the typed key, if it cannot happen in this run.
    """
    try:
        return tuple(
            _planned(part, config) for part in fault_kind(entry.what).expand(entry, config)
        )
    except RefusedFault as refused:
        raise by.refusal(entry, refused.key, refused.reason, refused.remedy) from refused


def _planned(entry: Entry, config: RunConfig) -> PlannedFailure:
    kind = fault_kind(entry.what)
    if reason := kind.refuses(config):
        raise RefusedFault("kind", reason)
    moment = entry.moment or kind.moments[0]
    if moment not in kind.moments:
        raise RefusedFault(
            "moment",
            f"{entry.what} cannot be injected at {moment}",
            f"it can at: {', '.join(kind.moments)}",
        )
    if moment == "wall" and entry.after_s is None:
        raise RefusedFault(
            "moment",
            "a wall time has no step",
            "use failure=listed 'failure.entries=[kill@3.5s:1]'",
        )
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
    """RefusedFault if a failure of a save has no save due before the target step: nothing would be
    left to recover.
    """
    every = config.checkpoint.every
    if moment == "capture" and not strategy_of(config).saves:
        raise RefusedFault(
            "moment", "nothing is captured with checkpoint=none", "add checkpoint=blocking"
        )
    what, key = "checkpoint", "every"
    if (
        moment == "capture"
        and strategy_of(config).snapshots
        and config.checkpoint.memory_every <= every
    ):
        what, key, every = "snapshot", "memory_every", config.checkpoint.memory_every
    if (
        moment in ("capture", "save")
        and (due := -(-entry.step // every) * every) >= config.target_steps
    ):
        fact = (
            f"no {what} is due between step {entry.step} and the target {config.target_steps} (the"
            f" next one at step {due})"
        )
        raise RefusedFault("steps", fact, f"inject earlier or lower checkpoint.{key}")


def _victims(entry: Entry, kind: FaultKind, moment: str, config: RunConfig) -> tuple[int, ...]:
    there = ranks_at(config, entry.step) if moment != "wall" else min(sizes(config))
    if isinstance(entry.who, str):
        ranks = tuple(range(there))
    else:
        ranks = entry.who or (0,)
        if ranks[-1] >= there:
            raise RefusedFault(
                "rank",
                f"rank {ranks[-1]} does not exist with {plural(there, 'rank')}",
                f"use 0 to {there - 1}",
            )
        if ranks != (0,) and not kind.victim.is_rank:
            raise RefusedFault(
                "rank",
                f"{entry.what} is injected into {kind.victim.value}, not rank {ranks[0]}",
                "leave the rank out",
            )
        if ranks != (0,) and kind.victim is Victim.RANK_0:
            raise RefusedFault(
                "rank",
                f"{entry.what} is injected into rank 0 only, got {'+'.join(map(str, ranks))}",
                "leave it out, or choose failure=kill",
            )
    if len(ranks) == 1 and entry.who != "node":
        return ranks
    if kind.victim is not Victim.RANKS or moment in ("start", "rendezvous", "wall"):
        where = f" at {moment}" if kind.victim is Victim.RANKS else ""
        raise RefusedFault("who", f"{entry.what} takes one rank alone{where}", "name one rank")
    if config.supervision.nodes > 1:
        raise RefusedFault(
            "who",
            "failures cannot be injected into ranks on other machines from here,"
            " supervision.nodes > 1",
            "name one rank",
        )
    if entry.who == "node" and not launcher_of(config).several_nodes:
        raise RefusedFault(
            "who",
            "a node has an agent of its own under supervision.launcher=torchrun only",
            "name ranks or all",
        )
    return ranks


def _share(entry: Entry, kind: FaultKind, moment: str) -> float:
    if moment in _SHARED and (entry.share is None or kind.takes_share):
        return kind.share if entry.share is None else entry.share
    if entry.share is not None:
        raise RefusedFault(
            "share",
            f"{entry.what} at {moment} has no share",
            f"leave it out or inject at {', '.join(_SHARED)}",
        )
    return 0.0


def _point(entry: Entry, kind: FaultKind, moment: str, config: RunConfig) -> str:
    if moment != "save":
        if entry.point:
            raise RefusedFault(
                "point",
                f"{entry.what} at {moment} has no point of the store's protocol",
                "leave it out",
            )
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


def check_sizes(
    entries: tuple[PlannedFailure, ...], config: RunConfig, *, drawn: bool = False
) -> None:
    """ConfigError if the ranks left by one of `entries` do not divide the batch, or its victim is
    already gone; the latter may be where victims are `drawn`.
    """
    if not recovery_of(config).shrinks:
        return
    left = _Left(config.world_size, config.supervision.spares, drawn)
    by_step = sorted(
        (entry for entry in entries if entry.moment != "wall"), key=lambda entry: entry.global_step
    )
    for _, together in groupby(by_step, key=lambda entry: entry.global_step):
        left.apply(tuple(together))
    for entry in entries:
        if entry.moment == "wall":
            left.apply_at_any_size(entry)
    misfit = next((size for size in left.sizes if not fits(config, size)), None)
    if misfit is not None:
        gone, entry = left.sizes[misfit]
        common = math.lcm(config.world_size, *left.sizes)
        fact = (
            f"{config.global_batch} is not divisible by the {plural(misfit, 'rank')} that failure"
            f" {entry.index + 1} leaves"
        )
        raise ConfigError(
            "global_batch", fact, f"use a multiple of {common}, or supervision.spares={gone}"
        )


class _Left:
    """Follows the number of ranks through a plan. `sizes`: by size reached, how many ranks died and
    the failure that caused it.
    """

    def __init__(self, all_ranks: int, spares: int, drawn: bool) -> None:
        self._all, self._spares, self._drawn = all_ranks, spares, drawn
        self._size = all_ranks
        self.sizes: dict[int, tuple[int, PlannedFailure]] = {}

    def apply(self, simultaneous: tuple[PlannedFailure, ...]) -> None:
        """Applies the failures of one step."""
        present = [entry for entry in simultaneous if entry.rank < self._size]
        # drawn ranks are not checked for existence
        if len(present) < len(simultaneous) and not self._drawn:
            missing = next(entry for entry in simultaneous if entry not in present)
            what = f"failure {missing.index + 1} is injected into rank {missing.rank}"
            fact = (
                f"{what}, and only {plural(self._size, 'rank is', 'ranks are')} left at step"
                f" {missing.global_step}"
            )
            raise ConfigError(
                "failure",
                fact,
                f"inject into rank 0 to {self._size - 1}, or add supervision.spares=1",
            )
        died = {
            rank
            for entry in present
            if fault_kind(entry.kind).others_go_on
            for rank in (entry.rank, *entry.others)
            if rank < self._size
        }
        if any(fault_kind(entry.kind).ends is Ends.ATTEMPT for entry in present):
            self._size = self._all
        elif died:
            self._size = self._after(self._size, len(died))
            self.sizes.setdefault(self._size, (len(died), present[-1]))

    def apply_at_any_size(self, entry: PlannedFailure) -> None:
        """Applies a failure at a wall time: it may happen at any size."""
        if fault_kind(entry.kind).others_go_on:
            for size in (self._all, *list(self.sizes)):
                if entry.rank < size:
                    self.sizes.setdefault(self._after(size, 1), (1, entry))

    def _after(self, size: int, gone: int) -> int:
        """The size after `gone` of `size` ranks have died; the full size (a restart) if none is
        left.
        """
        return min(size, size - gone + self._spares) if gone < size else self._all
