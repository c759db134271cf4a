"""Records of studies as they ought to be, and what breaks each gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ecrl_cli.config.studies import Hangs, Hostile, IoErrors, PowerLoss, Signals, Writers
from ecrl_cli.studies import signals
from ecrl_cli.studies.frame.study import Record, Study
from ecrl_cli.studies.hangs import study as hangs
from ecrl_cli.studies.hostile import study as hostile
from ecrl_cli.studies.io_errors import study as io_errors
from ecrl_cli.studies.power_loss import study as power_loss
from ecrl_cli.studies.power_loss.subject_store import PLANTS
from ecrl_cli.studies.writers import study as writers

# A gate, the key of a record, and what it found instead; None: the record is not there.
Spoilt = tuple[str, str, dict[str, Any] | None]


@dataclass(frozen=True)
class StudyRecords:
    """Records with which the study's gates pass, and what makes each of them fail, it alone."""

    study: Study
    keys: Any
    good: Sequence[Record]
    spoilt: Sequence[Spoilt]

    def without(self, key: str) -> list[Record]:
        assert any(record.key == key for record in self.good), key
        return [record for record in self.good if record.key != key]

    def changed(self, key: str, change: dict[str, Any] | None) -> list[Record]:
        if change is None:
            return self.without(key)
        assert any(record.key == key for record in self.good), key
        return [
            replace(record, found=record.found | change) if record.key == key else record
            for record in self.good
        ]


def record(key: str, facts: dict[str, Any], found: dict[str, Any]) -> Record:
    return Record(key, {"arm": key.partition("/")[0], **facts}, found, 0.1)


_OVERTAKEN = {"old": "fenced", "newer": "saved", "zombie": False, "outcome": "new"}
_WRITER = {"at": 0, "mode": "unsafe", "layout": "group", "newer": "other"}
_RACED = {"winners": 1, "codes": [0, 8], "names_holder": True, "names_attempt": True, "freed": True}
WRITERS = StudyRecords(
    writers.STUDY,
    Writers(planted=True),
    (
        record("race", {"left": "nothing"}, _RACED),
        record("fence", _WRITER, _OVERTAKEN),
        record("publish", _WRITER, _OVERTAKEN | {"old": "conflict"}),
        record("clock", {"jump": "stuck"}, {"differs": []}),
        record("remote", {"fault": "stale"}, {"outcome": "new", "next": "saved"}),
        record("reader", {"saves": 1, "at": 0}, {"looks": 1, "misled": ""}),
        record("source", {"module": "x"}, {"offences": []}),
        record("planted", {"bug": "b"}, {"shown": 3, "tried": 9}),
    ),
    (
        ("one_winner", "race", {"winners": 2, "codes": [0, 0]}),
        ("one_winner", "race", {"winners": 0, "codes": [8, 8]}),
        ("one_winner", "race", {"names_holder": False}),
        ("one_winner", "race", {"freed": False}),
        ("one_winner", "race", None),
        ("fenced", "fence", {"outcome": "lost_ack"}),
        ("fenced", "fence", {"outcome": "silent_wrong"}),
        ("fenced", "fence", {"zombie": True}),
        ("fenced", "fence", {"old": "untyped: KeyError"}),
        ("fenced", "publish", {"old": "saved"}),
        ("told_why", "fence", {"old": "refused: open"}),
        ("clocks", "clock", {"differs": ["kept"]}),
        ("late_names", "remote", {"outcome": "lost_ack"}),
        ("late_names", "remote", {"next": "refused: open"}),
        ("late_names", "remote", None),
        ("readers", "reader", {"misled": "found nothing"}),
        ("no_clock_decides", "source", {"offences": ["line 1: st_mtime"]}),
        ("planted", "planted", {"shown": 0}),
    ),
)

