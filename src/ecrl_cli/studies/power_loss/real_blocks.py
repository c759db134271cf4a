"""The blocks arm: records a file system's disk writes during two saves; rebuilds its crash points,
mounts them and recovers.

Writes before a flush are durable. Of the writes after the last flush any subset may be there, whole
or torn at 4 KiB.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any

from ecrl_cli.errors import EcrlError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.studies.power_loss.disk_mounts import (
    MOUNT_DATA,
    LoopDevice,
    forget_devices,
    make_filesystem,
    memory_disk,
    mount,
    sync_disk,
    unmount,
)
from ecrl_cli.studies.power_loss.disk_server import NAME, DiskWrite, read_log
from ecrl_cli.studies.power_loss.real_process import Answer, Saver, Who, outcome_of, recover

PAGE = 4096
_ALL_SUBSETS_UP_TO = 4  # pending writes: 16 subsets


@dataclass(frozen=True)
class BlockState:
    """The first `prefix` records, without those `dropped`; of the record `torn[0]` only the bytes
    from `torn[1]` to `torn[2]`. `acknowledged`: number of saves acknowledged by then.
    """

    prefix: int
    acknowledged: int
    dropped: tuple[int, ...] = ()
    torn: tuple[int, int, int] | None = None

    def writes(self, log: Sequence[DiskWrite]) -> Iterator[DiskWrite]:
        for index in range(self.prefix):
            record = log[index]
            if record.is_flush or index in self.dropped:
                continue
            if self.torn is not None and self.torn[0] == index:
                record = DiskWrite(
                    record.offset + self.torn[1], record.data[self.torn[1] : self.torn[2]]
                )
            yield record


@dataclass(frozen=True)
class CrashStates:
    """`epochs`: groups of writes between two flushes; `exhausted` of them contribute every subset
    and every tear, the others a sample.
    """

    states: tuple[BlockState, ...]
    prefixes: int
    epochs: int
    exhausted: int


def crash_states(
    log: Sequence[DiskWrite],
    start: int,
    acknowledged: Sequence[int],
    limit: int,
    rng: random.Random,
) -> CrashStates:
    """At most `limit` distinct states from record `start` on: every prefix (a sample with every
    acknowledgement, if `limit` is smaller), then drops and tears, alternating between the epochs.
    `acknowledged[i]`: number of records when save i+1 was acknowledged.
    """
    prefixes = _prefixes(log, start, acknowledged)
    if len(prefixes) > limit:
        kept = [state for state in prefixes if state.prefix in acknowledged]
        others = [state for state in prefixes if state.prefix not in acknowledged]
        chosen = kept + rng.sample(others, max(0, limit - len(kept)))
        prefixes = sorted(chosen, key=lambda state: state.prefix)
    epochs = list(_epochs(log, start))
    drops = _drops(
        log,
        [(members, sum(at <= members[-1] + 1 for at in acknowledged)) for members in epochs],
        limit - len(prefixes),
        rng,
    )
    few = sum(len(members) <= _ALL_SUBSETS_UP_TO for members in epochs)
    return CrashStates(
        (*prefixes, *drops),
        len(prefixes),
        len(epochs),
        few if len(prefixes) + len(drops) < limit else 0,
    )


def _prefixes(
    log: Sequence[DiskWrite], start: int, acknowledged: Sequence[int]
) -> list[BlockState]:
    """Prefixes after every write, and at every acknowledgement."""
    moments = [
        start,
        *(index + 1 for index in range(start, len(log)) if not log[index].is_flush),
        *acknowledged,
    ]
    return [
        BlockState(moment, sum(at <= moment for at in acknowledged))
        for moment in sorted(set(moments))
    ]


def _epochs(log: Sequence[DiskWrite], start: int) -> Iterator[tuple[int, ...]]:
    """Groups of writes between two flushes with more than one write, or with one that can tear."""
    members: list[int] = []
    for index in range(start, len(log) + 1):
        if index < len(log) and not log[index].is_flush:
            members.append(index)
            continue
        if len(members) > 1 or any(len(log[member].data) > PAGE for member in members):
            yield tuple(members)
        members = []


def _drops(
    log: Sequence[DiskWrite],
    epochs: Sequence[tuple[tuple[int, ...], int]],
    budget: int,
    rng: random.Random,
) -> list[BlockState]:
    """States at the end of an epoch with writes dropped, one from each epoch in turn until the
    limit is reached or nothing new comes.
    """
    found: dict[BlockState, None] = {}
    sources = [_subsets(log, members, acknowledged, rng) for members, acknowledged in epochs]
    barren = 0
    while sources and len(found) < budget and barren < 4:
        before = len(found)
        for source in list(sources):
            state = next(source, None)
            if state is None:
                sources.remove(source)
            elif len(found) < budget:
                found[state] = None
        barren = barren + 1 if len(found) == before else 0
    return list(found)


def _subsets(
    log: Sequence[DiskWrite], members: tuple[int, ...], acknowledged: int, rng: random.Random
) -> Iterator[BlockState]:
    prefix = members[-1] + 1
    if len(members) <= _ALL_SUBSETS_UP_TO:
        for count in range(1, len(members)):
            for dropped in combinations(members, count):
                yield BlockState(prefix, acknowledged, dropped)
        for index in members:
            for cut in range(PAGE, len(log[index].data), PAGE):
                yield BlockState(prefix, acknowledged, torn=(index, 0, cut))
        return
    while True:
        share = rng.random()
        dropped = tuple(index for index in members if rng.random() < share) or (
            rng.choice(members),
        )
        kept = [index for index in members if index not in dropped and len(log[index].data) > PAGE]
        yield BlockState(prefix, acknowledged, dropped, _torn(log, kept, rng))


def _torn(
    log: Sequence[DiskWrite], kept: Sequence[int], rng: random.Random
) -> tuple[int, int, int] | None:
    """In half of the cases, one of the longer writes with only its beginning or its end."""
    if not kept or rng.random() < 0.5:
        return None
    index = rng.choice(kept)
    size = len(log[index].data)
    cut = PAGE * rng.randrange(1, -(-size // PAGE))
    return (index, 0, cut) if rng.random() < 0.5 else (index, cut, size)


SAVES = 2
_SERVER = "ecrl_cli.studies.power_loss.disk_server"
_START_S = 20.0
_GO_ON = 4  # recoveries per trial of the next save, which takes as long as the rest


@dataclass(frozen=True)
class BlocksTrial:
    """`states`: maximum number of crash states rebuilt. `seed`: of the choice of missing writes."""

    who: Who
    fs: str
    states: int
    seed: int


@dataclass(frozen=True)
class BlockRecording:
    """`empty`: the content of the disk, of `size` bytes, before mounting. `start`: number of log
    records when the saves began, `acknowledged`: when each save was acknowledged.
    """

    size: int
    empty: tuple[DiskWrite, ...]
    log: tuple[DiskWrite, ...]
    start: int
    acknowledged: tuple[int, ...]


class Blocks:
    """`scratch`: where the disk and its file system are mounted, visible only to this process and
    its children.
    """

    def __init__(self, scratch: Path) -> None:
        self._served, self._place = scratch / "served", scratch / "blocks"

    def run(self, trial: BlocksTrial) -> dict[str, Any]:
        for folder in (self._served, self._place):
            folder.mkdir(exist_ok=True)
        recording = self._record(trial.who, trial.fs)
        chosen = crash_states(
            recording.log,
            recording.start,
            recording.acknowledged,
            trial.states,
            random.Random(trial.seed),
        )
        results = [
            (state, *self._replay(trial, recording, state, go_on=number % _GO_ON == 0))
            for number, state in enumerate(chosen.states)
        ]
        outcomes = [
            outcome_of(answer, state.acknowledged or None, SAVES) for state, answer, _ in results
        ]
        saves = recording.log[recording.start :]
        return {
            "outcomes": dict(sorted(Counter(outcomes).items())),
            "states": len(results),
            "prefixes": chosen.prefixes,
            "epochs": chosen.epochs,
            "exhausted": chosen.exhausted,
            "writes": sum(not record.is_flush for record in saves),
            "flushes": sum(record.is_flush for record in saves),
            "after_acknowledgement": sum(state.acknowledged > 0 for state, _, _ in results),
            "unmountable": sum(not mounted for _, _, mounted in results),
            "stuck": sum(
                answer.recovered is not None and answer.recovered.goes_on is False
                for _, answer, _ in results
            ),
            "example": _example(results, outcomes),
        }

    def _record(self, who: Who, kind: str) -> BlockRecording:
        """Save SAVES times on a fresh file system. Writes of unmounting belong to no crash and are
        not logged.
        """
        disk, log = make_filesystem(kind), os.memfd_create("ecrl-log", os.MFD_CLOEXEC)
        try:
            size, empty = os.fstat(disk).st_size, tuple(_contents(disk))
            with _mounted_from_server(disk, log, self._served, self._place, kind):
                folder = self._place / "run"
                folder.mkdir()
                sync_disk(self._place)
                start = os.fstat(log).st_size
                saver = Saver(who, folder, SAVES, log)
                saver.wait_for_end()
                error = saver.stop()
                sync_disk(self._place)
                end = os.fstat(log).st_size
            if len(saver.acknowledged) != SAVES:
                raise EcrlError(
                    "power-loss",
                    f"{len(saver.acknowledged)} of {SAVES} saves were acknowledged: {error}",
                    "report this",
                )
            records = tuple(read_log(log, end))
        finally:
            os.close(disk)
            os.close(log)
        ends = list(accumulate(record.log_bytes for record in records))
        return BlockRecording(
            size,
            empty,
            records,
            bisect_right(ends, start),
            tuple(bisect_right(ends, at) for _, at in saver.acknowledged),
        )

    def _replay(
        self, trial: BlocksTrial, recording: BlockRecording, state: BlockState, *, go_on: bool
    ) -> tuple[Answer, bool]:
        """Rebuild the disk, mount it so that the file system recovers, then recover; returns the
        answer, and whether it could be mounted.
        """
        disk = memory_disk(recording.size)
        try:
            for record in (*recording.empty, *state.writes(recording.log)):
                os.pwrite(disk, record.data, record.offset)
            device = LoopDevice(disk)
            try:
                forget_devices()
                try:
                    mount(device.path, self._place, trial.fs, MOUNT_DATA[trial.fs])
                except OSError as error:
                    return (
                        Answer(
                            "lost_all" if state.acknowledged else "detected",
                            error=f"mount: {error}",
                        ),
                        False,
                    )
                try:
                    return recover(trial.who, self._place / "run", go_on=go_on), True
                finally:
                    unmount(self._place)
            finally:
                device.close()
        finally:
            os.close(disk)


@contextmanager
def _mounted_from_server(
    disk: int, log: int, served: Path, place: Path, kind: str
) -> Iterator[None]:
    """`kind` mounted at `place`, from a loop device on the file that the server shows at
    `served`.
    """
    command = [sys.executable, "-m", _SERVER, str(served), str(disk), str(log), str(os.getpid())]
    server = subprocess.Popen(
        command, pass_fds=[disk, log], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        _wait_for(served / NAME, server)
        file = os.open(served / NAME, os.O_RDWR | os.O_CLOEXEC)
        try:
            device = LoopDevice(file)
            try:
                mount(device.path, place, kind, MOUNT_DATA[kind])
                try:
                    yield
                finally:
                    unmount(place)
            finally:
                device.close()
        finally:
            os.close(file)
        unmount(served)
    finally:
        server.kill()  # pending requests get an error
        server.wait()


def _wait_for(path: Path, server: subprocess.Popen[bytes]) -> None:
    end = monotonic() + _START_S
    while not path.exists():
        if server.poll() is not None or monotonic() > end:
            raise EcrlError(
                "power-loss",
                f"the disk over FUSE did not start (exit code {server.poll()})",
                "see whether mfusepy and fuse3 are installed",
            )
        time.sleep(0.002)


def _contents(disk: int) -> Iterator[DiskWrite]:
    """The disk's pages that are not zero."""
    zero, at, size = bytes(PAGE), 0, os.fstat(disk).st_size
    while at < size:
        try:
            at = os.lseek(disk, at, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole up to the end
            return
        end = os.lseek(disk, at, os.SEEK_HOLE)
        for offset in range(at, end, PAGE):
            if (data := os.pread(disk, PAGE, offset)) != zero:
                yield DiskWrite(offset, data)
        at = end


def _example(results: list[tuple[BlockState, Answer, bool]], outcomes: list[str]) -> str:
    """The first state with the worst outcome, in words."""
    for worst in ("silent_wrong", "untyped", "hung", "detected", "lost_all", "lost_ack"):
        if worst in outcomes:
            state, answer, _ = results[outcomes.index(worst)]
            lacking = f"without {list(state.dropped)}, torn {state.torn}"
            return (
                f"{worst}: {state.acknowledged} saves acknowledged, {state.prefix} records,"
                f" {lacking} {answer.error}".strip()
            )
    return ""
