"""Rules between the keys of the `failure` group, and between them and the rest of the run. Rules of one kind are in its class."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from ecrl_cli.config.elastic import ranks_at, sizes
from ecrl_cli.config.failure_kinds import PLANS
from ecrl_cli.config.fault_spec import FAILURES, KEY, STARTING, Entry, refused, typed_entries
from ecrl_cli.config.schema import FailureConfig, RunConfig
from ecrl_cli.errors import ConfigError


def check_failures(config: RunConfig) -> None:
    """ConfigError for the first rule that the planned failures break."""
    failure = config.failure
    if failure.kind == "mtbf":
        _check_drawn(failure)
        return
    _check_no_mean(failure)
    if failure.kind == "none":
        if failure.steps:
            raise ConfigError("failure.steps", f"{list(failure.steps)} planned, but failure.kind is none", "add failure=kill or failure=exit")
    elif failure.kind == "listed":
        _check_listed(config)
    else:
        _check_steps(config)
        _check_rank(config)
    if failure.entries and failure.kind != "listed":
        raise ConfigError(KEY, f"failures are listed, but failure.kind is {failure.kind}", "add failure=listed or leave them out")


def prune_unused_keys(failure: FailureConfig, typed: frozenset[str]) -> FailureConfig:
    """`failure` without the keys that a typed kind does not use: those belong to the plan of the suite or matrix that it replaces."""
    if failure.kind == "none" or not typed & {"failure", "failure.kind"}:
        return failure
    default, given = FailureConfig(), {key.removeprefix("failure.") for key in typed}
    dropped = set() if _takes_rank(failure.kind) else {"rank"}
    dropped |= {"steps"} if failure.kind in ("mtbf", "listed") else set()
    dropped |= set() if failure.kind == "mtbf" else {"mtbf_steps", "mtbf_s"}
    dropped |= set() if failure.kind == "listed" else {"entries"}
    changes: dict[str, Any] = {name: getattr(default, name) for name in dropped - given}
    return replace(failure, **changes)


def _check_drawn(failure: FailureConfig) -> None:
    """ConfigError for other keys of the group with mtbf, which draws steps and ranks: they would be silently ignored."""
    if failure.steps:
        raise ConfigError("failure.steps", f"{list(failure.steps)} planned, but failure.kind is mtbf, which draws its steps", "leave them out")
    if failure.rank:
        raise ConfigError("failure.rank", f"rank {failure.rank} named, but failure.kind is mtbf, which draws its ranks", "leave it out")
    if failure.mtbf_s and failure.mtbf_steps:
        raise ConfigError("failure.mtbf_s", "a mean in seconds and one in steps are given", "leave failure.mtbf_s or failure.mtbf_steps out")
    if failure.mtbf_steps < 1 and not failure.mtbf_s:
        raise ConfigError("failure.mtbf_steps", f"must be >= 1 for failure=mtbf, got {failure.mtbf_steps:g}", "give a mean: failure.mtbf_steps=200")


def _check_no_mean(failure: FailureConfig) -> None:
    for key, mean in (("failure.mtbf_steps", failure.mtbf_steps), ("failure.mtbf_s", failure.mtbf_s)):
        if mean:
            remedy = "add failure=mtbf" if failure.kind == "none" else "use failure=mtbf or leave it out"
            raise ConfigError(key, f"a mean is given, but failure.kind is {failure.kind}", remedy)


def _check_steps(config: RunConfig) -> None:
    failure, target = config.failure, config.target_steps
    steps, least = failure.steps, 0 if failure.moment in STARTING else 1
    if not steps:
        raise ConfigError("failure.steps", f"failure.kind is {failure.kind} and no step is planned", "give steps: failure.steps=[40,70]")
    if steps[0] < least:
        raise ConfigError("failure.steps", f"must be >= {least}, got {steps[0]}")
    if any(after <= before for before, after in itertools.pairwise(steps)):
        raise ConfigError("failure.steps", f"must be strictly increasing, got {list(steps)}", f"use {sorted(set(steps))}")
    if steps[-1] > target:
        raise ConfigError("failure.steps", f"step {steps[-1]} is beyond target_steps {target}", "lower it or raise target_steps")
    if steps[-1] == target:
        raise ConfigError("failure.steps", f"step {target} is the target: nothing would be left to recover", "lower it or raise target_steps")


def _check_rank(config: RunConfig) -> None:
    """ConfigError unless the rank exists at each planned step: before and after it where the size changes there."""
    step = min(config.failure.steps, key=lambda planned: ranks_at(config, planned))
    rank, ranks = config.failure.rank, ranks_at(config, step)
    if rank >= ranks:
        where = f" at step {step}" if len(sizes(config)) > 1 else ""
        raise ConfigError("failure.rank", f"rank {rank} does not exist with {ranks} ranks{where}", f"use 0 to {ranks - 1}")


def _takes_rank(kind: str) -> bool:
    """Whether this kind uses `failure.rank`."""
    return kind not in PLANS and bool(FAILURES.load(kind)().takes_rank)


def _check_listed(config: RunConfig) -> None:
    failure = config.failure
    if failure.steps:
        raise ConfigError("failure.steps", f"{list(failure.steps)} planned, but failure.kind is listed", f"write them into {KEY}")
    if not failure.entries:
        raise ConfigError(KEY, "failure.kind is listed and nothing is listed", f"give entries: {KEY}=[kill@40:1]")
    for entry in typed_entries(failure):
        _check_entry(entry, config)


def _check_entry(entry: Entry, config: RunConfig) -> None:
    text, target = str(entry), config.target_steps
    if entry.moment != "wall":
        if entry.step < 1 and entry.moment not in STARTING:
            raise refused(text, f"a step must be >= 1, got {entry.step}", "step 0 is for failures of the first start: .start, .rendezvous, .load")
        if entry.step >= target:
            fact = f"step {entry.step} is " + ("beyond target_steps" if entry.step > target else "the target: nothing would be left to recover")
            raise refused(text, f"{fact}, got {target}" if entry.step > target else fact, "lower it or raise target_steps")
    ranks = ranks_at(config, entry.step) if entry.moment != "wall" else min(sizes(config))
    if not isinstance(entry.who, str) and (missing := [rank for rank in entry.who if rank >= ranks]):
        raise refused(text, f"rank {missing[0]} does not exist with {ranks} ranks", f"use 0 to {ranks - 1}")
