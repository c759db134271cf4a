"""Promise 2: a sample looks the same whenever it is computed: on any attempt, and in the reference."""

from __future__ import annotations

from ecrl_cli.records.events import RankLine
from ecrl_cli.verify.case import Case, every_line
from ecrl_cli.verify.verdict import Finding, Notes

PROMISE = "same-input"

# What decides the inputs of a line: the shard and the epoch it belongs to.
Key = tuple[int, int, int, int]


def same_input(case: Case) -> Finding:
    """Compare the hash of the augmented inputs wherever the same shard of the same epoch was computed more than once."""
    notes = Notes(PROMISE)
    first: dict[Key, tuple[str, RankLine]] = {}
    compared = 0
    for attempt, _, line in every_line(case.run):
        earlier = first.setdefault(_key(line), (f"attempt {attempt}", line))
        if earlier[1] is not line:
            compared += 1
            _compare(line, f"attempt {attempt}", earlier, notes)
    against = 0
    if case.reference:
        others = {_key(line): line for _, _, line in every_line(case.reference)}
        for key, (who, line) in first.items():
            if key in others:
                against += 1
                _compare(line, who, ("the reference", others[key]), notes)
    said = f"{compared} shards computed again look as they did at first"
    return notes.finding(f"{said}, {against} look as in the reference" if case.reference else said)


def _key(line: RankLine) -> Key:
    return line.epoch, line.cursor_step, line.rank, line.world_size


def _compare(line: RankLine, who: str, earlier: tuple[str, RankLine], notes: Notes) -> None:
    where = f"step {line.global_step} rank {line.rank}"
    if line.inputs_hash is None or earlier[1].inputs_hash is None:
        notes.missing(f"{where}: no hash of the inputs in {who if line.inputs_hash is None else earlier[0]}")
    elif line.inputs_hash != earlier[1].inputs_hash:
        notes.broken(f"{where}: the inputs of {who} are not those of {earlier[0]}")
