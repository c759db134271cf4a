"""Which checkpoint retention spares for an undisturbed run of the rest (`history.rest_start`): the
first one after the last death whose recovery claims no trajectory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ecrl_cli.config.codec import decode
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import EcrlError
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.records.survivor_records import SURVIVORS


def may_hold(config: RunConfig) -> bool:
    """Whether the rest of a run with `config` may begin another run: the recovery claims no
    trajectory, and the checkpoints are ECRL's own.
    """
    return not recovery_of(config).exact and strategy_of(config).checkpointer is None


def held_from(attempt: int, spec_of: Callable[[int], AttemptSpec | None]) -> int | None:
    """The step from which on retention spares the oldest checkpoint during `attempt`: behind the
    last death that ranks survived, or, where the run fell back to another world size since, at the
    checkpoint that it fell back to. None: it spares none. `spec_of`: launch.json by attempt.
    """
    spec, fallback = spec_of(attempt), None
    for before in map(spec_of, reversed(range(attempt))):
        if spec is None or spec.memory == SURVIVORS:
            break
        if before is not None and before.resume_step < spec.resume_step:
            if before.world_size != spec.world_size:
                fallback = fallback or spec.resume_step
            spec = before
    if spec is None or spec.memory != SURVIVORS:
        return None
    return fallback or spec.resume_step + 1


def launch_of(run: Path, attempt: int) -> AttemptSpec | None:
    """launch.json of an attempt of `run`; None where there is none that can be read."""
    try:
        return decode(AttemptSpec, read_json(RunLayout(run).attempt(attempt).launch))
    except (EcrlError, OSError):
        return None
