"""Bytes of a checkpoint damaged in memory: faults drawn at random over realistic content, and every
position of a small checkpoint in turn.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ecrl_cli.checkpoint.format.names import COMMIT, LATEST, MANIFEST
from ecrl_cli.checkpoint.store.catalog import newest_valid
from ecrl_cli.checkpoint.store.integrity import IntegrityReport, verify_checkpoint
from ecrl_cli.config.schema import LAYOUTS
from ecrl_cli.storage.writing import BLOCK
from ecrl_cli.studies.corruption.content import PUBLISHED, committed, training_specs
from ecrl_cli.studies.corruption.in_memory import (
    ROOT,
    BytesFs,
    CheckOutcome,
    Files,
    OutcomeCounts,
    outcome,
    verdict_of,
    verify_files,
)
from ecrl_cli.studies.frame.store_fixture import GUARD
from ecrl_cli.studies.frame.study import Arm, StudyContext, Trial, asked

Fault = Callable[[bytes, random.Random], bytes]


def bitflip(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(8 * len(data))
    return put(data, place // 8, bytes([data[place // 8] ^ 1 << place % 8]))


def zerorange(data: bytes, rng: random.Random) -> bytes:
    """Zero a range of one byte up to a block, with log-uniform length."""
    start, size = _range(data, rng)
    return put(data, start, bytes(size))


def garbage(data: bytes, rng: random.Random) -> bytes:
    start, size = _range(data, rng)
    return put(data, start, rng.randbytes(size))


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def extend(data: bytes, rng: random.Random) -> bytes:
    return data + (bytes if rng.random() < 0.5 else rng.randbytes)(1 + rng.randrange(BLOCK))


def duplicate_block(data: bytes, rng: random.Random) -> bytes:
    """Write a block over another one."""
    source, target = _two_blocks(data, rng)
    return put(data, target, data[source : source + BLOCK])[: len(data)]


def swap_blocks(data: bytes, rng: random.Random) -> bytes:
    first, second = sorted(_two_blocks(data, rng))
    size = min(BLOCK, len(data) - second)
    return put(put(data, first, data[second : second + size]), second, data[first : first + size])


PUBLISHED_FAULTS: dict[str, Fault] = {
    "bitflip": bitflip,
    "zerorange": zerorange,
    "truncate": truncate,
}
IN_A_FILE: dict[str, Fault] = PUBLISHED_FAULTS | {
    "garbage": garbage,
    "extend": extend,
    "duplicate_block": duplicate_block,
    "swap_blocks": swap_blocks,
}
SWAP_PARTS = "swap_parts"
# minimum file size for the fault, in bytes
SMALLEST = {"duplicate_block": 2 * BLOCK, "swap_blocks": 2 * BLOCK}


def zeros_over_zeros(data: bytes, rng: random.Random) -> bytes:
    """Zero a range that is zero already: the published study counted one as missed; it must be
    accepted.
    """
    places = [start for start in range(len(data) - 2) if data[start : start + 3] == bytes(3)]
    return put(data, rng.choice(places), bytes(3)) if places else data


def put(data: bytes, start: int, piece: bytes) -> bytes:
    return data[:start] + piece + data[start + len(piece) :]


def _range(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data))
    return start, min(int(2 ** rng.uniform(0, 12)), len(data) - start)


def _two_blocks(data: bytes, rng: random.Random) -> tuple[int, int]:
    first, second = rng.sample(range(-(-len(data) // BLOCK)), 2)
    return first * BLOCK, second * BLOCK


RANDOM_SLICE = 50
RANDOM_FAULTS = (*IN_A_FILE, SWAP_PARTS)


def _random_trials(setting: StudyContext) -> list[Trial]:
    """Slices of each fault, one checkpoint per slice, alternating the layouts."""
    found, count = [], setting.config.study.random
    for number, start in enumerate(range(0, count, RANDOM_SLICE)):
        for fault in RANDOM_FAULTS:
            layout = "group" if fault == SWAP_PARTS else LAYOUTS[number % 2]
            facts = {
                "arm": "random",
                "fault": fault,
                "layout": layout,
                "injections": min(RANDOM_SLICE, count - start),
            }
            found.append(Trial(f"random/{fault}/{number:04d}", facts))
    return found


def run_random(setting: StudyContext, trial: Trial) -> dict[str, Any]:
    rng, fault, counts = setting.rng(trial.key), str(trial.facts["fault"]), OutcomeCounts()
    name, files = two_ranks(setting, rng.getrandbits(48), single=trial.facts["layout"] == "single")
    for number in range(int(trial.facts["injections"])):
        changed, where = injured(files, fault, rng)
        verdict = verify_files(changed, name)
        counts.add(
            outcome(verdict, changed != files), verdict, changed != files, f"{number}: {where}"
        )
    return counts.found()


def two_ranks(setting: StudyContext, seed: int, *, single: bool) -> tuple[str, dict[str, bytes]]:
    """A committed checkpoint of two ranks with a predecessor: its name, and its files."""
    name, files = committed(
        setting.scratch / "run", training_specs(*PUBLISHED, world_size=2), seed, single=single
    )
    return name, {path: data for path, data in files.items() if path.startswith(_NAME)}


def injured(files: Files, fault: str, rng: random.Random) -> tuple[dict[str, bytes], str]:
    """`files` after one fault, and its position."""
    if fault == SWAP_PARTS:
        first, second = rng.sample(sorted(files), 2)
        return dict(files) | {first: files[second], second: files[first]}, f"{first} and {second}"
    name = rng.choice(
        [name for name in sorted(files) if len(files[name]) >= SMALLEST.get(fault, 1)]
    )
    return dict(files) | {name: IN_A_FILE[fault](files[name], rng)}, name


EXHAUSTIVE_SLICE = 2000
SMALL = (1200, 600, 1, 600)  # bytes of model and optimizer, ranks, bytes of the generator
_ALL, _ENDS = range(8), (0, 7)
_NAME = "step_00000020"


@dataclass(frozen=True)
class Region:
    """The bit flips of one file (each of `bits` in each byte) and its truncations (to every
    `stride`th length), numbered consecutively.
    """

    name: str
    data: bytes
    bits: tuple[int, ...]
    stride: int

    @property
    def flips(self) -> int:
        return len(self.data) * len(self.bits)

    def __len__(self) -> int:
        return self.flips + -(-len(self.data) // self.stride)

    def mutated(self, number: int) -> tuple[bytes, str]:
        """The file after mutation `number`, and a description of it."""
        if number >= self.flips:
            length = (number - self.flips) * self.stride
            return self.data[:length], f"{self.name} cut to {length} bytes"
        place, bit = number // len(self.bits), self.bits[number % len(self.bits)]
        return (
            put(self.data, place, bytes([self.data[place] ^ 1 << bit])),
            f"{self.name} byte {place} bit {bit}",
        )


def _files(context: StudyContext) -> dict[str, dict[str, bytes]]:
    """The files of a small store, by layout; identical in every process, and so are the
    mutations.
    """
    return {layout: _small(context, single=layout == "single") for layout in LAYOUTS}


def regions(context: StudyContext, layout: str) -> list[Region]:
    """Records and pointer: every bit and every length. Parts: first and last bit of each byte,
    every 7th length.
    """
    found = []
    for name, data in context.shared(_files)[layout].items():
        record = name.endswith((MANIFEST, COMMIT, LATEST, _NAME + ".json"))
        if name.startswith(_NAME) or name == LATEST:
            found.append(
                Region(
                    name, data, tuple(_ALL if record else _ENDS), 1 if name.endswith(".json") else 7
                )
            )
    return found


def _exhaustive_trials(context: StudyContext) -> list[Trial]:
    found = []
    for layout in LAYOUTS:
        for region in regions(context, layout):
            for start in range(0, len(region), EXHAUSTIVE_SLICE):
                facts = {
                    "arm": "exhaustive",
                    "layout": layout,
                    "file": region.name,
                    "start": start,
                    "stop": min(start + EXHAUSTIVE_SLICE, len(region)),
                }
                found.append(
                    Trial(
                        f"exhaustive/{layout}/{region.name.rpartition('/')[2]}/{start:06d}", facts
                    )
                )
    return found


def run_exhaustive(context: StudyContext, trial: Trial) -> dict[str, Any]:
    layout, counts = str(trial.facts["layout"]), OutcomeCounts()
    region = next(
        region for region in regions(context, layout) if region.name == trial.facts["file"]
    )
    for number in range(trial.facts["start"], trial.facts["stop"]):
        data, where = region.mutated(number)
        verdict = _verify(context.shared(_files)[layout] | {region.name: data}, layout, region.name)
        # no decision reads the pointer: whatever it says, recovery finds the newest checkpoint
        changed = region.name != LATEST
        counts.add(outcome(verdict, changed), verdict, changed, where)
    return counts.found()


def _verify(files: dict[str, bytes], layout: str, name: str) -> CheckOutcome:
    newest = _NAME if layout == "group" else _NAME + ".safetensors"
    if name != LATEST:
        return verify_files(files, newest)
    fs = BytesFs(files)

    def chosen() -> IntegrityReport:
        report = newest_valid(fs, ROOT, lambda path: verify_checkpoint(path, GUARD, fs)).report
        right = report is not None and report.path.name == newest
        return (
            report
            if report and right
            else IntegrityReport(
                ROOT / newest, False, "pointer", "recovery chose another checkpoint"
            )
        )

    return verdict_of(chosen)


def _small(context: StudyContext, *, single: bool) -> dict[str, bytes]:
    name, files = committed(
        context.scratch / "small", training_specs(*SMALL), context.seed, single=single
    )
    pointer = {"path": name, "epoch": 0, "global_step": 20, "world_size": 1, "timestamp": 0.0}
    return files | {LATEST: (json.dumps(pointer, sort_keys=True) + "\n").encode()}


RANDOM = Arm("random", _random_trials, run_random, asked("random"))
EXHAUSTIVE = Arm("exhaustive", _exhaustive_trials, run_exhaustive, asked("exhaustive"))
