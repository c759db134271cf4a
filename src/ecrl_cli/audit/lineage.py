"""The step after which each attempt resumed, proved by content: its initial state is looked up among the states recorded after every earlier step.

The job's own step numbers are not needed. The step in flight at a death may have happened or not: a rank that died has no line for it, but any
other rank's line counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ecrl_cli.audit.records import Arm, Process, Step
from ecrl_cli.audit.saving import checkpoints

_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Resumed:
    """How attempt `attempt` began.

    `after`: the step whose parameters it had; None: those of no recorded step. `proof`: what showed it: content, load (a checkpoint that was
    read), declared (the job's own numbers) or nothing.
    """

    attempt: int
    after: int | None
    proof: str
    loaded: tuple[str, ...]
    newest_saved: int | None
    optimizer_after: int | None
    entries: int | None
    comparable: bool = True  # a digest of the newest checkpoint's state is on record
    strays: tuple[int, ...] = ()  # ranks that began with other parameters than any rank had after that step


@dataclass(frozen=True)
class Path:
    """The steps that led to the end: by step and rank, the attempt and its record of the step."""

    steps: dict[int, dict[int, tuple[int, Step]]]
    done_again: list[tuple[int, int, int, Step, Step]]  # step, rank, attempt, first pass, second pass
    resumed: list[Resumed]
    offsets: dict[int, int]
    resized: frozenset[int] = frozenset()  # attempts with another number of processes than the first

    @property
    def last(self) -> int:
        return max(self.steps, default=0)

    def attempt_of(self, step: int) -> int:
        """The attempt that step `step` counts from: the first of its ranks'."""
        return min(attempt for attempt, _ in self.steps[step].values())

    @property
    def steps_done_again(self) -> int:
        """How many passes of a step, of all ranks together, another attempt had done before."""
        return len({(step, attempt) for step, _, attempt, _, _ in self.done_again})


def path_of(arm: Arm) -> Path:
    """Follow the attempts of `arm`; a later attempt overwrites the steps that it repeats."""
    steps: dict[int, dict[int, tuple[int, Step]]] = {}
    again: list[tuple[int, int, int, Step, Step]] = []
    resumed: list[Resumed] = []
    offsets: dict[int, int] = {}
    states: list[tuple[int, str, str]] = []
    saves: list[tuple[int, str]] = []
    sizes = {number: max((process.world_size for process in processes), default=0) for number, processes in arm.attempts.items()}
    first = next((sizes[number] for number in sorted(sizes) if sizes[number]), 0)
    resized = frozenset(number for number, size in sizes.items() if size not in (0, first))
    writers = _writers(arm, sizes)
    by_files = checkpoints(arm) if any(process.files for process in arm.processes) else None
    for number in sorted(arm.attempts):
        processes = arm.attempts[number]
        begun = _resumed(number, processes, states, saves) if offsets else Resumed(number, 0, "first", (), None, 0, None)
        if offsets:
            resumed.append(begun)
        offset = offsets[number] = begun.after or 0
        _overwrite(steps, again, processes, (number, sizes), offset)
        for process in processes:
            states += _states(process, offset)
        if by_files is not None:
            whole = [one for one in by_files if one.attempt == number and one.finished and not one.overlapped]
            saves += [(offset + one.step, path) for one in whole for path in one.paths]
            continue
        finished: dict[tuple[int, str], set[tuple[str, int]]] = {}
        for path, rank, step in _finished(processes):
            finished.setdefault((step, _checkpoint(path)), set()).add((path, rank))
        for (step, checkpoint), parts in finished.items():
            if {(family(path), rank) for path, rank in parts} >= writers[sizes[number], checkpoint]:
                saves += [(offset + step, path) for path, _ in parts]
    return Path(steps, again, resumed, offsets, resized)


def _finished(processes: list[Process]) -> Iterator[tuple[str, int, int]]:
    """Path, rank and step of the attempt for each file or folder that a process has finished."""
    for process in processes:
        for save in process.saves:
            if save.get("done") and not save.get("overlapped"):
                yield str(save.get("path", "")), process.rank, save["after_step"]


def _writers(arm: Arm, sizes: dict[int, int]) -> dict[tuple[int, str], set[tuple[str, int]]]:
    """By number of processes and kind of checkpoint, its parts and the ranks that write them: it is finished when all of them are."""
    found: dict[tuple[int, str], set[tuple[str, int]]] = {}
    for number, processes in arm.attempts.items():
        for path, rank, _ in _finished(processes):
            found.setdefault((sizes[number], _checkpoint(path)), set()).add((family(path), rank))
    return found


def _checkpoint(path: str) -> str:
    """The kind of checkpoint that `path` is a part of: the folder, if that is numbered, else the file."""
    folder = family(path).rpartition("/")[0]
    return folder if "#" in folder.rpartition("/")[2] else family(path)


def _overwrite(steps: Any, again: Any, processes: list[Process], made: tuple[int, dict[int, int]], offset: int) -> None:
    """Let an attempt replace earlier passes of its steps and record those in `again`. Steps after its last one are dropped, since their state was
    lost. `made`: the attempt, and how many processes each has; passes by another number are not compared."""
    attempt, sizes = made
    done: dict[int, dict[int, tuple[int, Step]]] = {}
    for process in processes:
        for step in process.steps:
            number = step.number if step.declared else offset + step.number
            done.setdefault(number, {})[process.rank] = (attempt, step)
    for number, ranks in done.items():
        for rank, (_, step) in ranks.items():
            before = steps.get(number, {}).get(rank)
            if before is not None and sizes[before[0]] == sizes[attempt]:
                again.append((number, rank, attempt, before[1], step))
    if done:
        for number in [number for number in steps if number > offset and number not in done and number > max(done)]:
            del steps[number]
    steps.update(done)


def _states(process: Process, offset: int) -> list[tuple[int, str, str]]:
    found = []
    if process.start is not None:
        found.append((offset, str(process.start.get("params", "")), str(process.start.get("optimizer", ""))))
    for step in process.steps:
        if step.digests.get("params"):
            number = step.number if step.declared else offset + step.number
            found.append((number, step.digests["params"], step.digests.get("optimizer", "")))
    found += [(offset + save["after_step"], str(save["params"]), str(save.get("optimizer", ""))) for save in process.saves if save.get("params")]
    return found


def _resumed(attempt: int, processes: list[Process], states: list[tuple[int, str, str]], saves: list[tuple[int, str]]) -> Resumed:
    loaded = tuple(dict.fromkeys(str(load.get("path", "")) for process in processes for load in process.loads))
    families = {family(path) for path in loaded}
    saved = [step for step, path in saves if not families or any(f"/{one}".endswith(f"/{part}") for one in families for part in _with_folders(path))]
    newest = max(saved, default=None)
    starts = [process.start for process in processes if process.start is not None]
    declared = [process.steps[0].number - 1 for process in processes if process.steps and process.steps[0].declared]
    if not starts:
        return Resumed(attempt, min(declared) if declared else None, "declared" if declared else "nothing", loaded, newest, None, None)
    params, optimizer = str(starts[0].get("params", "")), str(starts[0].get("optimizer", ""))
    entries = starts[0].get("entries")
    matching = [(state == optimizer, step) for step, digest, state in states if digest == params]
    of_optimizer = max((step for step, _, state in states if state == optimizer), default=None)
    if matching:
        behind = max(matching)[1]
        there = {digest for step, digest, _ in states if step == behind}
        strays = tuple(process.rank for process in processes if process.start is not None and str(process.start.get("params", "")) not in there)
        return Resumed(attempt, behind, "content", loaded, newest, of_optimizer, entries, strays=strays)
    comparable = any(step == newest for step, _, _ in states)
    if loaded and newest is not None:
        return Resumed(attempt, newest, "load", loaded, newest, of_optimizer, entries, comparable)
    return Resumed(attempt, None, "nothing", loaded, newest, of_optimizer, entries, comparable)


def _with_folders(path: str) -> list[str]:
    """The kinds of a file and of the folders that it lies in: DCP reads a folder."""
    parts = family(path).split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1) if any(parts[:count])]


def family(path: str) -> str:
    """The kind of a checkpoint: its path without numbers and without the suffixes of an unfinished write."""
    name = path.removesuffix(".tmp").removesuffix(".part").removesuffix(".partial")
    return _DIGITS.sub("#", name.replace(".tmp", ""))
