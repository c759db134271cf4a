"""`io-errors`: the n-th file call fails, for every n until the operation completes without a fault,
with every kind of fault, once and permanently.

Three arms: in memory, with every call of every operation; a tmpfs that is really full; syncs failed
in the kernel (strace).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from ecrl_cli.config.studies import IoErrors
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.storage.fault_injecting_fs import Fault
from ecrl_cli.storage.memory_fs import ModelFs
from ecrl_cli.studies.frame.gates import mutants_found
from ecrl_cli.studies.frame.study import (
    Arm,
    Record,
    Study,
    StudyContext,
    Trial,
    TrialResults,
    asked,
    needs,
    planted_arm,
)
from ecrl_cli.studies.frame.tables import (
    TableSpec,
    count,
    fact,
    mutants_table,
    size,
    sums,
    total,
    value,
    yes,
)
from ecrl_cli.studies.io_errors import strace_faults
from ecrl_cli.studies.io_errors.cases import FAULTS, Seen, run_cases
from ecrl_cli.studies.io_errors.full_disk import PAGE, FullDiskProgram, Room
from ecrl_cli.studies.io_errors.operations import (
    ATTEMPT,
    MOUNT,
    NEWEST,
    NEXT,
    OPERATIONS,
    PAYLOAD,
    StoreSetup,
    beginning,
    store_on,
)
from ecrl_cli.studies.mutants.careless_fs import MUTANTS

ENOUGH = 5000  # cases in memory
_SHOWN = 30  # violations in the table
_OVERHEAD = 16  # pages that a save needs beside its payload, with a margin
_INODES = 10  # one more than the files of a group and its folder
_PERSISTENCE = ("once", "for ever")
_REAL = {
    "space": "a full disk: tmpfs with room for n pages",
    "inodes": "a disk without inodes: tmpfs with room for n files",
    "sync": "the kernel refuses the K-th fsync (strace)",
}


def _cells(context: StudyContext) -> list[StoreSetup]:
    return [
        StoreSetup(layout, mode) for layout in context.keys.layouts for mode in context.keys.modes
    ]


def _call_trials(context: StudyContext) -> Iterator[Trial]:
    for name in context.keys.operations:
        for cell in (
            _cells(context)
            if OPERATIONS[name].modes
            else [StoreSetup(layout, "atomic_dirsync") for layout in context.keys.layouts]
        ):
            for scope, kind in ((scope, kind) for scope, kinds in FAULTS.items() for kind in kinds):
                for persistence in _PERSISTENCE:
                    facts = {
                        "operation": name,
                        "layout": cell.layout,
                        "mode": cell.mode,
                        "scope": scope,
                        "fault": kind,
                    }
                    key = "/".join(["calls", *facts.values(), persistence]).replace(" ", "_")
                    yield Trial(key, {"arm": "calls", **facts, "persistence": persistence})


def _seen(context: StudyContext) -> Seen:
    """The cache of verdicts on equal disks, shared by the trials."""
    return {}


def _run_calls(context: StudyContext, trial: Trial) -> dict[str, Any]:
    facts = trial.facts
    fault = Fault(facts["fault"], 1, facts["persistence"] != "once", facts["scope"])
    return asdict(
        run_cases(
            facts["operation"],
            StoreSetup(facts["layout"], facts["mode"]),
            fault,
            context.shared(_seen),
        )
    )


def _run_planted(context: StudyContext, trial: Trial) -> dict[str, Any]:
    """The fault that should expose the bug, on a save under the strictest mode."""
    wrap, scope, kind = MUTANTS[trial.facts["mutant"]]
    cases = 0
    for persistence in _PERSISTENCE:
        fault = Fault(kind, 1, persistence != "once", scope)
        counts = run_cases("save", StoreSetup("group", "atomic_dirsync"), fault, {}, wrap)
        cases += counts.cases
        if counts.violations:
            return {"found": True, "cases": cases, "first": f"{kind} {persistence}, {counts.first}"}
    return {"found": False, "cases": cases, "first": ""}


def _full_trials(arm: str, context: StudyContext) -> Iterator[Trial]:
    """Layouts and modes alternate; the payload is such that the last sizes suffice."""
    cells, spaces = _cells(context), context.keys.spaces
    payload = max(PAGE, (spaces - _OVERHEAD) * PAGE) if arm == "space" else 4 * PAGE
    for left in range(spaces if arm == "space" else _INODES):
        cell = cells[left % len(cells)]
        yield Trial(
            f"{arm}/{left:04d}",
            {
                "arm": arm,
                "layout": cell.layout,
                "mode": cell.mode,
                "left": left,
                "payload": payload,
            },
        )


def _disk(context: StudyContext) -> FullDiskProgram:
    return FullDiskProgram(context.scratch / "full")


def _run_full(context: StudyContext, trial: Trial) -> dict[str, Any]:
    facts = trial.facts
    return _judged(
        context.shared(_disk).save(
            Room(
                facts["layout"],
                facts["mode"],
                facts["payload"],
                facts["left"],
                facts["arm"] == "inodes",
            )
        )
    )


def _sync_trials(context: StudyContext) -> Iterator[Trial]:
    """Up to one more than the save makes, so that the last one succeeds."""
    for cell in [cell for cell in _cells(context) if cell.mode != "unsafe"]:
        for at in range(1, syncs_of_a_save(cell) + 2):
            for persistence in _PERSISTENCE:
                facts = {
                    "layout": cell.layout,
                    "mode": cell.mode,
                    "at": at,
                    "persistence": persistence,
                }
                yield Trial(
                    f"sync/{cell.layout}/{cell.mode}/{at:02d}/{persistence.replace(' ', '_')}",
                    {"arm": "sync", **facts},
                )


def _run_sync(context: StudyContext, trial: Trial) -> dict[str, Any]:
    facts = trial.facts
    cell = StoreSetup(facts["layout"], facts["mode"])
    return _judged(
        strace_faults.refused_save(
            context.scratch / "refused", cell, facts["at"], facts["persistence"] != "once"
        )
    )


def syncs_of_a_save(cell: StoreSetup) -> int:
    """Number of fsync calls of a save, folders included."""
    disk = ModelFs(MOUNT, beginning("save", cell))
    store = store_on(disk, cell)
    store.save(PAYLOAD.image(cell.layout, NEXT), ATTEMPT)
    store.close()
    return sum(op.kind in ("fsync", "fsyncdir") for op in disk.log)


def _judged(found: dict[str, Any]) -> dict[str, Any]:
    wrong = _wrong(found)
    return found | {"outcome": _outcome(found), "violations": len(wrong), "first": "; ".join(wrong)}


def _wrong(found: dict[str, Any]) -> list[str]:
    """Every promise broken by a save on a real file system, in words."""
    acknowledged, refused = found["acknowledged"], found.get("refused", 0)
    wrong = [f"untyped: {found['untyped']}"] if found["untyped"] else []
    if found["recovered"] < acknowledged:
        wrong.append(
            f"lost_ack: step {acknowledged} was acknowledged, step {found['recovered']} is found"
        )
    if acknowledged == NEWEST and not found["untyped"] and not (found["call"] and found["errno"]):
        wrong.append(f"names no call or errno: {found['line']}")
    if acknowledged == NEXT and refused:
        wrong.append("acknowledged after a refused sync")
    wrong += [f"{words}: {found[key]}" for key, words in _NOTHING.items() if found.get(key)]
    return (
        wrong if found["again"] > NEXT else [*wrong, "the next save on a healthy disk is not found"]
    )


_NOTHING = {
    "leaked": "descriptors stay open",
    "litter": "names stay",
    "kept_pages": "pages stay taken",
    "retried": "files synced again after a refusal",
}


def _outcome(found: dict[str, Any]) -> str:
    if found["untyped"]:
        return "untyped"
    if found["recovered"] < found["acknowledged"]:
        return "lost_ack" if found["recovered"] else "lost_all"
    return "new" if found["recovered"] == NEXT else "previous"


_COUNTS = (
    total("cases", "cases"),
    total("errors", "typed errors"),
    total("successes", "legal successes"),
    total("stepped_back", "recovery stepped back"),
    total("violations", "violations"),
)


def _broken(record: Record) -> bool:
    return bool(record.found.get("violations"))


def _refused(record: Record) -> bool:
    return bool(record.found["call"])


def _shown_violations(results: TrialResults) -> str:
    broken = sum(map(_broken, results.records))
    return (
        f"The first {min(broken, _SHOWN)} of {broken} trials with a violation; `trial=KEY` runs one"
        " again."
    )


def _gates(results: TrialResults) -> Iterator[Gate]:
    broken, calls = [record for record in results.records if _broken(record)], results.of("calls")
    first = f"; the first: {broken[0].key}: {broken[0].found['first']}" if broken else ""
    yield Gate(
        "violations",
        not broken,
        f"{sum(record.found['violations'] for record in broken)} violations{first}",
    )
    if "calls" in results.keys.arms:
        cases = sum(record.found["cases"] for record in calls)
        yield Gate("cases", cases >= ENOUGH, f"{cases} cases in memory, {ENOUGH} are due")
    yield from mutants_found("mutant")(results)
    for arm in _REAL:  # a trial in which no call fails, or none succeeds, tests nothing
        if records := results.of(arm):
            refused = sum(map(_refused, records))
            yield Gate(
                arm,
                0 < refused < len(records),
                f"{len(records)} saves: {refused} refused, {len(records) - refused} went through",
            )


def _notes(results: TrialResults) -> Iterator[str]:
    if calls := results.of("calls"):
        cases, stepped = sums(calls, "cases", "stepped_back").values()
        yield (
            f"{cases} cases are all calls of these operations on one small store in each fault: a"
            " count, not a sample, hence no interval."
        )
        yield (
            f"In {stepped} cases recovery passed over a checkpoint that the disk would not show"
            " (EIO, ESTALE, ...), by name, and took an older one: whether that file will ever be"
            " read again only the medium knows."
        )
    if bugs := results.of("planted"):
        yield f"planted {sum(record.found['found'] for record in bugs)}/{len(bugs)} found."


STUDY = Study(
    keys=IoErrors,
    description=(
        "The n-th file call fails, for every n, in every way, once and for ever; a disk that is"
        " really full; a sync refused by the kernel."
    ),
    arms=(
        Arm("calls", _call_trials, _run_calls, asked("calls")),
        planted_arm(MUTANTS, _run_planted, "mutant"),
        *(
            Arm(arm, partial(_full_trials, arm), _run_full, asked(arm), needs("private mounts"))
            for arm in ("space", "inodes")
        ),
        Arm("sync", _sync_trials, _run_sync, asked("sync"), needs("strace")),
    ),
    tables=(
        TableSpec(
            "calls",
            "Each call refused, by operation and fault",
            ("calls",),
            by=(fact("operation", "operation"), fact("fault", "fault")),
            columns=_COUNTS,
            note=(
                "A case: one operation with its n-th call refused, once or from then on. In memory;"
                " a sync that fails drops what it should have kept."
            ),
        ),
        TableSpec(
            "cells",
            "Each call refused, by layout and write mode",
            ("calls",),
            by=(
                fact("layout", "layout"),
                fact("mode", "write mode"),
                fact("persistence", "refused"),
            ),
            columns=_COUNTS,
        ),
        TableSpec(
            "real",
            "Refused by the real kernel",
            tuple(_REAL),
            by=(value("arm", "arm", lambda r: _REAL[r.facts["arm"]]),),
            columns=(
                size("cases", "cases"),
                count("refused", "typed errors", _refused),
                count("saved", "saved", lambda r: r.found["outcome"] == "new"),
                total("violations", "violations"),
            ),
            note="The layouts and write modes take turns.",
        ),
        mutants_table(
            (
                fact("mutant", "a store that"),
                yes("found", "found", lambda r: r.found["found"], ("found", "NOT FOUND")),
                value("by", "by", lambda r: r.found["first"]),
            )
        ),
        TableSpec(
            "violations",
            "Violations",
            columns=(
                value("trial", "trial", lambda r: r.key),
                value("count", "violations", lambda r: r.found["violations"], "count"),
                value("first", "the first", lambda r: r.found["first"]),
            ),
            note=_shown_violations,
            where=_broken,
            most=_SHOWN,
        ),
    ),
    gates=(_gates,),
    notes=_notes,
)
