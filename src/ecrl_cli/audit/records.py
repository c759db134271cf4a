"""A job's recording as typed data: each attempt of an arm, each process, step by step. The input is untrusted and never executed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ecrl_cli.errors import EvidenceMissing, RecordError
from ecrl_cli.records.journal import read_json

FORMAT = 1
MAX_FILE, MAX_LINE, MAX_FILES = 2**30, 2**22, 4096
MAX_ARM = 2**31  # bytes of all records of one arm together
MAX_STEP = 10**9
MAX_SECONDS = 1e9
DIGESTS = ("params", "buffers", "optimizer", "settings", "rng", "rng_python", "rng_numpy")
MAX_TEXT = 4096  # characters of a path, a digest, the name of a call
_ATTEMPT = re.compile(r"^attempt-(\d{2,6})$")


@dataclass(frozen=True)
class Batch:
    """One batch. `samples`: identifiers of its samples: ids, else a digest of each row, else the digest of the whole; `by_id`: whether they are
    ids."""

    samples: tuple[str, ...]
    by_id: bool
    digest: str


@dataclass(frozen=True)
class Step:
    """One optimizer step of one process. `number`: counted by that process from 1 in each attempt, or as declared by the job."""

    number: int
    declared: bool
    batches: tuple[Batch, ...]
    losses: tuple[float | None, ...]
    digests: Mapping[str, str]  # params, buffers, optimizer, settings, rng, rng_python, rng_numpy
    lr: tuple[float, ...]
    scale: float | None
    seconds: float
    at: float

    @property
    def samples(self) -> tuple[str, ...]:
        return tuple(sample for batch in self.batches for sample in batch.samples)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(batch.digest for batch in self.batches if batch.digest)

    @property
    def by_id(self) -> bool:
        return bool(self.batches) and all(batch.by_id for batch in self.batches)


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
    files: list[dict[str, Any]] = field(default_factory=list)  # operations on files of the arm's folder, in their order
    epochs: list[int] = field(default_factory=list)
    skips: list[int] = field(default_factory=list)  # after which steps the gradient scaler left a window out
    faults: list[dict[str, Any]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    torn: int = 0


@dataclass(frozen=True)
class Launch:
    """One attempt as observed from outside (arm.json). `left_behind`: number of processes still running after it ended. `no_step`: it hung in that
    it went on printing and made no step. `stopped`: the audit was stopped in it.

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

    def __post_init__(self) -> None:
        for name in ("attempt", "left_behind"):
            _count(getattr(self, name))
        if not all(value is None or (type(value) is int and abs(value) < 2**31) for value in (self.exit_code, self.signal)):
            raise ValueError("an exit code or a signal is no number")
        if not all(type(value) is bool for value in (self.hung, self.planned, self.no_step, self.stopped)):
            raise ValueError("hung, planned, no_step and stopped are true or false")
        object.__setattr__(self, "seconds", _seconds(self.seconds))


@dataclass(frozen=True)
class Arm:
    """One arm; `launches` is empty if ECRL did not run it. `planned`: the failures that were planned for it, in words, by their number.

    `others`: by attempt, processes that trained nothing and have file events on record: they wrote or read checkpoints, or died before a step.
    """

    name: str
    folder: Path
    attempts: dict[int, list[Process]]
    launches: tuple[Launch, ...] = ()
    planned: Mapping[int, str] = field(default_factory=dict)
    others: Mapping[int, list[Process]] = field(default_factory=dict)

    @property
    def stopped(self) -> bool:
        """Whether the audit was stopped in this arm: what is missing in it is not the job's doing."""
        return any(launch.stopped for launch in self.launches)

    @property
    def processes(self) -> list[Process]:
        return [process for number in sorted(self.attempts) for process in self.attempts[number]]

    @property
    def happened(self) -> set[int]:
        """The numbers of the failures that are on record."""
        return {fault["index"] for process in self.processes for fault in process.faults}


