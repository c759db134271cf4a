"""Results of the real arms: tables, a figure, notes and gates; against the model, too, which must
allow every outcome of a real file system.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ecrl_cli.config.schema import WRITE_MODES
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.gates import mutants_gate, nothing
from ecrl_cli.studies.frame.result import (
    PROPORTION_COLUMNS,
    Figure,
    ResultColumn,
    ResultTable,
    proportion,
    shares_series,
    upper_bound,
)
from ecrl_cli.studies.frame.study import Record, TrialResults
from ecrl_cli.studies.frame.tables import (
    Cells,
    Group,
    TableSpec,
    cell,
    counts,
    fact,
    grouped,
    item,
    items,
    sums,
    table,
    total,
    value,
)
from ecrl_cli.studies.power_loss.model_trial import NEVER
from ecrl_cli.studies.power_loss.real_process import LOST, OUTCOMES
from ecrl_cli.studies.power_loss.subject_store import PLANTS, SETTLED

ARMS = ("shutdown", "blocks")
WEAK = ("unsafe", "atomic_nodirsync")
# ext4, XFS and btrfs write earlier names along with any fsync, so only the model can show what this
# one breaks.
DRAGGED_ALONG = ("no_parent_sync",)


def outcomes(records: Iterable[Record]) -> Counter[str]:
    """How often each outcome occurs in the records: one per trial (shutdown), or one per state
    (blocks).
    """
    return sum(
        (
            Counter(r.found["outcomes"] if r.facts["arm"] == "blocks" else [r.found["outcome"]])
            for r in records
        ),
        Counter(),
    )


def lost(records: Iterable[Record]) -> int:
    counts = outcomes(records)
    return sum(counts[outcome] for outcome in LOST)


def is_ours(record: Record) -> bool:
    """Whether it is a mode of the store without a planted fault."""
    return record.facts["subject"] in WRITE_MODES and record.facts["variant"] not in PLANTS


def is_safe(record: Record) -> bool:
    """Whether it is the mode that promises to lose nothing, without a planted fault."""
    return is_ours(record) and record.facts["subject"] == "atomic_dirsync"


def _label(record: Record) -> str:
    facts = record.facts
    variant = {"": "", SETTLED: ", with pointers and retention"}.get(
        facts["variant"], f", planted {facts['variant']}"
    )
    return str(facts["subject"]) + (f", {facts['layout']}" if facts["layout"] else "") + variant


_WHO = (fact("fs", "file system"), value("subject", "subject", _label))


_OUTCOMES = counts({outcome: outcome.replace("_", " ") for outcome in OUTCOMES}, outcomes)


def _loss(group: Group) -> dict[str, Any]:
    tried = outcomes(group).total()
    shares = proportion(lost(group), tried)
    return shares | {"upper": upper_bound(tried) if shares["k"] == 0 and tried else None}


def _per_block(group: Group) -> str:
    blocks = grouped(
        sorted(group, key=lambda r: int(r.facts["block"])), lambda r: r.facts["block"]
    ).values()
    return ", ".join(f"{lost(block)}/{len(block)}" for block in blocks)


def _phases(results: TrialResults) -> ResultTable:
    """The phases of a save at which the power failed, to show that the moments vary."""
    by_fs = grouped(results.of("shutdown"), lambda r: r.facts["fs"])
    counts = {fs: Counter(record.found["phase"] for record in by_fs[fs]) for fs in sorted(by_fs)}
    times = sum(counts.values(), Counter[str]())
    phases = sorted(times, key=lambda phase: (-times[phase], phase))
    columns = (
        item("phase", "the last point that the save had passed"),
        *items("count", **{fs: fs for fs in counts}),
    )
    rows = [
        {"phase": phase} | {fs: count[phase] for fs, count in counts.items()} for phase in phases
    ]
    note = "The points are those of the protocol; other subjects only have saving and acknowledged."
    return table("real-phases", "When the power went", columns, rows, note)


def _planted(results: TrialResults) -> ResultTable:
    """A row per fault, with a column per arm and file system on which any was tried."""
    by_place = grouped(
        (r for r in results.of(*ARMS) if r.facts["variant"] in PLANTS),
        lambda r: (r.facts["arm"], r.facts["fs"]),
    )
    places = sorted(by_place, reverse=True)
    columns = (
        *items("text", plant="fault", breaks="what it breaks", found="found"),
        *(item(f"{arm}-{fs}", f"lost, {arm} on {fs}") for arm, fs in places),
    )
    rows = []
    for plant, breaks in PLANTS.items() if places else ():
        row: dict[str, Any] = {
            "plant": plant,
            "breaks": breaks,
            "found": "no, as expected" if plant in DRAGGED_ALONG else "no",
        }
        for arm, fs in places:
            tried = [record for record in by_place[arm, fs] if record.facts["variant"] == plant]
            row[f"{arm}-{fs}"] = f"{lost(tried)} of {outcomes(tried).total()}" if tried else None
            row["found"] = "yes" if lost(tried) else row["found"]
        rows.append(row)
    return table("real-planted", "Faults planted into atomic_dirsync", columns, rows)


TABLES = (
    TableSpec(
        "real-shutdown",
        "Acknowledged checkpoints lost when the file system is cut off",
        ("shutdown",),
        by=_WHO,
        columns=(
            total("saves", "acknowledged saves", "acknowledged"),
            _OUTCOMES,
            Cells(
                (
                    *PROPORTION_COLUMNS,
                    ResultColumn("upper", "one-sided exact 95% upper bound of a zero", "share"),
                ),
                _loss,
            ),
            cell("blocks", "lost per block", "text", _per_block),
        ),
        note=(
            "Per trial: did recovery give back less than was acknowledged? Subjects that are not"
            " ours are read by their own readers, newest first."
        ),
        sort=lambda r: r.facts["fs"],
    ),
    _phases,
    TableSpec(
        "real-blocks",
        "Two saves, and every moment at which the disk's power may have gone",
        ("blocks",),
        by=_WHO,
        columns=(
            total("states", "states rebuilt"),
            total("prefixes", "of which prefixes of the log"),
            total("writes", "writes in the log"),
            total("flushes", "flushes"),
            total("epochs", "groups of writes between flushes"),
            total("exhausted", "of which tried in full"),
            *(_OUTCOMES, cell("k", "lost", "count", lost)),
        ),
        note=(
            "Prefixes of the log, and states that lack some of the writes since the last flush, or"
            " parts of one. They are no random sample: no intervals."
        ),
        sort=lambda r: r.facts["fs"],
    ),
    _planted,
)


def figures(results: TrialResults) -> Iterator[Figure]:
    by_subject = grouped(results.of("shutdown"), lambda r: (r.facts["fs"], _label(r)))
    kinds = sorted({fs for fs, _ in by_subject})
    subjects = tuple(
        dict.fromkeys(
            subject
            for fs in kinds
            for each, subject in by_subject
            if each == fs and "planted" not in subject
        )
    )
    tried = {fs: [by_subject.get((fs, subject), []) for subject in subjects] for fs in kinds}
    series = tuple(
        shares_series(fs, [(lost(records), len(records)) for records in tried[fs]]) for fs in kinds
    )
    title = "Shutdowns that lost an acknowledged checkpoint"
    yield Figure("real-loss", title, "bars", "", "share of shutdowns", series, subjects)


def classes(results: TrialResults) -> dict[str, set[str]]:
    """The outcomes of each unmodified write mode on a real file system."""
    by_mode = grouped(filter(is_ours, results.of(*ARMS)), lambda r: r.facts["subject"])
    return {mode: set(outcomes(records)) for mode, records in by_mode.items()}


def gates(results: TrialResults) -> Iterator[Gate]:
    """The gates of the arms that have records."""
    for arm in ARMS:
        if records := results.of(arm):
            yield from _gates(arm, records)


def _gates(arm: str, records: Sequence[Record]) -> Iterator[Gate]:
    ours = list(filter(is_ours, records))
    safe = list(filter(is_safe, records))
    wrong = [
        f"{record.key}: {dict(outcomes([record]))}"
        for record in safe
        if lost([record]) or outcomes([record])["detected"]
    ]
    yield nothing(
        f"{arm}: atomic_dirsync",
        wrong,
        f"0 of {outcomes(safe).total()} lost an acknowledged checkpoint",
    )
    wrong = [
        f"{record.key}: {dict(outcomes([record]))}"
        for record in ours
        if any(outcomes([record])[outcome] for outcome in NEVER)
    ]
    yield nothing(
        f"{arm}: never wrong",
        wrong,
        f"0 of {outcomes(ours).total()} silently wrong, a traceback or hung, in every mode",
    )
    yield _sensitive(arm, ours)
    if arm == "shutdown":
        wrong = [
            record.key
            for record in records
            if not record.found["cut"] or record.found["acknowledged"] < 1
        ]
        yield nothing(
            "shutdown: injected",
            wrong,
            f"all {len(records)} were cut off after an acknowledged save",
        )
    else:
        wrong = [
            record.key
            for record in records
            if not record.found["after_acknowledgement"] or record.found["unmountable"]
        ]
        yield nothing(
            "blocks: injected",
            wrong,
            f"{sums(records, 'states')['states']} states of {len(records)} logs were rebuilt and"
            " mounted",
        )
    wrong = [
        record.key
        for record in ours
        if (record.found["goes_on"] is False if arm == "shutdown" else record.found["stuck"])
    ]
    yield nothing(
        f"{arm}: goes on", wrong, "after every recovery the next save worked and was found"
    )
    bugs = grouped(
        (
            r
            for r in records
            if r.facts["variant"] in PLANTS and r.facts["variant"] not in DRAGGED_ALONG
        ),
        lambda r: r.facts["variant"],
    )
    if bugs:  # one counts as found if it lost something on any file system of the arm
        yield from mutants_gate(
            {plant: bool(lost(tried)) for plant, tried in bugs.items()}, f"{arm}: planted"
        )


def _sensitive(arm: str, ours: Sequence[Record]) -> Gate:
    """A mode without syncs must lose something; otherwise the rig, and any zero it shows, is not
    credible.
    """
    weak = [
        record
        for record in ours
        if record.facts["subject"] in WEAK and record.facts["variant"] != SETTLED
    ]
    cells = grouped(weak, lambda r: f"{r.facts['subject']} on {r.facts['fs']}")
    told = {name: (lost(records), outcomes(records).total()) for name, records in cells.items()}
    blind = [f"{name} lost none of {tried}" for name, (gone, tried) in told.items() if not gone]
    if not cells:
        return Gate(
            f"{arm}: sensitive",
            False,
            "no mode that may lose was tried: this rig's zeros show nothing",
        )
    found = "; ".join(f"{name} lost {gone} of {tried}" for name, (gone, tried) in told.items())
    return Gate(
        f"{arm}: sensitive",
        not blind,
        f"the rig is insensitive: {'; '.join(blind)}" if blind else found,
    )


def notes(results: TrialResults) -> Iterator[str]:
    records = results.of("shutdown")
    for fs, safe in sorted(grouped(filter(is_safe, records), lambda r: r.facts["fs"]).items()):
        if not lost(safe):
            kernels = " and ".join(sorted({record.found["kernel"] for record in safe}))
            yield (
                f"0 of {len(safe)} injected shutdowns (kernel {kernels}, {fs} defaults, saves back"
                f" to back, shutdown uniform over 0-{results.keys.real_window_s * 1000:g} ms after"
                " the first acknowledgement) lost an acknowledged checkpoint under atomic_dirsync:"
                f" loss probability per such shutdown below {upper_bound(len(safe)):.2%} at 95%"
                " confidence (one-sided, exact)."
            )
    if records:
        yield (
            "The loss rates of the weaker modes depend on when the power goes relative to the next"
            " fsync or the journal's timer: they say that losses exist, not how often they happen"
            " in production. A pointer that is synced after the save takes the save's name along:"
            " with pointers atomic_nodirsync loses less."
        )
        yield (
            "The shutdown arm tests the file system's journal and ordering: no lying device cache,"
            " no torn sectors."
        )
    if late := sums(records, "late")["late"]:
        yield (
            f"{late} saves were acknowledged while their file system was already shutting down:"
            " after the power loss, so they do not count."
        )
    dragged = [record for record in records if record.facts["variant"] in DRAGGED_ALONG]
    if dragged and not lost(dragged):
        kinds = " and ".join(sorted({record.facts["fs"] for record in dragged}))
        yield (
            f"Without the sync of the run directory 0 of {len(dragged)} lost anything on {kinds},"
            " which write earlier names along with any fsync: only the model shows that fault."
        )
    safe = list(filter(is_safe, results.of("blocks")))
    if safe and not lost(safe):
        tried = sums(safe, "states", "prefixes")
        kinds = ", ".join(sorted({record.facts["fs"] for record in safe}))
        yield (
            f"atomic_dirsync lost nothing in {tried['states']} states of the disk"
            f" ({tried['prefixes']} prefixes of the block log,"
            f" {tried['states'] - tried['prefixes']} with writes since the last flush missing or"
            f" torn at 4 KiB) on {kinds}: states of {len(safe)} recorded runs, no probability."
        )
