"""The raw runs of the published matrix (experiment 4), as its authors keep them in a public
repository: a folder `logs/RUN` with the lines of each rank, `metrics/RUN` beside it.

The repository has no licence, so nothing of it is part of ECRL: whoever wants the runs judged
fetches it and names the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from ecrl_cli.errors import ConfigError, RecordError, shown
from ecrl_cli.records.safe_read import read_lines, read_whole

REPOSITORY = "https://github.com/HaoWen46/Elastic-Correct-Recovery-Lab"
ARMS = {"reference": "ref", "failure_blocking": "blk", "failure_overlapped": "ovl"}
_NAME = re.compile(
    r"(?P<matrix>\w+?)_(?P<dataset>cifar\d+)_(?P<model>resnet\d+)_f(?P<schedule>[a-z]+)"
    r"_k(?P<every>\d+)_m(?P<inflight>\d+)_s(?P<seed>\d+)"
    rf"_(?P<arm>{'|'.join(ARMS)})"
)
_EXIT = re.compile(r"\[fail-inject\] step=(\d+) all ranks exiting")
_MOST_DEPTH = 6  # from the root of the repository to a run there are four folders
_MOST_RUNS = 10_000

T = TypeVar("T")


class RankStep(msgspec.Struct, frozen=True):
    """A line of `rankR.jsonl`. `time`: seconds since the epoch."""

    global_step: int
    loss: float
    sample_ids_hash: str
    time: float


class SaveLine(msgspec.Struct, frozen=True):
    """A line of `checkpoint_rank0.jsonl`: of a snapshot, or of a write that ended (seconds)."""

    event: str
    global_step: int
    write_time_sec: float | None = None
    enqueue_latency_sec: float = 0.0
    backpressure_wait_sec: float = 0.0
    inflight_after_enqueue: int = 0


class SupervisorEnd(msgspec.Struct, frozen=True):
    """`supervisor.json`. `duration_sec`: from the first launch to the end of the last attempt."""

    duration_sec: float
    restarts: int


class StateStep(msgspec.Struct, frozen=True):
    """How the weights of a run and of its reference differ at a step."""

    available: bool
    candidate_digest: str = ""
    reference_digest: str = ""
    l2_distance: float | None = None


class LossDistance(msgspec.Struct, frozen=True):
    """The mean distance of rank 0's losses, over the steps that both runs have."""

    mean_abs_diff: float


class Divergence(msgspec.Struct, frozen=True):
    """`divergence_vs_REFERENCE.json`."""

    steps: dict[str, StateStep]
    loss_divergence: LossDistance


class Correctness(msgspec.Struct, frozen=True):
    """`correctness.json`."""

    passed: bool


@dataclass(frozen=True)
class RunName:
    """The parts of a run folder's name. `every`: steps between checkpoints; `inflight`: the
    most writes that may be under way; `arm`: `ref`, `blk` or `ovl`.
    """

    matrix: str
    dataset: str
    model: str
    schedule: str
    every: int
    inflight: int
    seed: int
    arm: str

    @property
    def pair(self) -> tuple[str, str, str, str, int]:
        """The same for the three arms that are compared with each other."""
        return self.matrix, self.dataset, self.model, self.schedule, self.seed


@dataclass(frozen=True)
class PublishedRun:
    """A run as its folder has it. `ranks`: the lines of each rank, in the order of the ranks;
    `exits`: the steps at which all ranks left together after a flush, by the attempts' output.
    """

    folder: Path
    name: RunName
    ranks: tuple[tuple[RankStep, ...], ...]
    saves: tuple[SaveLine, ...]
    supervisor: SupervisorEnd
    exits: tuple[int, ...]
    divergence: Divergence | None
    correctness: Correctness | None

    @property
    def metrics(self) -> Path:
        """The folder of what the authors worked out of this run."""
        return _metrics(self.folder)

    @cached_property
    def steps(self) -> tuple[dict[int, RankStep], ...]:
        """The last line of each step, by rank."""
        return tuple({line.global_step: line for line in lines} for lines in self.ranks)

    @property
    def published_clock_s(self) -> float:
        """From rank 0's first line to its last: what the published goodput divides by."""
        return self.ranks[0][-1].time - self.ranks[0][0].time

    @property
    def replayed(self) -> int:
        """Steps that rank 0 logged again."""
        return len(self.ranks[0]) - len(self.steps[0])

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """From rank 0's last line before each failure to its next."""
        lines = self.ranks[0]
        ends = {step: index for index, step in enumerate(line.global_step for line in lines)}
        return tuple(
            lines[ends[step] + 1].time - lines[ends[step]].time
            for step in self.exits
            if ends.get(step, len(lines)) + 1 < len(lines)
        )

    @property
    def slowest_step_s(self) -> float:
        """The longest time between two lines of rank 0 that no failure lies between."""
        exits = set(self.exits)
        return max(
            (
                after.time - before.time
                for before, after in pairwise(self.ranks[0])
                if before.global_step not in exits
            ),
            default=0.0,
        )