def read_arm(folder: Path) -> Arm:
    """The records under `folder`. EvidenceMissing if there are none; RecordError, naming the file, for what cannot be read."""
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
            raise RecordError(str(child.name), f"holds {len(files)} records, at most {MAX_FILES} are read")
        if read > MAX_ARM:
            raise RecordError(folder.name, f"has more than {MAX_ARM} bytes of records")
        found = [read_process(path, int(match[1])) for path in files]
        trained = [process for process in found if process.steps or process.start or process.troubles]
        attempts[int(match[1])] = sorted(trained, key=lambda process: (process.rank, process.path))
        others[int(match[1])] = [process for process in found if process.files and process not in trained]
    if not any(attempts.values()):
        raise EvidenceMissing(str(folder), "no step is on record", "was the command a torch job? python -I, -E and -S keep the recorder out")
    return Arm(folder.name, folder, attempts, *_watched_from_outside(folder / "arm.json"), others=others)


def _watched_from_outside(path: Path) -> tuple[tuple[Launch, ...], dict[int, str]]:
    """The launches, and the failures that were planned."""
    if not path.exists():
        return (), {}
    document = read_json(path)
    listed, faults = (document.get(name, []) if isinstance(document, dict) else [] for name in ("launches", "strikes"))
    names = {name.name for name in fields(Launch)}
    try:
        launches = tuple(Launch(**{key: value for key, value in entry.items() if key in names}) for entry in listed)
        return launches, {_count(fault["index"]): _planned(fault) for fault in faults}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(path.name, f"is no record of launches ({str(error)[:200]})") from error


def _planned(fault: Mapping[str, Any]) -> str:
    kind, rank, step, moment = (_shortened(str(fault[name])) for name in ("kind", "rank", "step", "moment"))
    file, _, how = _shortened(str(fault.get("point") or "")).rpartition(":")
    return f"{kind} of rank {rank} at step {step} ({f'{moment}: {file} {how}' if file else moment})"


def read_process(path: Path, attempt: int) -> Process:
    """Read one file. A torn last line is left out; one in the middle makes the verdict unknown."""
    if path.is_symlink() or not path.is_file():
        raise RecordError(path.name, "is not a regular file")
    if path.stat().st_size > MAX_FILE:
        raise RecordError(path.name, f"has {path.stat().st_size} bytes, a record at most {MAX_FILE}")
    process = Process(path.name, attempt=attempt)
    batches: dict[int, Batch] = {}
    for number, line in enumerate(_lines(path, process), start=1):
        try:
            _take(process, batches, line)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RecordError(f"{path.name}:{number}", f"is no line of format {FORMAT} ({type(error).__name__}: {error})"[:300]) from error
    return process


def _lines(path: Path, process: Process) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        while data := file.readline(MAX_LINE + 1):
            if len(data) > MAX_LINE:
                raise RecordError(path.name, f"has a line of more than {MAX_LINE} bytes")
            if process.torn:
                process.troubles.append(f"{path.name}: a damaged line stands in the middle of the record")
                process.torn = 0
            try:
                line = json.loads(data)
            except (ValueError, RecursionError):
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
        process.rank, process.world_size = _count(line["rank"]), _count(line["world_size"])
        process.versions = {key: str(line.get(key, "")) for key in ("python", "torch")}
    elif kind == "batch":
        batches[_count(line["n"])] = _batch(line)
    elif kind == "start":
        process.start = _start(line)
    elif kind == "step":
        _take_step(process, batches, line)
    elif kind == "epoch":
        process.epochs.append(_count(line.get("after_step", 0)))
    elif kind == "skip":
        process.skips.append(_count(line["after_step"]))
    elif kind == "trouble":
        process.troubles.append(f"{line.get('what')}: {line.get('error')}")
    else:
        into = {"save": process.saves, "load": process.loads, "call": process.calls, "file": process.files, "strike": process.faults}.get(kind)
        if into is not None:  # unknown types come from later versions
            line["after_step"] = _count(line.get("after_step", len(process.steps)))
            if kind == "strike":
                line["index"] = _count(line.get("index", 0))
            if "seconds" in line:
                line["seconds"] = _seconds(line["seconds"])
            into.append({key: _shortened(value) for key, value in line.items()})


