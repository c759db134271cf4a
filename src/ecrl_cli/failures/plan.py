"""The failures that a run will meet: data, derived from its configuration alone, printed before it and stored with it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ecrl_cli.config.codec import decode
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError, RecordError
from ecrl_cli.failures.kinds import KINDS, STRIKES
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout


@dataclass(frozen=True)
class _Plan:
    entries: tuple[PlannedFailure, ...]


def plan(config: RunConfig) -> tuple[PlannedFailure, ...]:
    """One entry per strike, in order; none for a variant that takes no failures. ConfigError where the kind cannot strike this run."""
    name = config.failure.kind
    if name == "none" or not config.variant.failures:
        return ()
    kind = KINDS.get(name)
    if kind is None:
        raise ConfigError("failure.kind", f"unknown kind {name!r}", f"known: {', '.join(['none', *KINDS])}")
    refused = kind.available(config)
    if refused:
        raise ConfigError("failure", refused)
    return tuple(PlannedFailure(index, kind.strike, victim, step) for index, (step, victim) in enumerate(kind.hits(config)))


def describe(planned: tuple[PlannedFailure, ...]) -> tuple[str, ...]:
    """A line per entry, for people."""
    if not planned:
        return ("no failures planned",)
    count = len(planned)
    return tuple(f"failure {p.index + 1} of {count}: rank {p.rank} {STRIKES[p.kind].text}, after step {p.global_step}" for p in planned)


def pending(planned: tuple[PlannedFailure, ...], fired: Collection[int]) -> tuple[PlannedFailure, ...]:
    """The entries whose index is not among `fired`."""
    return tuple(p for p in planned if p.index not in fired)


def read_plan(layout: RunLayout) -> tuple[PlannedFailure, ...]:
    """failures.json, as it was printed; RecordError where it is missing or damaged."""
    try:
        return decode(_Plan, {"entries": read_json(layout.failures)}).entries
    except FileNotFoundError as error:
        raise RecordError("failures.json", "is missing", "restore the file") from error
    except (KeyError, TypeError) as error:
        raise RecordError("failures.json", f"not a plan ({error})", "restore the file") from error
