"""Plans the next attempt after ranks have died and others survived: which processes form it, with
which state. Also writes its launch.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ecrl_cli.config.codec import encode
from ecrl_cli.config.elastic import fits
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import plural
from ecrl_cli.failures.fault_log import fired_indices
from ecrl_cli.failures.plan import pending, read_plan
from ecrl_cli.linux.clock import boot_id, both_clocks
from ecrl_cli.records.events import Attempt
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.records.survivor_records import SURVIVORS
from ecrl_cli.storage.files import write_json


@dataclass(frozen=True)
class RegroupPlan:
    """Which processes form the next attempt.

    `origins`, `joined`: as in `Attempt`. `step`: the last step that the survivors completed.
    `memory`: `survivors`, or empty if all load a checkpoint. `because`: why in-place recovery is
    not possible, as text (then `origins` is empty).
    """

    step: int = 0
    memory: str = ""
    origins: tuple[int, ...] = ()
    joined: tuple[int, ...] = ()
    because: str = ""

    def __bool__(self) -> bool:
        return bool(self.origins)


def plan_regroup(
    config: RunConfig, world_size: int, left: Mapping[int, int], spares: int
) -> RegroupPlan:
    """The plan after an attempt of `world_size` ranks. `left`: the last completed step by surviving
    rank. `spares`: how many warm spares are ready.
    """
    dead = [rank for rank in range(world_size) if rank not in left]
    filled = dead[:spares]
    places = tuple(sorted((*left, *filled)))
    recovery = recovery_of(config)
    if not left:
        return RegroupPlan(because="nobody outlived it")
    if len(set(left.values())) > 1:
        return RegroupPlan(
            because=(
                "the survivors left after different steps"
                f" ({', '.join(f'rank {r}: {s}' for r, s in sorted(left.items()))})"
            )
        )
    if len(filled) < len(dead) and not recovery.shrinks:
        return RegroupPlan(because=f"{len(dead)} died and {plural(len(filled), 'spare')} stood by")
    if recovery.shrinks and not fits(config, len(places)):
        return RegroupPlan(
            because=(
                f"{plural(len(places), 'rank')} cannot share global_batch {config.global_batch}"
                " equally"
            )
        )
    memory = SURVIVORS if recovery.from_memory else ""
    joined = tuple(rank for rank, place in enumerate(places) if place in filled)
    return RegroupPlan(next(iter(left.values())), memory, places, joined)


def write_regroup_launch(
    layout: RunLayout, earlier: tuple[Attempt, ...], regroup: RegroupPlan
) -> AttemptSpec:
    """Write launch.json of an attempt that continues with the survivors' state in memory, durably,
    and return it.
    """
    begun = begin(layout, earlier, len(regroup.origins), regroup.step)
    return write_order(
        layout,
        replace(
            begun,
            continues=begun.attempt - 1,
            memory=regroup.memory,
            origins=regroup.origins,
            joined=regroup.joined,
        ),
    )


def begin(
    layout: RunLayout, earlier: tuple[Attempt, ...], world_size: int, step: int
) -> AttemptSpec:
    """The fields of AttemptSpec that are the same wherever the state of `step` comes from.
    `earlier`: all attempts so far.
    """
    return AttemptSpec(
        attempt=len(earlier),
        world_size=world_size,
        resume_step=step,
        resume_from=None,
        max_step_seen=max((a.last_step or 0 for a in earlier), default=0),
        pending=pending(read_plan(layout), fired_indices(layout)),
        restored_digests=True,
    )


def write_order(layout: RunLayout, made: AttemptSpec) -> AttemptSpec:
    """Date the spec, with which the launch begins, and write it to the attempt's launch.json,
    durably.
    """
    at, time = both_clocks()
    made = replace(made, at=at, time=time, boot_id=boot_id(), launched_at=at)
    logs = layout.attempt(made.attempt)
    logs.folder.mkdir(parents=True, exist_ok=True)
    write_json(logs.launch, encode(made))
    return made


def steps_of(
    attempt: Attempt, logged: tuple[int | None, int | None], regroup: RegroupPlan
) -> tuple[int | None, int | None]:
    """First and last step of `attempt`, given those that rank 0 `logged`: it may have died before
    the last step that the survivors completed.
    """
    first, last = logged
    if not regroup.memory or regroup.step <= attempt.resumed_from_step:
        return logged
    return first or attempt.resumed_from_step + 1, max(regroup.step, last or 0)


def describe(death: str, world_size: int, regroup: RegroupPlan) -> str:
    """A short text about what happened and which ranks continue."""
    if not regroup:
        return f"{death}; all begin anew: {regroup.because}" if regroup.because else death
    if not regroup.memory:
        spares = plural(len(regroup.joined), "spare")
        return (
            f"{death}; {world_size - len(regroup.joined)} of {plural(world_size, 'rank')} and"
            f" {spares} go back to a checkpoint"
        )
    spares = f", {plural(len(regroup.joined), 'spare')} among them" if regroup.joined else ""
    return f"{death}; {len(regroup.origins)} of {plural(world_size, 'rank')} go on{spares}"
