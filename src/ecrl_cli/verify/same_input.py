"""A sample yields the same input whenever it is computed: in any attempt, with any world
size, and in the reference.
"""

from __future__ import annotations

from ecrl_cli.checkpoint.format.canonical_json import is_digest
from ecrl_cli.config.identity import BEFORE_DIGEST
from ecrl_cli.config.schema import DIGESTS
from ecrl_cli.errors import plural, shown
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import RankLine
from ecrl_cli.verify.line_columns import ComparedInputs, inputs_as_due
from ecrl_cli.verify.verdict import Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case, every_line

PROMISE = "same-input"

# What determines the inputs of a line: epoch, cursor, rank, world size.
Key = tuple[int, int, int, int]
Window = tuple[int, int]  # epoch, cursor


def same_input(case: Case) -> Finding:
    """Compare the hash of the augmented inputs wherever the same shard of the same epoch was
    computed more than once.

    If a batch was split for different world sizes, the sums of its shards' hashes must be equal
    (`data.loading`).
    """
    notes, recut = FindingBuilder(PROMISE), 0
    counts = inputs_as_due(case.run, case.reference)
    if counts is None:
        counts = _compare_lines(case, notes)
        recut = _check_windows(case, notes)
    message = f"{counts.again} shards computed again look as they did at first"
    message += f", {counts.against} look as in the reference" if case.reference else ""
    message += (
        f", {plural(recut, 'window looks', 'windows look')} the same cut for another number of"
        " ranks"
        if recut
        else ""
    )
    if not counts.again + counts.against + recut:
        return notes.finding(
            "no shard was computed twice, and there is no reference to compare with", checked=False
        )
    return notes.finding(message)


def _compare_lines(case: Case, notes: FindingBuilder) -> ComparedInputs:
    """Compare line by line."""
    if without := sum(line.inputs_hash is None for _, _, line in every_line(case.run)):
        notes.missing(f"{plural(without, 'line has', 'lines have')} no hash of the inputs")
    configured = case.run.stored.config.checkpoint.digest
    for attempt, rank, line in every_line(case.run):
        if line.inputs_hash is not None and not _parts(line.inputs_hash):
            notes.broken(
                f"step {line.global_step} rank {rank} of attempt {attempt}:"
                f" {shown(line.inputs_hash)} is no hash of inputs"
            )
        elif line.targets_hash is not None and not _parts(line.targets_hash):
            notes.broken(
                f"step {line.global_step} rank {rank} of attempt {attempt}:"
                f" {shown(line.targets_hash)} is no hash of targets"
            )
        elif (
            line.inputs_hash and ":" in line.inputs_hash and _digest(line.inputs_hash) != configured
        ):
            notes.broken(
                f"step {line.global_step} rank {rank} of attempt {attempt}: its inputs are not"
                f" hashed by {configured}, as config.json says"
            )
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
    return ComparedInputs(compared, against)


def _check_windows(case: Case, notes: FindingBuilder) -> int:
    """Compare batches across world sizes; returns how many were compared."""
    first: dict[Window, tuple[int, str, str]] = {}
    compared = 0
    for who, records in (("the reference", case.reference), ("this run", case.run)):
        for (window, ranks), digest in (_windows(records) if records else {}).items():
            before = first.setdefault(window, (ranks, digest, who))
            if before[0] == ranks:
                continue
            compared += 1
            where = f"epoch {window[0]} cursor {window[1]}"
            if not digest or not before[1]:
                notes.missing(
                    f"{where}: no hash of the inputs in {who if not digest else before[2]}"
                )
            elif _digest(digest) != _digest(before[1]):
                notes.missing(f"{where}: {_otherwise(digest, who, before[1], before[2])}")
            elif digest != before[1]:
                notes.broken(
                    f"{where}: the inputs of {plural(ranks, 'rank')} in {who} are not those of"
                    f" {plural(before[0], 'rank')} in {before[2]}"
                )
    return compared


def _windows(records: RunRecords) -> dict[tuple[Window, int], str]:
    """By batch and world size: the sum of its shards' hashes, empty if one is missing or by another
    digest; only batches that every rank logged.
    """
    shards: dict[tuple[int, Window, int], dict[int, str | None]] = {}
    for attempt, rank, line in every_line(records):
        shards.setdefault((attempt, (line.epoch, line.cursor_step), line.world_size), {})[rank] = (
            line.inputs_hash
        )
    found: dict[tuple[Window, int], str] = {}
    for (_, window, ranks), hashes in shards.items():
        known = [parts for each in hashes.values() if each and (parts := _parts(each))]
        if len(hashes) == ranks:
            alike = len(known) == ranks and len({digest for digest, _ in known}) == 1
            found.setdefault(
                (window, ranks),
                (
                    f"{known[0][0]}:{sum(int(number, 16) for _, number in known) % 2**256:064x}"
                    if alike
                    else ""
                ),
            )
    return found


def _parts(text: str) -> tuple[str, str] | None:
    """The digest that an `inputs_hash` names and its sum, which older records have without the
    name; None if it is no hash of inputs.
    """
    digest, _, number = text.rpartition(":")
    return (
        (digest or BEFORE_DIGEST, number)
        if digest in ("", *DIGESTS) and is_digest(number)
        else None
    )


def _digest(text: str) -> str:
    return text.rpartition(":")[0] or BEFORE_DIGEST


def _otherwise(ours: str, who: str, theirs: str, other: str) -> str:
    return (
        f"the inputs of {who} are hashed by {shown(_digest(ours))}, those of {other} by"
        f" {shown(_digest(theirs))}"
    )


def _key(line: RankLine) -> Key:
    return line.epoch, line.cursor_step, line.rank, line.world_size


def _compare(
    line: RankLine, who: str, earlier: tuple[str, RankLine], notes: FindingBuilder
) -> None:
    where = f"step {line.global_step} rank {line.rank}"
    if line.inputs_hash is None or earlier[1].inputs_hash is None:
        notes.missing(
            f"{where}: no hash of the inputs in {who if line.inputs_hash is None else earlier[0]}"
        )
    elif _digest(line.inputs_hash) != _digest(earlier[1].inputs_hash):
        notes.missing(
            f"{where}: {_otherwise(line.inputs_hash, who, earlier[1].inputs_hash, earlier[0])}"
        )
    elif line.inputs_hash != earlier[1].inputs_hash:
        notes.broken(f"{where}: the inputs of {who} are not those of {earlier[0]}")
    elif (
        line.targets_hash
        and earlier[1].targets_hash  # older records have none
        and line.targets_hash != earlier[1].targets_hash
    ):
        notes.broken(f"{where}: the targets of {who} are not those of {earlier[0]}")