def read_runs(folder: Path) -> list[PublishedRun]:
    """The runs below `folder`, in the order of their folders. ConfigError if there are none,
    RecordError for a file of one that is damaged or missing.
    """
    runs = [_read_run(path, name) for path, name in _run_folders(folder)]
    if not runs:
        raise ConfigError(
            shown(str(folder)),
            "no run of the published form is below it (logs/RUN/rank0.jsonl)",
            f"fetch {REPOSITORY} and name its folder `results`",
        )
    return runs


def _run_folders(folder: Path) -> Iterator[tuple[Path, RunName]]:
    count = 0
    depth = len(folder.parts)
    for place, folders, files in os.walk(folder):
        folders.sort()
        path = Path(place)
        if len(path.parts) - depth >= _MOST_DEPTH:
            folders.clear()
        matched = _NAME.fullmatch(path.name)
        if matched is None or "rank0.jsonl" not in files:
            continue
        count += 1
        if count > _MOST_RUNS:
            raise ConfigError(shown(str(folder)), f"more than {_MOST_RUNS} runs", "name fewer")
        words = matched.groupdict()
        yield (
            path,
            RunName(
                words["matrix"],
                words["dataset"],
                words["model"],
                words["schedule"],
                int(words["every"]),
                int(words["inflight"]),
                int(words["seed"]),
                ARMS[words["arm"]],
            ),
        )


def _read_run(folder: Path, name: RunName) -> PublishedRun:
    ranks: list[tuple[RankStep, ...]] = []
    while (path := folder / f"rank{len(ranks)}.jsonl").exists():
        ranks.append(_lines(path, RankStep))
    metrics = _metrics(folder)
    divergences = sorted(metrics.glob("divergence_vs_*.json"))
    return PublishedRun(
        folder,
        name,
        tuple(ranks),
        _lines(folder / "checkpoint_rank0.jsonl", SaveLine),
        _document(folder / "supervisor.json", SupervisorEnd),
        tuple(_exits(folder)),
        _document(divergences[0], Divergence) if divergences else None,
        _document(path, Correctness) if (path := metrics / "correctness.json").exists() else None,
    )


def _metrics(folder: Path) -> Path:
    return folder.parent.parent / "metrics" / folder.name


def _exits(folder: Path) -> Iterator[int]:
    for path in sorted(folder.glob("attempt_*.log")):
        for line, _ in read_lines(path):
            if matched := _EXIT.search(line.decode(errors="replace")):
                yield int(matched[1])


def _lines(path: Path, kind: type[T]) -> tuple[T, ...]:
    decode = msgspec.json.Decoder(kind).decode
    lines = []
    try:
        for number, (line, _) in enumerate(read_lines(path), start=1):
            try:
                lines.append(decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise _damaged(f"{path}:{number}", error) from error
    except FileNotFoundError as error:
        raise _missing(path) from error
    if not lines:
        raise RecordError(str(path), "is empty", "fetch the runs again")
    return tuple(lines)


def _document(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(read_whole(path), type=kind)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(str(path), error) from error


def _missing(path: Path) -> RecordError:
    return RecordError(str(path), "is missing", "fetch the runs again, whole")


def _damaged(where: str, error: Exception) -> RecordError:
    return RecordError(where, f"is not of the published form ({error})", "fetch the runs again")
