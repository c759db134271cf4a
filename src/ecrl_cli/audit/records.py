"""A job's recording as typed data: each attempt of an arm, each process, step by step. The input is
untrusted and never executed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ecrl_cli.audit.steps import (
    DIGESTS,
    Batch,
    Optimizers,
    Step,
    amended,
    batch_of,
    count_of,
    optimizers_of,
    rates_of,
    seconds_of,
    shortened,
    step_of,
    watched_text,
    with_observed,
)
from ecrl_cli.errors import EvidenceMissing, RecordError
from ecrl_cli.records.journal import read_json

FORMAT = 1
MAX_FILE, MAX_LINE, MAX_FILES = 2**30, 2**22, 4096
MAX_BLANK = 10_000  # empty lines of one file
MAX_ARM = 2**31  # bytes of all records of one arm together
_ATTEMPT = re.compile(r"^attempt-(\d{2,6})$")


@dataclass
class Process:
    """One process of one attempt."""

    path: str
    rank: int = 0
    world_size: int = 1
    attempt: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    start: dict[str, Any] | None = None
    steps: list[Step] = field(default_factory=list)
    saves: list[dict[str, Any]] = field(default_factory=list)
    loads: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    # operations on files of the arm's folder, in their order
    files: list[dict[str, Any]] = field(default_factory=list)
    # loaders of which one batch a step came and is on no step's account: it was zipped with another
    loaders_beside: int = 0
    # batches that loaders gave, and of those that are trained on, how many no step consumed
    given: int = 0
    left_over: int = 0
    # after which steps a loader that is trained on came to its end
    epochs: list[int] = field(default_factory=list)
    # the same of every loader: which, and after which step
    ended: list[tuple[int, int]] = field(default_factory=list)
    # after which steps the gradient scaler left a window out
    skips: list[int] = field(default_factory=list)
    taken_back: int = 0  # steps that the job has undone itself
    told: Optimizers | None = None  # what the record says of the optimizers so far
    faults: list[dict[str, Any]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    torn: int = 0


@dataclass(frozen=True)
class Launch:
    """One attempt as observed from outside (arm.json). `left_behind`: number of processes still
    running after it ended. `no_step`: it hung in that it made no step.
    `stopped`: the audit was stopped in it. `chosen`: {latest:GLOB} chose what it resumed from.

    RecordError for values of another type or out of range: the file may be a stranger's.
    """

    attempt: int
    exit_code: int | None
    signal: int | None
    seconds: float
    hung: bool = False
    left_behind: int = 0
    planned: bool = False
    no_step: bool = False
    stopped: bool = False
    chosen: bool = False

    def __post_init__(self) -> None:
        for name in ("attempt", "left_behind"):
            count_of(getattr(self, name))
        if not all(
            value is None or (type(value) is int and abs(value) < 2**31)
            for value in (self.exit_code, self.signal)
        ):
            raise ValueError("an exit code or a signal is no number")
        for name in ("hung", "planned", "no_step", "stopped", "chosen"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} is true or false")
        object.__setattr__(self, "seconds", seconds_of(self.seconds))


@dataclass(frozen=True)
class Arm:
    """One arm; `launches` is empty if ECRL did not run it. `planned`: the failures that were
    planned for it, in words, by their number.

    `others`: by attempt, processes that trained nothing and have file events on record: they wrote
    or read checkpoints, or died before a step.
    """

    name: str
    folder: Path
    attempts: dict[int, list[Process]]
    launches: tuple[Launch, ...] = ()
    planned: Mapping[int, str] = field(default_factory=dict)
    others: Mapping[int, list[Process]] = field(default_factory=dict)

    @property
    def stopped(self) -> bool:
        """Whether the audit was stopped in this arm: what is missing in it is not the job's
        doing.
        """
        return any(launch.stopped for launch in self.launches)

    @property
    def processes(self) -> list[Process]:
        return [process for number in sorted(self.attempts) for process in self.attempts[number]]

    @property
    def happened(self) -> set[int]:
        """The numbers of the failures that are on record."""
        return {fault["index"] for process in self.processes for fault in process.faults}


def read_arm(folder: Path) -> Arm:
    """The records under `folder`. EvidenceMissing if there are none; RecordError, naming the file,
    for what cannot be read.
    """
    attempts: dict[int, list[Process]] = {}
    others: dict[int, list[Process]] = {}
    read = 0
    for child in sorted(folder.iterdir()):
        match = _ATTEMPT.match(child.name)
        if not match or child.is_symlink() or not child.is_dir():
            continue
        files = sorted(path for path in child.iterdir() if path.suffix == ".jsonl")
        read += sum(path.lstat().st_size for path in files)
        if len(files) > MAX_FILES:
            raise RecordError(
                str(child.name), f"holds {len(files)} records, at most {MAX_FILES} are read"
            )
        if read > MAX_ARM:
            raise RecordError(folder.name, f"has more than {MAX_ARM} bytes of records")
        found = [read_process(path, int(match[1])) for path in files]
        trained = [
            process for process in found if process.steps or process.start or process.troubles
        ]
        attempts[int(match[1])] = sorted(trained, key=lambda process: (process.rank, process.path))
        others[int(match[1])] = [
            process for process in found if process.files and process not in trained
        ]
    if not any(attempts.values()):
        seen = any(others.values())  # the recorder was in them
        raise EvidenceMissing(
            str(folder),
            "no step of a torch.optim.Optimizer is on record" if seen else "no step is on record",
            "a job that updates its weights itself tells its steps by ecrl.session() and step()"
            if seen
            else "was the command a torch job? python -I, -E and -S keep the recorder out",
        )
    return Arm(
        folder.name, folder, attempts, *watched_from_outside(folder / "arm.json"), others=others
    )


def watched_from_outside(path: Path) -> tuple[tuple[Launch, ...], dict[int, str]]:
    """The launches, and the failures that were planned."""
    if not path.exists():
        return (), {}
    document = read_json(path)
    listed, faults = (
        document.get(name, []) if isinstance(document, dict) else []
        for name in ("launches", "strikes")
    )
    names = {name.name for name in fields(Launch)}
    try:
        launches = tuple(
            Launch(**{key: value for key, value in entry.items() if key in names})
            for entry in listed
        )
        return launches, {count_of(fault["index"]): _planned(fault) for fault in faults}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(path.name, f"is no record of launches ({str(error)[:200]})") from error


def _planned(fault: Mapping[str, Any]) -> str:
    kind, rank, step, moment = (
        shortened(str(fault[name])) for name in ("kind", "rank", "step", "moment")
    )
    file, _, how = shortened(str(fault.get("point") or "")).rpartition(":")
    return f"{kind} of rank {rank} at step {step} ({f'{moment}: {file} {how}' if file else moment})"


def with_steps(arm: Arm, change: Callable[[Step], Step]) -> Arm:
    """`arm` with each step of all its processes through `change`."""
    return replace(
        arm,
        attempts={
            number: [
                replace(process, steps=[change(step) for step in process.steps])
                for process in processes
            ]
            for number, processes in arm.attempts.items()
        },
    )


def read_process(path: Path, attempt: int) -> Process:
    """Read one file. A torn last line is left out; one in the middle makes the verdict unknown."""
    if path.is_symlink() or not path.is_file():
        raise RecordError(path.name, "is not a regular file")
    if path.stat().st_size > MAX_FILE:
        raise RecordError(
            path.name, f"has {path.stat().st_size} bytes, a record at most {MAX_FILE}"
        )
    process = Process(path.name, attempt=attempt)
    batches: dict[int, Batch] = {}
    for number, line in enumerate(_lines(path, process), start=1):
        try:
            _take(process, batches, line)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RecordError(
                f"{path.name}:{number}",
                f"is no line of format {FORMAT} ({type(error).__name__}: {error})"[:300],
            ) from error
    trained_on = {batch.loader for step in process.steps for batch in step.batches}
    process.loaders_beside = _loaders_beside(process, batches, trained_on)
    process.left_over += sum(batch.loader in trained_on for batch in batches.values())
    process.epochs = [
        after for loader, after in process.ended if loader in trained_on or not trained_on
    ]
    return process


def _loaders_beside(process: Process, left: dict[int, Batch], trained_on: set[int]) -> int:
    """How many loaders gave about one batch a step, none of which a step consumed. `left`: the
    batches that none did.
    """
    given = Counter(batch.loader for batch in left.values() if batch.loader not in trained_on)
    steps = len(process.steps)
    return sum(steps > 3 and abs(count - steps) <= 1 for count in given.values())


def _lines(path: Path, process: Process) -> Iterator[dict[str, Any]]:
    blank = 0
    with path.open("rb") as file:
        while data := file.readline(MAX_LINE + 1):
            if len(data) > MAX_LINE:
                raise RecordError(path.name, f"has a line of more than {MAX_LINE} bytes")
            if process.torn:
                process.troubles.append(
                    f"{path.name}: a damaged line stands in the middle of the record"
                )
                process.torn = 0
            if not data.strip():
                blank += 1
                if blank > MAX_BLANK:
                    raise RecordError(path.name, f"has more than {MAX_BLANK} empty lines")
                continue
            try:
                line = json.loads(data)
            except RecursionError:
                process.troubles.append(f"{path.name}: a line is nested too deep to be read")
                continue
            except ValueError:
                process.torn += 1
                continue
            if not isinstance(line, dict) or not isinstance(line.get("type"), str):
                raise RecordError(path.name, "has a line that is no object with a type")
            yield line


def _take(process: Process, batches: dict[int, Batch], line: dict[str, Any]) -> None:
    kind = line["type"]
    if kind == "process":
        if line.get("format") != FORMAT:
            raise ValueError(f"format {line.get('format')!r}, this ECRL reads {FORMAT}")
        process.rank, process.world_size = count_of(line["rank"]), count_of(line["world_size"])
        process.versions = {key: str(line.get(key, "")) for key in ("python", "torch")}
    elif kind == "batch":
        batches[count_of(line["n"])] = batch_of(line)
        process.given += 1
    elif kind == "start":
        process.start = _start(line)
        if "world_size" in line:  # at the first step a process knows its place for certain
            process.rank, process.world_size = count_of(line["rank"]), count_of(line["world_size"])
    elif kind == "step":
        _take_step(process, batches, line)
    elif kind == "epoch":
        process.ended.append(
            (count_of(line.get("loader") or 0), count_of(line.get("after_step", 0)))
        )
    elif kind == "skip":
        process.skips.append(count_of(line["after_step"]))
        process.left_over -= sum(number in batches for number in line.get("batches", []))
    elif kind == "trouble":
        process.troubles.append(f"{line.get('what')}: {line.get('error')}")
    else:
        into = {
            "save": process.saves,
            "load": process.loads,
            "call": process.calls,
            "file": process.files,
            "strike": process.faults,
        }.get(kind)
        if into is not None:  # unknown types come from later versions
            line["after_step"] = count_of(line.get("after_step", len(process.steps)))
            if kind == "strike":
                line["index"] = count_of(line.get("index", 0))
            if kind == "save" and (line.get("objects") or line.get("params")):
                line["optimizers"] = optimizers_of(
                    line, {name: str(line.get(name) or "") for name in DIGESTS}
                )
            if "seconds" in line:
                line["seconds"] = seconds_of(line["seconds"])
            into.append({key: shortened(value) for key, value in line.items()})


def _start(line: dict[str, Any]) -> dict[str, Any]:
    """The state before the first step: digests as text, `entries` as a count."""
    digests = {name: shortened(str(line[name])) for name in DIGESTS if line.get(name)}
    entries = None if line.get("entries") is None else count_of(line["entries"])
    name = shortened(str(line.get("digest") or ""))
    told = {
        "optimizers": optimizers_of(line, digests),
        "lr": rates_of(line),
        "watched": watched_text(line),
        "digest": name,
    }
    counts = {key: _counts(line.get(key)) for key in ("entries_of", "trainable")}
    models = tuple(shortened(str(model)) for model in line.get("models") or ())
    return {**digests, "entries": entries, "models": models, **counts, **told}


def _counts(value: Any) -> dict[str, int]:
    return {shortened(str(name)): count_of(count) for name, count in (value or {}).items()}


def _take_step(process: Process, batches: dict[int, Batch], line: dict[str, Any]) -> None:
    consumed = tuple(
        batches.pop(count_of(number)) for number in line.get("batches", []) if number in batches
    )
    step = step_of(line, consumed, process.told, process.start if not process.steps else None)
    before = line.get("before")
    undone = count_of(before.get("taken_back", 0)) if isinstance(before, Mapping) else 0
    if 0 < undone <= len(process.steps):
        del process.steps[-undone:]
        process.taken_back += undone
        for event in (*process.saves, *process.files):
            if event["after_step"] >= step.number:
                # of steps that no longer count: what it holds is no state of the path
                event["overlapped"] = True
    told = (*step.optimizers_before.items(), *step.optimizers.items())
    process.told = {**(process.told or {}), **{name: state for name, state in told if state.params}}
    if step.declared:
        seen: list[Step] = []
        while process.steps and not process.steps[-1].declared:
            seen.insert(0, process.steps.pop())
        step = with_observed(step, seen)
    if line.get("amends") and process.steps:
        step = amended(process.steps.pop(), step)
    process.steps.append(step)