def _start(line: dict[str, Any]) -> dict[str, Any]:
    """The state before the first step: digests as text, `entries` as a count."""
    digests = {name: _shortened(str(line[name])) for name in DIGESTS if line.get(name)}
    entries = None if line.get("entries") is None else _count(line["entries"])
    name = _shortened(str(line.get("digest") or ""))
    return {**digests, "entries": entries, "lr": _rates(line), "watched": _watched(line), "digest": name}


def _rates(line: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(float(rate) for rate in line.get("lr") or ())


def _watched(line: Mapping[str, Any]) -> str:
    """What the job watches by name, as one text that two steps can be compared by."""
    watched = line.get("watched") or {}
    return ", ".join(f"{name} {_shortened(str(watched[name]))}" for name in sorted(watched))


def _seconds(value: Any) -> float:
    seconds = float(value)
    if isinstance(value, bool) or not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(f"{str(value)[:40]} is no time from 0 to {MAX_SECONDS:.0f} s")
    return seconds


def _shortened(value: Any) -> Any:
    return value[:MAX_TEXT] if isinstance(value, str) else value


def _take_step(process: Process, batches: dict[int, Batch], line: dict[str, Any]) -> None:
    consumed = [batches.pop(_count(number)) for number in line.get("batches", []) if number in batches]
    if line.get("ids") is not None or line.get("hash") is not None:
        consumed.append(_batch(line))
    step = Step(
        number=_count(line["step"]),
        declared=bool(line.get("declared", False)),
        batches=tuple(consumed),
        losses=tuple(None if loss is None else float(loss) for loss in line.get("losses", [])),
        digests={name: _shortened(str(line[name])) for name in DIGESTS if line.get(name)} | ({"watched": told} if (told := _watched(line)) else {}),
        lr=_rates(line),
        scale=None if line.get("scale") is None else float(line["scale"]),
        seconds=_seconds(line.get("seconds", 0.0)),
        at=float(line.get("at", 0.0)),
    )
    if step.declared:
        step = _with_observed(step, process)
    if line.get("amends") and process.steps:
        before = process.steps.pop()
        digests = {**before.digests, **step.digests}
        step = Step(before.number, before.declared, before.batches + step.batches, before.losses + step.losses, digests, *_rest(step, before))
    process.steps.append(step)


def _with_observed(step: Step, process: Process) -> Step:
    """`step`, declared by the job, merged with the steps that the recorder observed since the last declared one; these are removed from `process`.

    A field that the job did not declare is taken from the observed steps: batches and losses of all, the rest of the last.
    """
    seen: list[Step] = []
    while process.steps and not process.steps[-1].declared:
        seen.insert(0, process.steps.pop())
    if not seen:
        return step
    batches = step.batches or tuple(batch for one in seen for batch in one.batches)
    losses = step.losses or tuple(loss for one in seen for loss in one.losses)
    last = seen[-1]
    scale = last.scale if step.scale is None else step.scale
    seconds = step.seconds or sum(one.seconds for one in seen)
    return Step(step.number, True, batches, losses, {**last.digests, **step.digests}, step.lr or last.lr, scale, seconds, step.at)


def _rest(step: Step, before: Step) -> tuple[tuple[float, ...], float | None, float, float]:
    return step.lr, step.scale, step.seconds + before.seconds, step.at


def _batch(line: Mapping[str, Any]) -> Batch:
    ids, rows, digest = line.get("ids"), line.get("rows"), str(line.get("hash") or "")
    if ids is not None:
        return Batch(tuple(str(int(sample)) for sample in ids), True, digest)
    return Batch(tuple(str(row) for row in rows) if rows else (digest,), False, digest)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_STEP:
        raise ValueError(f"{value!r} is no count from 0 to {MAX_STEP}")
    return value


def same_number(one: float | None, other: float | None) -> bool:
    """Equal as floats; two NaN are equal."""
    if one is None or other is None:
        return one is other
    return one == other or (math.isnan(one) and math.isnan(other))
