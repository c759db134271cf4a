"""`ecrl audit`: converts what Hydra composed to the checked configuration of an audit."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ecrl_cli.config.codec import flat
from ecrl_cli.config.convert import convert
from ecrl_cli.config.omegaconf_bridge import plain
from ecrl_cli.config.plan_kinds import plan_kind
from ecrl_cli.config.registry import did_you_mean
from ecrl_cli.config.schema import at_least, one_of, positive
from ecrl_cli.errors import ConfigError, shown

KINDS = ("none", "kill", "term", "exit", "stop", "raise", "oom")
GRACEFUL = ("term",)  # asks the job to end: it may save, and end with exit code 0
ORDERS = ("auto", "declared", "free")
MOMENTS = ("before", "backward", "optimizer", "save")
POINTS = ("before", "empty", "torn", "after")
_STEP = re.compile(r"^(\d{1,9})(?:\.([a-z]+)(?::([^:]+:[a-z]+))?)?$")


@dataclass(frozen=True)
class AuditKeys:
    """`resume`: words appended to the command from the second attempt on. `elastic`: the command
    from the second attempt on, for a change of the number of processes. In `resume`, {latest:GLOB}
    is the newest match in {dir}; without one, `resume` is left out.
    `references`: runs without failures (2 show whether the job is deterministic). `failures`: how
    many arms with failures are drawn at most, in this order: off-boundary, twice, later-epoch,
    inside-save, sigterm.
    `cold`: also start it with nothing to resume from, and compare resumed attempts with that.
    `digests`: every how many steps parameters and optimizer state are digested, besides at each
    checkpoint; 0: at checkpoints only. `order`: declared: the order of the samples is promised;
    free: only that each comes once; auto: declared where ids are known. `silence_s`: a job that
    records and prints nothing for this long is hung; `start_timeout_s`: the same before its first
    step; `no_step_s`: so is one that makes no step for this long, whatever it prints (0: ten times
    the undisturbed run's longest gap between steps, and at least 60 s). `max_restarts`: after
    deaths that were not planned. `seed`: seeds python, numpy and torch in each process (-1: not).
    `own_dir`: the job writes only to ECRL_ARM_DIR, and its command needs no {dir}.
    `anew`: the job is meant to begin anew after a death: nothing that it saves is to be gone on
    from. `only`: the names of the drawn arms to run, and no others. `control`: one more arm, in
    which a restart leaves out the optimizers' state (else the parameters) on purpose: it must be
    seen. `warm`: attempts after the first are forked from processes that have imported what it
    imported, where that is shown to change nothing.
    """

    resume: str = ""
    elastic: str = ""
    cold: bool = False
    references: int = field(default=2, metadata={"minimum": 1, "maximum": 8})
    failures: int = field(default=5, metadata={"minimum": 1, "maximum": 5})
    digests: int = at_least(1, 0)
    order: str = one_of("auto", ORDERS)
    max_restarts: int = at_least(5, 0)
    silence_s: float = positive(120.0)
    start_timeout_s: float = positive(600.0)
    no_step_s: float = at_least(0.0, 0.0)
    seed: int = at_least(-1, -1)
    own_dir: bool = False
    anew: bool = False
    only: tuple[str, ...] = ()
    control: bool = False
    warm: bool = True


@dataclass(frozen=True)
class AuditFailure:
    """`steps`: STEP, STEP.MOMENT or STEP.save:FILE:HOW, in turn within one arm: the first in the
    first attempt, the second in the next. `rank`: the rank that is hit.
    """

    kind: str = one_of("none", KINDS)
    steps: tuple[str, ...] = ()
    rank: int = at_least(0, 0)


@dataclass(frozen=True)
class AuditConfig:
    audit: AuditKeys = field(default_factory=AuditKeys)
    failure: AuditFailure = field(default_factory=AuditFailure)
    run_dir: str = ""


def build_audit(composed: Mapping[str, Any]) -> AuditConfig:
    """The audit that `composed` describes. Raises ConfigError for every invalid key or value."""
    values = plain(composed)
    for key, _ in flat(values):
        check_key(key)
    config = convert(AuditConfig, values)
    if plan_kind(config.failure.kind).plans_none != (not config.failure.steps):
        missing = "no step is planned" if not config.failure.steps else "no kind is named"
        raise ConfigError(
            "failure",
            missing,
            "write failure=kill 'failure.steps=[31]', or leave both out: failures are drawn then",
        )
    for text in config.failure.steps:
        step_and_moment(text)
    for key in ("resume", "elastic"):
        try:
            shlex.split(getattr(config.audit, key))
        except ValueError as error:
            raise ConfigError(
                f"audit.{key}", f"is no command line ({str(error).lower()})", "close the quotes"
            ) from error
    return config


def check_key(key: str) -> None:
    """ConfigError for a key that no audit has."""
    known = (
        [f"audit.{f.name}" for f in fields(AuditKeys)]
        + [f"failure.{f.name}" for f in fields(AuditFailure)]
        + ["run_dir"]
    )
    if key not in known:
        raise ConfigError(
            key,
            f"unknown key {shown(key)}",
            did_you_mean(key, known) or f"known: {', '.join(known)}",
        )


def step_and_moment(text: str) -> tuple[int, str, str]:
    """31.backward -> (31, backward, ""), 30.save:last.pt:torn -> (30, save, last.pt:torn);
    ConfigError for anything else.
    """
    match = _STEP.match(text)
    if not match or int(match[1]) < 1 or (match[2] or "before") not in MOMENTS:
        raise ConfigError(
            "failure.steps",
            f"{shown(text)} is neither STEP nor STEP.MOMENT",
            f"moments: {', '.join(MOMENTS)}",
        )
    point = match[3] or ""
    if point and (match[2] != "save" or point.rpartition(":")[2] not in POINTS):
        way = (
            f"write STEP.save:FILE:HOW, HOW one of {', '.join(POINTS)}; in FILE, # is any number"
            " and * anything"
        )
        raise ConfigError("failure.steps", f"{shown(text)} names no point of a save", way)
    return int(match[1]), match[2] or "before", point
