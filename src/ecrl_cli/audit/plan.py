"""The faults of an audit: those given on the command line, or three derived from the undisturbed run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ecrl_cli.audit.components import SHOWN, Judged
from ecrl_cli.config.audit import AuditConfig, step_and_moment
from ecrl_cli.errors import ConfigError


@dataclass(frozen=True)
class PlannedFault:
    """One fault of one arm: in attempt `attempt`, of `rank`, at `moment` of `step`."""

    index: int
    attempt: int
    kind: str
    rank: int
    step: int
    moment: str


@dataclass(frozen=True)
class PlannedArm:
    name: str
    why: str
    faults: tuple[PlannedFault, ...]
    elastic: bool = False  # its later attempts are started by `audit.elastic`


def planned_arms(config: AuditConfig, reference: Judged) -> tuple[PlannedArm, ...]:
    """The arms with faults. ConfigError if a fault given by the user cannot happen in this job."""
    last, ranks = reference.path.last, {process.rank for process in reference.arm.processes}
    if config.failure.steps:
        by_rank: dict[int, set[int]] = {rank: set() for rank in ranks}
        for process in reference.arm.processes:
            by_rank[process.rank].update(save["after_step"] for save in process.saves)
        return (_typed(config, last, by_rank),)
    saved = sorted({save["after_step"] for process in reference.arm.processes for save in process.saves if save.get("done")})
    saved = [step for step in saved if 0 < step < last]
    epochs = sorted({step for process in reference.arm.processes for step in process.epochs if 0 < step < last})
    rank = max(ranks)
    drawn = [_off_boundary(saved, last, rank), _on_boundary(saved, rank), _second_epoch(saved, epochs, last, rank)]
    found = [arm for arm in drawn if arm is not None]
    if config.audit.elastic and found:
        resized = PlannedArm("resized", "started again by audit.elastic", found[0].faults, True)
        return (*found[: config.audit.failures], resized)
    return tuple(found[: config.audit.failures])


def _typed(config: AuditConfig, last: int, saved: dict[int, set[int]]) -> PlannedArm:
    """`saved`: by rank, the steps after which the undisturbed run saved."""
    failure, faults = config.failure, []
    if failure.rank not in saved:
        raise ConfigError("failure.rank", f"rank {failure.rank} does not exist, the job has {len(saved)}", f"use 0 to {max(saved)}")
    for index, text in enumerate(failure.steps):
        step, moment = step_and_moment(text)
        if step > last:
            raise ConfigError("failure.steps", f"step {step} is beyond the job's last step {last}", "lower it")
        if moment == "save" and step not in saved[failure.rank]:
            said = f"{text}: rank {failure.rank} saves nothing after step {step} in the undisturbed run"
            raise ConfigError("failure.steps", said, f"it saves after {', '.join(map(str, sorted(saved[failure.rank])[:SHOWN])) or 'none'}")
        faults.append(PlannedFault(index, index, failure.kind, failure.rank, step, moment))
    return PlannedArm("struck", "as typed", tuple(faults), bool(config.audit.elastic))


def _kill(name: str, why: str, step: int, rank: int) -> PlannedArm:
    return PlannedArm(name, why, (PlannedFault(0, 0, "kill", rank, step, "before"),))


def _off_boundary(saved: list[int], last: int, rank: int) -> PlannedArm | None:
    """Between two checkpoints: the steps after the first are repeated, and must agree."""
    if not saved:
        return _kill("no-checkpoint", "the job saves nothing before its end: it begins anew", max(2, last // 2), rank) if last > 1 else None
    ends = [*saved, last]
    gaps = [(after - before, before) for before, after in itertools.pairwise(ends) if after - before > 1]
    if not gaps:
        return None
    size, before = max(gaps)
    return _kill("off-boundary", f"between the checkpoints of step {before} and {before + size}", before + size // 2 + 1, rank)


def _on_boundary(saved: list[int], rank: int) -> PlannedArm | None:
    """Right after a checkpoint: no step is repeated."""
    return _kill("on-boundary", f"right after the checkpoint of step {saved[0]}", saved[0] + 1, rank) if saved else None


def _second_epoch(saved: list[int], epochs: list[int], last: int, rank: int) -> PlannedArm | None:
    """In the second epoch or later, after a checkpoint taken in it if there is one."""
    if not epochs or not saved:
        return None
    inside = [step for step in saved if step > epochs[0]]
    step = min(last, (inside[0] if inside else epochs[0]) + 2)
    return _kill("later-epoch", f"in an epoch after the first, which ended at step {epochs[0]}", step, rank)
