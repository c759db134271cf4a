"""The saves and reads of an arm, from its file events and the saves that the recorder knows:
checkpoints, finished or not, and what a resume read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ecrl.files import looks_binary
from ecrl_cli.audit.records import Arm, Process

_DIGITS = re.compile(r"\d+")
_RECORD = re.compile(
    r"(?i)(log|metric|history|loss|curve|result|config|args|stdout|stderr|events)[^/]*$|\.(csv|tsv|jsonl|log|md|html|png|svg|pdf)$"
)
_STATE = re.compile(
    r"(?i)\.(pt|pth|bin|ckpt|safetensors|distcp|npz|npy|pkl|pickle|tar|msgpack|h5)(\.\w{1,12})?$"
)
_RANDOM = re.compile(
    r"(?<![a-zA-Z])tmp[a-z0-9_]{8}(?![a-zA-Z0-9])|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{16,}"
)


@dataclass(frozen=True)
class Checkpoint:
    """Files that one attempt wrote together, after step `step` of that attempt (add the step that
    it resumed from).

    `paths`: final names, relative to the arm's folder where they lie in it. `finished`: each was
    closed or renamed, and none is missing that the job's other saves have. `overlapped`: a thread
    wrote it beside the training: its state may be that of an earlier step. `at`: the monotonic time
    of its last event, 0 if unknown. `removed`: the attempt and time at which the first of its files
    was removed.
    """

    attempt: int
    step: int
    ranks: tuple[int, ...]
    paths: tuple[str, ...]
    finished: bool
    overlapped: bool = False
    at: float = 0.0
    removed: tuple[int, float] | None = None


@dataclass(frozen=True)
class Read:
    """A file that attempt `attempt` read before its first step; `checkpoint`: the one that it
    belongs to, None if nobody is known to have written it.
    """

    attempt: int
    rank: int
    path: str
    checkpoint: Checkpoint | None


@dataclass
class _Written:
    """The files of one process after one step: by final name, whether it is closed."""

    process: Process
    attempt: int
    step: int
    files: dict[str, bool]
    overlapped: bool = False
    at: float = 0.0


def kind_of(path: str) -> str:
    """`path` without what differs from save to save: # for its numbers, * for random parts."""
    return _DIGITS.sub("#", _RANDOM.sub("*", path))


def checkpoints(arm: Arm) -> list[Checkpoint]:
    """Saves that may be a checkpoint, in the order of the attempts and steps: those with a file
    that is no log, table or text.
    """
    groups: dict[tuple[int, int], list[_Written]] = defaultdict(list)
    for written in _written(arm):
        groups[written.attempt, written.step].append(written)
    holds_state = _state_files(
        path for (_, step), parts in groups.items() if step for part in parts for path in part.files
    )
    # what is made at a start is no part of every save
    usual = _usual([parts for (_, step), parts in groups.items() if step], holds_state)
    removed = list(removals(arm))
    found = []
    for (attempt, step), parts in sorted(groups.items()):
        paths = tuple(dict.fromkeys(path for part in parts for path in part.files))
        if not any(holds_state(path) for path in paths):
            continue
        at = max(part.at for part in parts)
        finished = (
            all(closed for part in parts for closed in part.files.values())
            and _kinds(parts) >= usual
        )
        gone = [
            (number, when)
            for number, when, path in removed
            if (number, when) > (attempt, at) and path in paths
        ]
        ranks = tuple(sorted({part.process.rank for part in parts}))
        found.append(
            Checkpoint(
                attempt,
                step,
                ranks,
                paths,
                finished,
                any(part.overlapped for part in parts),
                at,
                min(gone, default=None),
            )
        )
    return found


def reads(arm: Arm) -> list[Read]:
    """Files of the arm's folder that each attempt after the first read before its first step, in
    order, and which checkpoint that was.
    """
    saved = checkpoints(arm)
    found = []
    for attempt, process in processes_of(arm):
        if attempt == min(arm.attempts, default=0):
            continue
        for event in process.files:
            if event.get("op") == "read" and event["after_step"] == 0:
                path = str(event.get("path", ""))
                writers = [one for one in saved if path in one.paths and one.attempt < attempt]
                found.append(Read(attempt, process.rank, path, writers[-1] if writers else None))
        for load in process.loads:
            path = _relative(
                str(load.get("path", "")), {path for one in saved for path in one.paths}
            )
            if load["after_step"] == 0 and all(
                read.path != path for read in found if read.attempt == attempt
            ):
                inside = [
                    one
                    for one in saved
                    if one.attempt < attempt and any(_below(name, path) for name in one.paths)
                ]
                found.append(Read(attempt, process.rank, path, inside[-1] if inside else None))
    return found