_REFUSED = {
    "outcome": "detected",
    "by": "hash",
    "reason": "",
    "expected": True,
    "canary": False,
    "escaped": [],
} | {"grown": 0, "read": 0, "calls": 1, "program": 0, "payload": 10}
HOSTILE = StudyRecords(
    hostile.STUDY,
    Hostile(every=15),
    (
        record("input", {"input": "COMMIT/empty", "group": "COMMIT", "look": "guard"}, _REFUSED),
        record("control", {}, {"ran": ["reduce"], "of": ["reduce"]}),
        record("audit", {}, {"looks": 1, "opened": 9, "outside": []}),
    ),
    (
        ("executed", "input", {"canary": True}),
        ("untyped", "input", {"outcome": "untyped"}),
        ("hung", "input", {"outcome": "hung"}),
        ("accepted", "input", {"outcome": "silent_wrong"}),
        ("named", "input", {"expected": False}),
        ("escaped", "input", {"escaped": ["new"]}),
        ("memory", "input", {"grown": hostile.GROWTH + 11}),
        ("read", "input", {"read": 2**40}),
        ("control", "control", {"ran": []}),
        ("audit", "audit", {"outside": ["openat"]}),
        ("audit", "audit", {"looks": 0}),
    ),
)

_CALLS = {
    "cases": io_errors.ENOUGH,
    "errors": io_errors.ENOUGH,
    "successes": 0,
    "stepped_back": 0,
    "violations": 0,
    "first": "",
}
_SAVED = {"outcome": "new", "call": "", "violations": 0, "first": ""}
IO_ERRORS = StudyRecords(
    io_errors.STUDY,
    IoErrors(),
    (
        record(
            "calls/x",
            {"operation": "save", "layout": "group", "mode": "unsafe"}
            | {"scope": "any", "fault": "EIO", "persistence": "once"},
            _CALLS,
        ),
        record("planted/x", {"mutant": "x"}, {"found": True, "cases": 1, "first": "call 1"}),
        record("space/0", {}, _SAVED | {"outcome": "previous", "call": "write"}),
        record("space/1", {}, _SAVED),
    ),
    (
        ("violations", "calls/x", {"violations": 1, "first": "lost_ack"}),
        ("violations", "space/1", {"violations": 1, "first": "lost_ack"}),
        ("cases", "calls/x", {"cases": io_errors.ENOUGH - 1}),
        ("planted", "planted/x", {"found": False, "cases": 9, "first": ""}),
        ("planted", "planted/x", None),
        ("space", "space/0", None),
        ("space", "space/1", None),
    ),
)

_CASE = {"overdue": False, "good": True, "outcomes": ["hung"], "found_after": 1.5, "left": 0}
HANGS = StudyRecords(
    hangs.STUDY,
    Hangs(),
    (
        record("case", {"what": "x"}, _CASE | {"shared_memory": []}),
        record("story", {"what": "x"}, {"good": True, "overdue": False}),
        record("planted", {"what": "x"}, {"shown": True, "overdue": False}),
    ),
    (
        ("as_promised", "case", {"good": False}),
        ("nothing_left", "case", {"left": 1}),
        ("nothing_left", "case", {"shared_memory": ["ecrl-x"]}),
        ("in_time", "case", {"found_after": 3.5}),
        ("over", "case", {"overdue": True}),
        ("detector", "story", {"good": False}),
        ("planted", "planted", {"shown": False}),
    ),
)

_STOPPED = {"overdue": False, "graceful": True, "kept": True, "good": True, "code": 143}
SIGNALS = StudyRecords(
    signals.STUDY,
    Signals(),
    (
        record("case", {"word": "SIGTERM", "phase": "training"}, _STOPPED | {"seconds": 0.2}),
        record("control", {}, _STOPPED | {"seconds": 0.2}),
        record("planted", {"what": "x"}, {"shown": True, "overdue": False}),
    ),
    (
        ("as_promised", "case", {"good": False}),
        ("durable", "case", {"kept": False}),
        ("over", "case", {"overdue": True}),
        ("control", "control", {"good": False}),
        ("planted", "planted", {"shown": False}),
    ),
)


