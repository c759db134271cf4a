"""Results of the real arms as tables, a figure, notes and gates; against the model, too, which must allow every outcome of a real file system."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ecrl_cli.config.schema import WRITE_MODES
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.result import PROPORTION_COLUMNS, Column, Figure, Findings, Series, Table, proportion, upper_bound
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.studies.power_loss.real_process import LOST, OUTCOMES
from ecrl_cli.studies.power_loss.subject_store import PLANTS, SETTLED

NEVER = ("silent_wrong", "untyped", "hung")
WEAK = ("unsafe", "atomic_nodirsync")
# ext4, XFS and btrfs write earlier names along with any fsync, so only the model can show what this one breaks.
DRAGGED_ALONG = ("no_parent_sync",)


def outcomes(record: Record) -> Counter[str]:
    """How often each outcome occurs in the record: one per trial (shutdown), or one per state (blocks)."""
    found = record.found
    return Counter(found["outcomes"]) if record.facts["arm"] == "blocks" else Counter([found["outcome"]])


def total(records: Iterable[Record]) -> Counter[str]:
    return sum((outcomes(record) for record in records), Counter())


def lost(records: Iterable[Record]) -> int:
    counts = total(records)
    return sum(counts[outcome] for outcome in LOST)


def is_ours(record: Record) -> bool:
    """Whether it is a mode of the store without a planted fault."""
    return record.facts["subject"] in WRITE_MODES and record.facts["variant"] not in PLANTS


def classes_seen(records: Iterable[Record]) -> dict[str, set[str]]:
    """The outcomes of each unmodified write mode on a real file system."""
    seen: dict[str, set[str]] = {}
    for record in filter(is_ours, records):
        seen.setdefault(record.facts["subject"], set()).update(outcomes(record))
    return seen


def not_kinder(model_classes: Mapping[str, set[str]], real_records: Iterable[Record]) -> Gate:
    """Every outcome of a mode on a real file system must be possible in the model."""
    seen = classes_seen(real_records)
    missing = [
        f"{mode}: {outcome} happened, the model has it not"
        for mode, found in sorted(seen.items())
        for outcome in sorted(found - model_classes.get(mode, set()))
    ]
    kept = f"the model has all {sum(map(len, seen.values()))} outcomes that {len(seen)} modes showed on real file systems"
    return Gate("model not kinder", bool(seen) and not missing, "; ".join(missing) or (kept if seen else "no real trial ran"))


def real_gates(records: Sequence[Record]) -> tuple[Gate, ...]:
    """The gates of the arms that have records."""
    arms = [arm for arm in ("shutdown", "blocks") if any(record.facts["arm"] == arm for record in records)]
    gates: list[Gate] = []
    for arm in arms:
        of_arm = [record for record in records if record.facts["arm"] == arm]
        gates += [_durable(arm, of_arm), _never(arm, of_arm), _sensitive(arm, of_arm), _injected(arm, of_arm), _goes_on(arm, of_arm)]
        gates += [_planted(arm, of_arm)] if any(record.facts["variant"] in PLANTS for record in of_arm) else []
    return tuple(gates)


def _durable(arm: str, records: Sequence[Record]) -> Gate:
    of_mode = [record for record in records if is_ours(record) and record.facts["subject"] == "atomic_dirsync"]
    wrong = [f"{record.key}: {dict(outcomes(record))}" for record in of_mode if lost([record]) or outcomes(record)["detected"]]
    tried = f"0 of {total(of_mode).total()} lost an acknowledged checkpoint"
    return Gate(f"{arm}: atomic_dirsync", not wrong, _first(wrong) or tried)


def _never(arm: str, records: Sequence[Record]) -> Gate:
    ours = list(filter(is_ours, records))
    wrong = [f"{record.key}: {dict(outcomes(record))}" for record in ours if any(outcomes(record)[outcome] for outcome in NEVER)]
    return Gate(f"{arm}: never wrong", not wrong, _first(wrong) or f"0 of {total(ours).total()} silently wrong, a traceback or hung, in every mode")


def _sensitive(arm: str, records: Sequence[Record]) -> Gate:
    """A mode without syncs must lose something; otherwise the rig, and any zero it shows, is not credible."""
    cells = _cells(records, lambda record: is_ours(record) and record.facts["subject"] in WEAK and record.facts["variant"] != SETTLED)
    blind = [f"{subject} on {fs} lost none of {total(found).total()}" for (fs, subject), found in cells.items() if not lost(found)]
    found = "; ".join(f"{subject} on {fs} lost {lost(found)} of {total(found).total()}" for (fs, subject), found in cells.items())
    problem = (
        f"the rig is insensitive: {'; '.join(blind)}" if blind else "" if cells else "no mode that may lose was tried: this rig's zeros show nothing"
    )
    return Gate(f"{arm}: sensitive", not problem, problem or found)


def _injected(arm: str, records: Sequence[Record]) -> Gate:
    if arm == "shutdown":
        wrong = [record.key for record in records if not record.found["cut"] or record.found["acknowledged"] < 1]
        return Gate("shutdown: injected", not wrong, _first(wrong) or f"all {len(records)} were cut off after an acknowledged save")
    wrong = [record.key for record in records if not record.found["after_acknowledgement"] or record.found["unmountable"]]
    states = sum(record.found["states"] for record in records)
    return Gate("blocks: injected", not wrong, _first(wrong) or f"{states} states of {len(records)} logs were rebuilt and mounted")


def _goes_on(arm: str, records: Sequence[Record]) -> Gate:
    ours = list(filter(is_ours, records))
    stuck = [record.key for record in ours if (record.found["goes_on"] is False if arm == "shutdown" else record.found["stuck"])]
    return Gate(f"{arm}: goes on", not stuck, _first(stuck) or "after every recovery the next save worked and was found")


def _planted(arm: str, records: Sequence[Record]) -> Gate:
    """A fault counts as found if it lost something on any file system of the arm."""
    cells: dict[str, list[Record]] = {}
    for record in records:
        if record.facts["variant"] in PLANTS and record.facts["variant"] not in DRAGGED_ALONG:
            cells.setdefault(record.facts["variant"], []).append(record)
    missed = [plant for plant, found in cells.items() if not lost(found)]
    text = f"planted {len(cells) - len(missed)}/{len(cells)} found"
    return Gate(f"{arm}: planted", not missed, f"{text}: {', '.join(missed)} lost nothing" if missed else text)


def _cells(records: Sequence[Record], wanted: Callable[[Record], bool]) -> dict[tuple[str, str], list[Record]]:
    cells: dict[tuple[str, str], list[Record]] = {}
    for record in filter(wanted, records):
        cells.setdefault((record.facts["fs"], record.facts["subject"]), []).append(record)
    return cells


def _first(wrong: Sequence[str]) -> str:
    return "; ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")


Cells = dict[tuple[str, str], list[Record]]  # by file system and subject

_OUTCOME_COLUMNS = tuple(Column(outcome, outcome.replace("_", " "), "count") for outcome in OUTCOMES)
_WHO = (Column("fs", "file system"), Column("subject", "subject"))
_LOSS = (*PROPORTION_COLUMNS, Column("upper", "one-sided exact 95% upper bound of a zero", "share"))


def real_findings(records: Sequence[Record], window_s: float) -> Findings:
    """`window_s`: maximum seconds from the first acknowledgement to the power loss."""
    shutdown = [record for record in records if record.facts["arm"] == "shutdown"]
    blocks = [record for record in records if record.facts["arm"] == "blocks"]
    tables: list[Table] = []
    if shutdown:
        tables += [_shutdown_table(_by_subject(shutdown)), _phase_table(shutdown)]
    if blocks:
        tables.append(_blocks_table(_by_subject(blocks)))
    if planted := [record for record in records if record.facts["variant"] in PLANTS]:
        tables.append(_planted_table(planted))
    return Findings(
        tables=tuple(tables),
        figures=(_figure(_by_subject(shutdown)),) if shutdown else (),
        gates=real_gates(records),
        notes=(*_shutdown_notes(shutdown, window_s), *_blocks_notes(blocks)),
    )


def _by_subject(records: Sequence[Record]) -> Cells:
    cells: Cells = {}
    for record in records:
        cells.setdefault((record.facts["fs"], _label(record)), []).append(record)
    return dict(sorted(cells.items(), key=lambda item: item[0][0]))


def _label(record: Record) -> str:
    facts = record.facts
    variant = {"": "", SETTLED: ", with pointers and retention"}.get(facts["variant"], f", planted {facts['variant']}")
    return str(facts["subject"]) + (f", {facts['layout']}" if facts["layout"] else "") + variant


def _shutdown_table(cells: Cells) -> Table:
    columns = (*_WHO, Column("saves", "acknowledged saves", "count"), *_OUTCOME_COLUMNS, *_LOSS, Column("blocks", "lost per block"))
    rows = [
        {"fs": fs, "subject": subject, "saves": sum(record.found["acknowledged"] for record in found)}
        | _loss(found)
        | {"blocks": ", ".join(f"{lost(block)}/{len(block)}" for block in _blocks(found))}
        for (fs, subject), found in cells.items()
    ]
    note = "Per trial: did recovery give back less than was acknowledged? Subjects that are not ours are read by their own readers, newest first."
    return Table("real-shutdown", "Acknowledged checkpoints lost when the file system is cut off", columns, tuple(rows), note)


def _blocks(records: Sequence[Record]) -> list[list[Record]]:
    numbers = sorted({record.facts["block"] for record in records})
    return [[record for record in records if record.facts["block"] == number] for number in numbers]


def _loss(records: Sequence[Record]) -> dict[str, Any]:
    counts = total(records)
    shares = proportion(lost(records), counts.total())
    upper = upper_bound(counts.total()) if shares["k"] == 0 and counts.total() else None
    return {outcome: counts[outcome] for outcome in OUTCOMES} | shares | {"upper": upper}


def _phase_table(records: Sequence[Record]) -> Table:
    """The phases of a save at which the power failed, to show that the moments vary."""
    kinds = sorted({record.facts["fs"] for record in records})
    counts = {fs: Counter(record.found["phase"] for record in records if record.facts["fs"] == fs) for fs in kinds}
    phases = sorted(set().union(*counts.values()), key=lambda phase: -sum(count[phase] for count in counts.values()))
    columns = (Column("phase", "the last point that the save had passed"), *(Column(fs, fs, "count") for fs in kinds))
    rows = tuple({"phase": phase} | {fs: counts[fs][phase] for fs in kinds} for phase in phases)
    return Table(
        "real-phases", "When the power went", columns, rows, "The points are those of the protocol; other subjects only have saving and acknowledged."
    )


def _blocks_table(cells: Cells) -> Table:
    numbers = ("states", "prefixes", "writes", "flushes", "epochs", "exhausted")
    labels = (
        "states rebuilt",
        "of which prefixes of the log",
        "writes in the log",
        "flushes",
        "groups of writes between flushes",
        "of which tried in full",
    )
    columns = (
        *_WHO,
        *(Column(key, label, "count") for key, label in zip(numbers, labels, strict=True)),
        *_OUTCOME_COLUMNS,
        Column("k", "lost", "count"),
    )
    rows = []
    for (fs, subject), found in cells.items():
        facts = {key: sum(record.found[key] for record in found) for key in numbers}
        counts = total(found)
        rows.append({"fs": fs, "subject": subject} | facts | {outcome: counts[outcome] for outcome in OUTCOMES} | {"k": lost(found)})
    note = (
        "Prefixes of the log, and states that lack some of the writes since the last flush, or parts of one. They are no random sample: no intervals."
    )
    return Table("real-blocks", "Two saves, and every moment at which the disk's power may have gone", columns, tuple(rows), note)


def _planted_table(records: Sequence[Record]) -> Table:
    arms = sorted({(record.facts["arm"], record.facts["fs"]) for record in records}, reverse=True)
    columns = [Column("plant", "fault"), Column("breaks", "what it breaks"), Column("found", "found")]
    columns += [Column(f"{arm}-{fs}", f"lost, {arm} on {fs}") for arm, fs in arms]
    rows = []
    for plant, breaks in PLANTS.items():
        row: dict[str, Any] = {"plant": plant, "breaks": breaks, "found": "no, as expected" if plant in DRAGGED_ALONG else "no"}
        for arm, fs in arms:
            found = [r for r in records if (r.facts["variant"], r.facts["arm"], r.facts["fs"]) == (plant, arm, fs)]
            row[f"{arm}-{fs}"] = f"{lost(found)} of {total(found).total()}" if found else None
            row["found"] = "yes" if lost(found) else row["found"]
        rows.append(row)
    return Table("real-planted", "Faults planted into atomic_dirsync", tuple(columns), tuple(rows))


def _figure(cells: Cells) -> Figure:
    kinds = sorted({fs for fs, _ in cells})
    subjects = tuple(dict.fromkeys(subject for _, subject in cells if "planted" not in subject))
    series = []
    for fs in kinds:
        shares = [proportion(lost(cells.get((fs, s), [])), len(cells.get((fs, s), []))) for s in subjects]
        y, low, high = (tuple(share[key] or 0.0 for share in shares) for key in ("rate", "wilson_low", "wilson_high"))
        series.append(Series(fs, y, low=low, high=high))
    return Figure("real-loss", "Shutdowns that lost an acknowledged checkpoint", "bars", "", "share of shutdowns", tuple(series), categories=subjects)


def _shutdown_notes(records: Sequence[Record], window_s: float) -> list[str]:
    notes = []
    for fs in sorted({record.facts["fs"] for record in records}):
        safe = [record for record in records if record.facts["fs"] == fs and is_ours(record) and record.facts["subject"] == "atomic_dirsync"]
        if safe and not lost(safe):
            kernels = " and ".join(sorted({record.found["kernel"] for record in safe}))
            notes.append(
                f"0 of {len(safe)} injected shutdowns (kernel {kernels}, {fs} defaults, saves back to back, shutdown uniform over "
                f"0-{window_s * 1000:g} ms after the first acknowledgement) lost an acknowledged checkpoint under atomic_dirsync: "
                f"loss probability per such shutdown below {upper_bound(len(safe)):.2%} at 95% confidence (one-sided, exact)."
            )
    if records:
        notes.append(
            "The loss rates of the weaker modes depend on when the power goes relative to the next fsync or the journal's timer: they say that "
            "losses exist, not how often they happen in production. A pointer that is synced after the save takes the save's name along: with "
            "pointers atomic_nodirsync loses less."
        )
        notes.append("The shutdown arm tests the file system's journal and ordering: no lying device cache, no torn sectors.")
    if late := sum(record.found["late"] for record in records):
        notes.append(f"{late} saves were acknowledged while their file system was already shutting down: after the power loss, so they do not count.")
    dragged = [record for record in records if record.facts["variant"] in DRAGGED_ALONG]
    if dragged and not lost(dragged):
        kinds = " and ".join(sorted({record.facts["fs"] for record in dragged}))
        notes.append(
            f"Without the sync of the run directory 0 of {len(dragged)} lost anything on {kinds}, which write earlier names along with any fsync: "
            "only the model shows that fault."
        )
    return notes


def _blocks_notes(records: Sequence[Record]) -> list[str]:
    safe = [record for record in records if is_ours(record) and record.facts["subject"] == "atomic_dirsync"]
    if not safe or lost(safe):
        return []
    states, prefixes = (sum(record.found[key] for record in safe) for key in ("states", "prefixes"))
    kinds = ", ".join(sorted({record.facts["fs"] for record in safe}))
    return [
        f"atomic_dirsync lost nothing in {states} states of the disk ({prefixes} prefixes of the block log, {states - prefixes} with writes "
        f"since the last flush missing or torn at 4 KiB) on {kinds}: states of {len(safe)} recorded runs, no probability."
    ]