def state_files(events: list[tuple[str, str]]) -> list[int]:
    """The places in `events` of the first file of each kind that is written and most likely holds
    state: those with a suffix that checkpoints have, else any but text.
    """
    written: dict[str, int] = {}
    for place, (op, path) in enumerate(events):
        if op == "write" and looks_binary(path):
            written.setdefault(kind_of(path), place)
    places = list(written.values())
    return [place for place in places if _STATE.search(events[place][1])] or places


@dataclass
class SaveEvents:
    """Operations of one process on files in one save, after step `step`: (operation, path; the new
    one of a rename), in order.
    """

    rank: int
    step: int
    events: list[tuple[str, str]]
    overlapped: bool = False

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return [(op, kind_of(path)) for op, path in self.events]


def save_events(arm: Arm) -> list[SaveEvents]:
    """The saves of the arm's first attempt, by rank and step. What is written in other steps as
    well (a log, a table) is no part of them.
    """
    found: list[SaveEvents] = []
    for process in arm.attempts[min(arm.attempts)]:
        groups = _grouped(process)
        holds_state = _state_files(
            path for group in groups if group.step for op, path in group.events if op != "mkdir"
        )
        saves = [
            group
            for group in groups
            if any(op != "mkdir" and holds_state(path) for op, path in group.events)
        ]
        elsewhere = {kind for group in groups if group not in saves for kind in group.kinds}
        for save in saves:
            save.events = [
                event
                for event, kind in zip(save.events, save.kinds, strict=True)
                if kind not in elsewhere
            ]
        found += [save for save in saves if save.events]
    return sorted(found, key=lambda save: (save.step, save.rank))


def _grouped(process: Process) -> list[SaveEvents]:
    """By step; what another thread does goes on beside the steps, and is one save until it does the
    same again.
    """
    groups: list[SaveEvents] = []
    current: dict[bool, SaveEvents] = {}
    for event in process.files:
        op, path = str(event.get("op")), str(event.get("to") or event.get("path", ""))
        if op in ("read", "closed") or event.get("append"):
            continue
        aside, step = bool(event.get("overlapped")), int(event["after_step"])
        group = current.get(aside)
        if group is None or ((op, kind_of(path)) in group.kinds if aside else step != group.step):
            group = current[aside] = SaveEvents(process.rank, step, [], aside)
            groups.append(group)
        group.events.append((op, path))
    return groups


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def processes_of(arm: Arm) -> Iterator[tuple[int, Process]]:
    """(attempt, process) of all, those that trained nothing included."""
    for attempt in sorted(arm.attempts):
        for process in (*arm.attempts[attempt], *arm.others.get(attempt, ())):
            yield attempt, process


def _written(arm: Arm) -> Iterator[_Written]:
    continued = _continued(arm)
    for attempt, process in processes_of(arm):
        yield from _of_process(arm, attempt, process, continued)


def _continued(arm: Arm) -> set[str]:
    """The kinds of files after which a save of the arm went on: by another file, or by their own
    new name.
    """
    kinds: set[str] = set()
    for _, process in processes_of(arm):
        for group in _grouped(process):
            for (op, path), (later, other) in pairwise(group.events):
                if op == "write" and (other != path or later == "rename"):
                    kinds.add(kind_of(path))
    return kinds


def _of_process(
    arm: Arm, attempt: int, process: Process, continued: set[str]
) -> Iterator[_Written]:
    """The saves of one process, by step; one of another thread that writes into a numbered folder
    by that folder. `continued`: as `_continued` gives it.
    """
    groups: dict[tuple[int, str], _Written] = {}
    final: dict[str, tuple[int, str]] = {}  # by name of today, the group that it was written in
    last = len(process.steps)  # events count so too, whatever numbers the job gives its steps
    for event in _events(process):
        op, path, to = str(event.get("op")), str(event.get("path", "")), str(event.get("to", ""))
        overlapped = bool(event.get("overlapped"))
        if op in ("write", "link") or (op == "rename" and path not in final):
            name = to or path
            if event.get("append"):
                continue
            step = _step_of(arm, attempt, process, event)
            key = (step, "")
            if overlapped:
                folder = name.rpartition("/")[0]
                key = (
                    next((other for other in groups if other[1] == folder), (step, folder))
                    if _DIGITS.search(folder)
                    else key
                )
            group = groups.setdefault(key, _Written(process, attempt, key[0], {}, overlapped))
            final[name] = key
            group.files[name] = op != "write"
        elif op == "closed" and path in final:
            groups[final[path]].files[path] = True
            name = path
        elif op == "rename":
            key = final.pop(path)
            del groups[key].files[path]
            groups[key].files[to], final[to], name = True, key, to
        else:
            continue
        groups[final[name]].at = max(groups[final[name]].at, float(event.get("at") or 0.0))
    struck = _struck(process, groups, continued)
    for (step, _), group in groups.items():
        if group in struck:
            group.files = dict.fromkeys(group.files, False)
        elif not group.overlapped and last > step:
            group.files = dict.fromkeys(group.files, True)
        yield group