def shutdown(subject: str, outcome: str, fs: str = "ext4", variant: str = "") -> Record:
    facts = {"fs": fs, "subject": subject, "layout": "group", "variant": variant, "block": 0}
    found = {"outcome": outcome, "acknowledged": 3, "cut": True, "goes_on": True, "late": 0}
    told = {"phase": "saving", "kernel": "6.18"}
    return record(f"shutdown/{fs}/{subject}/{variant}", facts, found | told)


def blocks(subject: str, outcomes: dict[str, int], variant: str = "") -> Record:
    facts = {"fs": "btrfs", "subject": subject, "layout": "group", "variant": variant}
    counts = ("prefixes", "writes", "flushes", "epochs", "exhausted", "after_acknowledgement")
    found = {"outcomes": outcomes, "states": sum(outcomes.values()), "unmountable": 0, "stuck": 0}
    told = {"kernel": "6.18", **dict.fromkeys(counts, 1)}
    return record(f"blocks/btrfs/{subject}/{variant}", facts, found | told)


POWER_LOSS = StudyRecords(
    power_loss.STUDY,
    PowerLoss(),
    (
        *(shutdown("atomic_dirsync", "new", fs) for fs in ("ext4", "xfs")),
        *(shutdown("atomic_nodirsync", "lost_ack", fs) for fs in ("ext4", "xfs")),
        *(shutdown("unsafe", "lost_all", fs) for fs in ("ext4", "xfs")),
        shutdown("torch.save", "silent_wrong"),
        *(
            shutdown("atomic_dirsync", "lost_ack", variant=plant)
            for plant in PLANTS
            if plant != "no_parent_sync"
        ),
        shutdown("atomic_dirsync", "new", variant="no_parent_sync"),
        blocks("atomic_dirsync", {"new": 5, "empty_ok": 2}),
        blocks("unsafe", {"new": 1, "lost_all": 6}),
        blocks("atomic_dirsync", {"new": 1, "lost_ack": 6}, variant="no_root_sync"),
    ),
    (
        ("shutdown: atomic_dirsync", "shutdown/xfs/atomic_dirsync/", {"outcome": "lost_ack"}),
        ("shutdown: never wrong", "shutdown/xfs/atomic_dirsync/", {"outcome": "silent_wrong"}),
        ("shutdown: sensitive", "shutdown/xfs/atomic_nodirsync/", {"outcome": "new"}),
        ("shutdown: injected", "shutdown/ext4/torch.save/", {"cut": False}),
        ("shutdown: injected", "shutdown/ext4/unsafe/", {"acknowledged": 0}),
        ("shutdown: goes on", "shutdown/ext4/unsafe/", {"goes_on": False}),
        ("shutdown: planted", "shutdown/ext4/atomic_dirsync/no_root_sync", {"outcome": "new"}),
        ("blocks: atomic_dirsync", "blocks/btrfs/atomic_dirsync/", {"outcomes": {"lost_all": 1}}),
        ("blocks: never wrong", "blocks/btrfs/atomic_dirsync/", {"outcomes": {"hung": 1}}),
        ("blocks: sensitive", "blocks/btrfs/unsafe/", {"outcomes": {"new": 7}}),
        ("blocks: injected", "blocks/btrfs/atomic_dirsync/", {"unmountable": 1}),
        ("blocks: injected", "blocks/btrfs/atomic_dirsync/", {"after_acknowledgement": 0}),
        ("blocks: goes on", "blocks/btrfs/unsafe/", {"stuck": 1}),
        (
            "blocks: planted",
            "blocks/btrfs/atomic_dirsync/no_root_sync",
            {"outcomes": {"new": 7}},
        ),
    ),
)

RECORDS = {
    "writers": WRITERS,
    "hostile": HOSTILE,
    "io-errors": IO_ERRORS,
    "hangs": HANGS,
    "signals": SIGNALS,
    "power-loss": POWER_LOSS,
}
