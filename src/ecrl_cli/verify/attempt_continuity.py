"""Checks attempts that continue with processes or in-memory state of earlier ones: origins of their ranks, and world size."""

from __future__ import annotations

from ecrl_cli.config.elastic import fits
from ecrl_cli.config.recoveries import recovery_of, survivors_stay
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.history.membership import successor, surviving_ranks
from ecrl_cli.records.events import Attempt
from ecrl_cli.records.survivor_records import SNAPSHOT, SURVIVED, SURVIVORS
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

_TOLD = ("continues", "memory", "origins", "joined")


def size_of_survivors(config: RunConfig, a: Attempt, planned: int) -> int:
    """The world size that `a` must have: as planned; with a recovery that shrinks, survivors plus joined spares if they can share the batch."""
    if not recovery_of(config).shrinks or a.memory != SURVIVORS:
        return planned
    there = len(a.origins)
    return there if 0 < there <= planned and fits(config, there) else planned


def check_continued(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """Check an attempt's claims about its predecessor, against its launch.json and the previous attempt."""
    who, order = f"attempt {a.attempt}", case.run.logs(a.attempt).order
    for name in _TOLD if order else ():
        if getattr(order, name) != getattr(a, name):
            notes.broken(f"{who} was ordered {name} {getattr(order, name)!r}, supervisor.json says {getattr(a, name)!r}")
    after = successor(case.run, a.attempt)
    if a.outcome == SURVIVED and after and after.session == a.session and (after.continues, after.memory) != (a.attempt, SURVIVORS):
        notes.broken(f"{who} survived its dead, and attempt {after.attempt} does not go on with it")
    if (a.continues is None) != (not a.memory) or a.memory not in ("", SURVIVORS, SNAPSHOT):
        notes.broken(f"{who} continues attempt {a.continues} from {a.memory or 'no'} memory")
    elif a.memory and a.resumed_from is not None:
        notes.broken(f"{who} goes on from memory and resumed from {a.resumed_from.path}")
    if a.origins or a.joined or a.memory == SURVIVORS:
        _check_crew(case, a, notes)


def _check_crew(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    who, config = f"attempt {a.attempt}", case.run.stored.config
    before = case.attempt(a.attempt - 1)
    live = survivors_stay(config)
    if before is None or before.session != a.session or not live:
        notes.broken(f"{who} took over ranks, " + ("its configuration keeps none" if before and not live else "nobody was there to be taken over"))
        return
    if len(a.origins) != a.world_size or not set(a.joined) <= set(range(a.world_size)) or len(set(a.joined)) != len(a.joined):
        notes.broken(f"{who} of {a.world_size} ranks names the origins of {len(a.origins)}, and {list(a.joined)} as those that joined")
        return
    _check_origins(a, before, notes)
    if a.joined and not config.supervision.spares:
        notes.broken(f"{who}: ranks {list(a.joined)} joined, the configuration has no spares")
    if a.memory != SURVIVORS:
        return
    if before.outcome != SURVIVED or a.continues != before.attempt or not recovery_of(config).from_memory:
        notes.broken(f"{who} goes on with the state of attempt {a.continues}, attempt {before.attempt} {before.outcome} under {config.recovery.name}")


def _check_origins(a: Attempt, before: Attempt, notes: FindingBuilder) -> None:
    """Survivors come from different ranks; new ranks do not take the place of a living one."""
    who, own = f"attempt {a.attempt}", surviving_ranks(a)
    places = [origin for rank, origin in enumerate(a.origins) if rank in a.joined and origin != -1]
    if not own:
        notes.broken(f"{who} took over ranks, and all of its own are newcomers")
    if len(set(own)) != len(own) or not set(own) <= set(range(before.world_size)):
        notes.broken(f"{who} says that its ranks were {list(own)} of the {before.world_size} ranks of attempt {before.attempt}")
    if len(set(places)) != len(places) or set(places) & set(own) or not set(places) <= set(range(before.world_size)):
        notes.broken(f"{who} says that newcomers took the places {places}, and that ranks {list(own)} stayed")
