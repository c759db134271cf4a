"""Continuing a finished run to a higher target, in its own run directory: `ecrl train ...
run_dir=DIR target_steps=MORE`.

It keeps its run id, checkpoints and journals, and resumes from the checkpoint at its former target.
config.json lists the former targets in `continued_at`; the attempt that completed, its final.json
and its seal are kept. For the learning rate see `config.legs`.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from ecrl_cli.config.identity import run_id
from ecrl_cli.config.legs import constant_rate
from ecrl_cli.config.schema import DIGESTS, RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import EcrlError, RunDirectoryError
from ecrl_cli.failures.plan import plan, read_plan
from ecrl_cli.history.load import load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import StoredConfig, read_run_config
from ecrl_cli.supervision.attempts.supervisor_record import read_record


def as_recorded(config: RunConfig, layout: RunLayout) -> RunConfig:
    """`config` as the run in `layout`, if one has begun there, goes by it: with the
    checkpoint.digest that it began with, because states hashed in two ways could not be compared;
    and with the targets that it has reached, if it is this run but for its target, and has reached
    that.

    RunDirectoryError for the target of a run that has since gone on to a higher one.
    """
    stored = _stored(layout)
    if stored is None:
        return config  # a new run; or one that is refused when its records are checked
    if stored.config.checkpoint.digest in DIGESTS:
        config = replace(
            config, checkpoint=replace(config.checkpoint, digest=stored.config.checkpoint.digest)
        )
    known = (*stored.config.continued_at, stored.config.target_steps)
    if run_id(replace(config, target_steps=known[0])) != stored.run_id:
        return config  # another run, which is refused when its directory is checked
    if config.target_steps == known[-1]:
        return replace(config, continued_at=stored.config.continued_at)
    if (
        config.target_steps > known[-1]
        and layout.supervisor.exists()
        and read_record(layout).terminal_status == "completed"
    ):
        return replace(config, continued_at=known)
    if config.target_steps in known:
        raise RunDirectoryError(
            "run_dir", f"{layout.root} went on to step {known[-1]}", f"set target_steps={known[-1]}"
        )
    return config


def goes_on(config: RunConfig, layout: RunLayout) -> bool:
    """Whether `config` gives the run in `layout` a higher target than it has reached."""
    stored = _stored(layout) if config.continued_at else None
    return stored is not None and stored.config.target_steps < config.target_steps


def check_continuation(config: RunConfig, layout: RunLayout) -> None:
    """RunDirectoryError, in one line, where there is nothing to go on from, or failures are planned
    by the length of the run.
    """
    if not goes_on(config, layout):
        return
    reached = config.continued_at[-1]
    way = "choose another run_dir for a new run"
    if not (strategy_of(config).saves and config.checkpoint.final):
        raise RunDirectoryError(
            "target_steps",
            f"{layout.root} ended at step {reached} without a checkpoint to go on from",
            way,
        )
    lines = [
        line
        for a in load(layout).attempt_logs
        for line in a.checkpoints.events
        if line.global_step == reached
    ]
    if not any(
        line.event == "committed" and line.path and (layout.root / line.path).exists()
        for line in lines
    ):
        raise RunDirectoryError(
            "target_steps",
            f"{layout.root}: the checkpoint of step {reached}, at which it ended, is gone",
            way,
        )
    if plan(config) != read_plan(layout):
        fact = (
            f"{layout.root}: its failures are drawn over the length of the run, which would be"
            " another"
        )
        raise RunDirectoryError("target_steps", fact, way)


def announcement(config: RunConfig) -> str:
    """A continuation described in one line."""
    reached, more = config.continued_at[-1], config.target_steps - config.continued_at[-1]
    if constant_rate(config.optimizer):
        return (
            f"goes on after step {reached} to step {config.target_steps}, as a run of so many steps"
            " would have"
        )
    fact = (
        f"optimizer.lr falls once more over {more} steps: another training than one planned for all"
        " of them"
    )
    return f"goes on after step {reached} to step {config.target_steps}; {fact}"


def _stored(layout: RunLayout) -> StoredConfig | None:
    with contextlib.suppress(EcrlError, OSError):
        return read_run_config(layout) if layout.config.exists() else None
    return None
