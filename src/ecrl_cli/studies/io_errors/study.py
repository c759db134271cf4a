"""`io-errors`: the n-th file call fails, for every n until the operation is through untouched, in every way, once and for ever.

Three arms: in memory, where every call of every operation is tried; a tmpfs that is really full; a kernel that refuses a sync (strace).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

from ecrl_cli.config.studies import IoErrors
from ecrl_cli.storage.fault_injecting_fs import Fault
from ecrl_cli.storage.memory_fs import ModelFs
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, Skip, StudyContext, Trial
from ecrl_cli.studies.io_errors import full_disk, strace_faults
from ecrl_cli.studies.io_errors.cases import FAULTS, Seen, run_cases
from ecrl_cli.studies.io_errors.findings import findings
from ecrl_cli.studies.io_errors.full_disk import PAGE, FullDisk, Room
from ecrl_cli.studies.io_errors.operations import ATTEMPT, MOUNT, NEWEST, NEXT, OPERATIONS, Cell, beginning, image, store_on
from ecrl_cli.studies.mutants.careless_fs import MUTANTS

_OVERHEAD = 16  # pages that a save needs beside its payload, and a few to spare
_INODES = 10  # one more than the files of a group and its folder
_PERSISTENCE = ("once", "for ever")


def make(setting: StudyContext) -> PreparedStudy:
    return _IoErrors(setting)


class _IoErrors:
    def __init__(self, setting: StudyContext) -> None:
        self._config: IoErrors = setting.config.study
        self._scratch = setting.scratch
        self._seen: Seen = {}
        self._disk: FullDisk | None = None

    def plan(self) -> list[Trial]:
        return [*self._calls(), *self._planted(), *self._full(), *self._refused()]

    def skips(self) -> list[Skip]:
        return [Skip(arm, reason) for arm, reason in self._against.items() if reason]

    def run(self, trial: Trial) -> dict[str, Any]:
        facts = trial.facts
        if facts["arm"] == "calls":
            return self._run_calls(facts)
        if facts["arm"] == "planted":
            return self._run_planted(facts)
        cell = Cell(facts["layout"], facts["mode"])
        if facts["arm"] == "sync":
            found = strace_faults.refused_save(self._scratch / "refused", cell, facts["at"], facts["persistence"] != "once")
        else:
            self._disk = self._disk or FullDisk(self._scratch / "full")
            found = self._disk.save(Room(cell.layout, cell.mode, facts["payload"], facts["left"], facts["arm"] == "inodes"))
        wrong = _wrong(found)
        return found | {"outcome": _outcome(found), "violations": len(wrong), "first": "; ".join(wrong)}

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(self._config, records)

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()
            (self._scratch / "full").rmdir()
            self._disk = None

    def _cells(self) -> list[Cell]:
        return [Cell(layout, mode) for layout in self._config.layouts for mode in self._config.modes]

    def _calls(self) -> Iterator[Trial]:
        if "calls" not in self._config.arms:
            return
        for name in self._config.operations:
            for cell in self._cells() if OPERATIONS[name].modes else [Cell(layout, "atomic_dirsync") for layout in self._config.layouts]:
                for scope, kind in ((scope, kind) for scope, kinds in FAULTS.items() for kind in kinds):
                    for persistence in _PERSISTENCE:
                        facts = {"operation": name, "layout": cell.layout, "mode": cell.mode, "scope": scope, "fault": kind}
                        key = "/".join(["calls", *facts.values(), persistence]).replace(" ", "_")
                        yield Trial(key, {"arm": "calls", **facts, "persistence": persistence})

    def _planted(self) -> Iterator[Trial]:
        for name in MUTANTS if self._config.planted else ():
            yield Trial(f"planted/{name.replace(' ', '_')}", {"arm": "planted", "mutant": name})

    def _full(self) -> Iterator[Trial]:
        """The layouts and modes take turns; the payload is such that the last sizes suffice."""
        cells = self._cells()
        for arm, sizes in (("space", self._config.spaces), ("inodes", _INODES)):
            payload = max(PAGE, (self._config.spaces - _OVERHEAD) * PAGE) if arm == "space" else 4 * PAGE
            for left in range(sizes if arm in self._config.arms and not self._against[arm] else 0):
                cell = cells[left % len(cells)]
                facts = {"layout": cell.layout, "mode": cell.mode, "left": left, "payload": payload}
                yield Trial(f"{arm}/{left:04d}", {"arm": arm, **facts})

    def _refused(self) -> Iterator[Trial]:
        """Up to one more than the save has, so that the last one goes through."""
        if "sync" not in self._config.arms or self._against["sync"]:
            return
        for cell in [cell for cell in self._cells() if cell.mode != "unsafe"]:
            for at in range(1, syncs_of_a_save(cell) + 2):
                for persistence in _PERSISTENCE:
                    facts = {"layout": cell.layout, "mode": cell.mode, "at": at, "persistence": persistence}
                    yield Trial(f"sync/{cell.layout}/{cell.mode}/{at:02d}/{persistence.replace(' ', '_')}", {"arm": "sync", **facts})

    @cached_property
    def _against(self) -> dict[str, str]:
        """Why an arm cannot run here; empty where it can, or is not asked for."""
        full = full_disk.reason_against() if {"space", "inodes"} & set(self._config.arms) else ""
        reasons = {"space": full, "inodes": full, "sync": strace_faults.reason_against() if "sync" in self._config.arms else ""}
        return {arm: reason if arm in self._config.arms else "" for arm, reason in reasons.items()}

    def _run_calls(self, facts: dict[str, Any]) -> dict[str, Any]:
        fault = Fault(facts["fault"], 1, facts["persistence"] != "once", facts["scope"])
        return asdict(run_cases(facts["operation"], Cell(facts["layout"], facts["mode"]), fault, self._seen))

    def _run_planted(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The fault that the bug must not survive, on a save under the strictest mode."""
        wrap, scope, kind = MUTANTS[facts["mutant"]]
        cases = 0
        for persistence in _PERSISTENCE:
            fault = Fault(kind, 1, persistence != "once", scope)
            tally = run_cases("save", Cell("group", "atomic_dirsync"), fault, {}, wrap)
            cases += tally.cases
            if tally.violations:
                return {"found": True, "cases": cases, "first": f"{kind} {persistence}, {tally.first}"}
        return {"found": False, "cases": cases, "first": ""}


def syncs_of_a_save(cell: Cell) -> int:
    """How many fsync calls a save makes, folders included."""
    disk = ModelFs(MOUNT, beginning("save", cell))
    store = store_on(disk, cell)
    store.save(image(cell.layout, NEXT), ATTEMPT)
    store.close()
    return sum(op.kind in ("fsync", "fsyncdir") for op in disk.log)


def _wrong(found: dict[str, Any]) -> list[str]:
    """Every promise that a save on a real file system broke, in words."""
    acknowledged, refused = found["acknowledged"], found.get("refused", 0)
    wrong = [f"untyped: {found['untyped']}"] if found["untyped"] else []
    if found["recovered"] < acknowledged:
        wrong.append(f"lost_ack: step {acknowledged} was acknowledged, step {found['recovered']} is found")
    if acknowledged == NEWEST and not found["untyped"] and not (found["call"] and found["errno"]):
        wrong.append(f"names no call or errno: {found['line']}")
    if acknowledged == NEXT and refused:
        wrong.append("acknowledged after a refused sync")
    wrong += [f"{words}: {found[key]}" for key, words in _NOTHING.items() if found.get(key)]
    return wrong if found["again"] > NEXT else [*wrong, "the next save on a healthy disk is not found"]


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
