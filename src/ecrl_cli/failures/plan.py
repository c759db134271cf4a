"""The failure plan of a run: derived from its configuration alone, printed before the run and stored with it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import islice

from ecrl_cli.config.codec import decode
from ecrl_cli.config.failure_kinds import PLANS
from ecrl_cli.config.fault_spec import STARTING, Entry, typed_entries
from ecrl_cli.config.limits import MOST_FAILURES
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError, RecordError
from ecrl_cli.failures import mtbf
from ecrl_cli.failures.compile_spec import planned
from ecrl_cli.failures.fault_kind import Ends
from ecrl_cli.failures.registry import fault_kind
from ecrl_cli.failures.remaining_ranks import check_sizes
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout

_MOMENTS = {
    "boundary": "after step {step}",
    "forward": "in step {step}, {share:.0%} into forward",
    "backward": "in step {step}, after {share:.0%} of the gradients",
    "optimizer": "in step {step}, after the update of {share:.0%} of the parameters",
    "capture": "while the checkpoint of step {step}, or the next one due, is captured",
    "save": "in the first save due at step {step} or behind it{point}",
    "start": "at the start of the first attempt{behind}",
    "rendezvous": "before the rendezvous of the first attempt{behind}",
    "load": "before the first attempt{behind} loads its state",
    "rest": "before the first attempt behind step {step} chooses what to resume from",
    "wall": "after {seconds:.3f} s of supervised time",
}


@dataclass(frozen=True)
class _Plan:
    entries: tuple[PlannedFailure, ...]


def plan(config: RunConfig) -> tuple[PlannedFailure, ...]:
    """The planned failures, in order; none for a variant without failures. ConfigError if a kind cannot happen in this run."""
    name = config.failure.kind
    if name == "none" or not config.variant.failures:
        return ()
    if max(len(config.failure.steps), len(config.failure.entries)) > MOST_FAILURES:
        raise too_many()
    entries = (each for entry in _typed_or_drawn(config) for each in planned(entry, config))
    found = tuple(replace(entry, index=index) for index, entry in enumerate(islice(entries, MOST_FAILURES + 1)))
    if len(found) > MOST_FAILURES:
        raise too_many()
    for entry in found:
        _check_occasion(entry, found, config)
    check_sizes(found, config)
    return found


def _typed_or_drawn(config: RunConfig) -> tuple[Entry, ...]:
    """The entries of the configuration. ConfigError if `failure.kind` is unknown."""
    name = config.failure.kind
    if name in PLANS:
        return mtbf.entries(config) if name == "mtbf" else typed_entries(config.failure)
    return fault_kind(name).entries(config)


def too_many() -> ConfigError:
    return ConfigError("failure", f"plans more than {MOST_FAILURES} failures", "plan fewer, or raise the mean between two of them")


def _check_occasion(entry: PlannedFailure, found: tuple[PlannedFailure, ...], config: RunConfig) -> None:
    """ConfigError for an entry that waits for an attempt beginning after some step, if nothing ends an attempt there."""
    if entry.moment not in ("rest", *STARTING) or not entry.global_step:
        return
    others = (each for each in found if each is not entry and fault_kind(each.kind).ends is not Ends.NOTHING and each.moment != "rest")
    ends = any(each.moment == "wall" or each.global_step >= entry.global_step for each in others)
    if not ends and not any(step >= entry.global_step for step in config.elastic.schedule):
        fact = f"{entry.kind} at {entry.moment} waits for an attempt that begins behind step {entry.global_step}, and nothing ends one there"
        raise ConfigError("failure", fact, f"plan a failure at step {entry.global_step} before it: failure=listed 'failure.entries=[kill@...]'")


def describe(planned: tuple[PlannedFailure, ...]) -> tuple[str, ...]:
    """One line per entry, for people."""
    if not planned:
        return ("no failures planned",)
    return tuple(
        f"failure {p.index + 1} of {len(planned)}: {_subject(p)} {fault_kind(p.kind).text.format(seconds=p.seconds)}, {_when(p)}" for p in planned
    )


def _subject(entry: PlannedFailure) -> str:
    victim = fault_kind(entry.kind).victim
    if not victim.is_rank:
        return victim.value
    ranks = (entry.rank, *entry.others)
    whole = " and their agent" if entry.node else ""
    return f"rank {entry.rank}" if len(ranks) == 1 and not whole else f"each of ranks {', '.join(map(str, ranks))}{whole}"


def _when(entry: PlannedFailure) -> str:
    behind = f" behind step {entry.global_step}" if entry.global_step else ""
    point = f", at {entry.point}" if entry.point else ""
    return _MOMENTS[entry.moment].format(step=entry.global_step, share=entry.share, seconds=entry.seconds, behind=behind, point=point)


def pending(planned: tuple[PlannedFailure, ...], fired: Collection[int]) -> tuple[PlannedFailure, ...]:
    """The entries whose index is not among `fired`."""
    return tuple(p for p in planned if p.index not in fired)


def read_plan(layout: RunLayout) -> tuple[PlannedFailure, ...]:
    """Reads failures.json; RecordError where it is missing or damaged."""
    try:
        return decode(_Plan, {"entries": read_json(layout.failures)}).entries
    except FileNotFoundError as error:
        raise RecordError("failures.json", "is missing", "restore the file") from error
    except (KeyError, TypeError) as error:
        raise RecordError("failures.json", f"not a plan ({error})", "restore the file") from error