def _struck(
    process: Process, groups: dict[tuple[int, str], _Written], continued: set[str]
) -> list[_Written]:
    """The saves in which a planned failure came before their end."""
    found = []
    for fault in process.faults:
        last = fault.get("how") == "after" and kind_of(str(fault.get("path"))) not in continued
        if fault.get("moment") == "save" and not last:
            named = [
                group
                for group in groups.values()
                if group.overlapped and fault.get("path") in group.files
            ]
            found += named[-1:] or [
                group for (step, _), group in groups.items() if step == fault["after_step"]
            ]
    return found


def _events(process: Process) -> Iterable[dict[str, Any]]:
    """The file events, and for what lies elsewhere the saves that the recorder knows."""
    names = {
        str(event.get(key, ""))
        for event in process.files
        for key in ("path", "to")
        if event.get("op") != "read"
    }
    for save in process.saves:
        path = str(save.get("path", ""))
        relative = _relative(path, names)
        if (
            save.get("done")
            and not save.get("renamed")
            and relative not in names
            and not any(_below(name, relative) for name in names)
        ):
            yield {**save, "op": "link", "path": path}
        elif (
            save.get("renamed")
            and relative not in names
            and not any(_below(name, relative) for name in names)
        ):
            yield {**save, "op": "rename", "path": str(save["renamed"]), "to": path}
    yield from process.files


def _relative(path: str, names: set[str]) -> str:
    """`path` as the file events call it, the longest of `names`, of their folders, or of what lies
    in them, that it ends with; else itself.
    """
    parts = path.split("/")
    for start in range(1, len(parts)):
        tail = "/".join(parts[start:])
        if tail and any(_below(name, tail) or _below(tail, name) for name in names):
            return tail
    return path


def _step_of(arm: Arm, attempt: int, process: Process, event: dict[str, Any]) -> int:
    """The step after which it happened; for a process that trains nothing, the last one that any
    had done by then.
    """
    if process.steps or process.start is not None:
        return int(event["after_step"])
    when = float(event.get("at") or 0.0)
    return max(
        (
            step.number
            for one in arm.attempts.get(attempt, ())
            for step in one.steps
            if step.at and step.at <= when
        ),
        default=0,
    )


def _kinds(parts: list[_Written]) -> set[tuple[int, str]]:
    return {(part.process.rank, kind_of(path)) for part in parts for path in part.files}


def _state_files(paths: Iterable[str]) -> Callable[[str], bool]:
    """Which of the files that a job writes may hold its state: those that are no text; of a job
    that writes nothing else, texts that are neither logs nor tables.
    """
    if any(looks_binary(path) for path in paths):
        return looks_binary
    return lambda path: looks_binary(path) or not _RECORD.search(path)


def _usual(
    groups: list[list[_Written]], holds_state: Callable[[str], bool]
) -> set[tuple[int, str]]:
    """The files, as (rank, kind), that are in every save which was certainly finished, because a
    later step of each of its processes is on record.
    """
    whole = []
    for parts in groups:
        state = any(holds_state(path) for part in parts for path in part.files)
        later = all(len(part.process.steps) > part.step for part in parts)
        if state and later and all(closed for part in parts for closed in part.files.values()):
            whole.append(_kinds(parts))
    return set.intersection(*whole) if whole else set()


def removals(arm: Arm) -> Iterator[tuple[int, float, str]]:
    for attempt, process in processes_of(arm):
        for event in process.files:
            if event.get("op") == "remove":
                yield attempt, float(event.get("at") or 0.0), str(event.get("path", ""))
