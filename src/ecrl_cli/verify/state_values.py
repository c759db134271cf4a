"""A rank's state as its lines record it, by name, and which parts must be equal on all ranks."""

from __future__ import annotations

from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest
from ecrl_cli.checkpoint.format.train_document import TRAIN_STATE
from ecrl_cli.config.recoveries import survivors_stay
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import RankLine
from ecrl_cli.records.state_digests import RANK_COMPONENTS

NO_TENSORS = digest([])  # the digest of an empty component
STATE = "state"
_SETTINGS = {"learning rate": "lr", "loss scale": "loss_scale", "growth tracker": "growth_tracker"}
_EQUAL = ("parameters", "optimizer", "train", *_SETTINGS)

Values = dict[str, object]


def values_of(line: RankLine) -> Values:
    """By name, the digests and settings on the line; for older runs, which have no digests by
    component, the digest of the whole state.
    """
    found: Values = {
        name: value
        for name, field in _SETTINGS.items()
        if (value := getattr(line, field)) is not None
    }
    if line.components is not None:
        return found | line.components
    return found | ({STATE: line.state_digest} if line.state_digest else {})


def has_digests(values: Values) -> bool:
    return bool(values.keys() - _SETTINGS.keys())


def differing(ours: Values, others: Values) -> list[str]:
    """The names present in both with different values."""
    return [name for name in ours if name in others and ours[name] != others[name]]


def equal_buffers(run: RunRecords) -> bool:
    """Whether all ranks end a step with the same buffers.

    In stock DDP BatchNorm's statistics follow each rank's own samples and are only synchronized in
    the next forward pass. With replicas they belong to no rank, and with in-place recovery all
    ranks end a step with the first rank's.
    """
    config, final = run.stored.config, run.final
    return (
        config.elastic.replicas > 0
        or survivors_stay(config)
        or (final is not None and final.buffers_digest == NO_TENSORS)
    )


def ends_as_restored(run: RunRecords) -> bool:
    """Whether the attempt that ended the run took no step: its ranks end in what they restored,
    with rank 0's buffers, which alone are saved.
    """
    final = run.final
    return final is not None and any(
        a.attempt == final.attempt > 0 and a.resumed_from_step == final.global_step
        for a in run.attempts
    )


def equal_on_ranks(run: RunRecords) -> frozenset[str]:
    """The names that must be equal on all ranks. With replicas the generators belong to no rank and
    are included.
    """
    buffers = ("buffers", STATE) if equal_buffers(run) else ()
    return frozenset((*_EQUAL, *buffers, *(("rng",) if run.stored.config.elastic.replicas else ())))


def differing_documents(ours: dict[str, Any], others: dict[str, Any]) -> list[str]:
    """The parts of the state in train.json that both have with different values."""
    return [
        name
        for name in TRAIN_STATE
        if name in ours
        and name in others
        and canonical_json(ours[name]) != canonical_json(others[name])
    ]


def differing_ends(run: RunRecords, reference: RunRecords) -> list[str]:
    """Differences of the final state, rank by rank, from the reference's. With different world
    sizes, the common ranks: with replicas all end alike.
    """
    theirs = {state.rank: state for state in (reference.final.ranks if reference.final else ())}
    skipped = (
        ("buffers",)
        if _ends_with_one_ranks_buffers(run) != _ends_with_one_ranks_buffers(reference)
        else ()
    )
    found = []
    for state in run.final.ranks if run.final else ():
        other, claimed = (
            theirs.get(state.rank),
            [name for name in RANK_COMPONENTS if state.rank == 0 or name not in skipped],
        )
        names = [name for name in claimed if other and getattr(state, name) != getattr(other, name)]
        if names:
            found.append(
                f"the end of rank {state.rank} differs from that of the reference's in"
                f" {', '.join(names)}"
            )
    return found


def _ends_with_one_ranks_buffers(run: RunRecords) -> bool:
    """Whether every rank ends with rank 0's buffers, where stock DDP leaves each rank its own."""
    return survivors_stay(run.stored.config) or ends_as_restored(run)
