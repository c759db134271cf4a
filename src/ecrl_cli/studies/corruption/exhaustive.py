"""Damages every position of a small checkpoint in turn, in memory, to find bytes covered by no check, which random faults would miss."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import Any

from ecrl_cli.checkpoint.format.names import COMMIT, LATEST, MANIFEST
from ecrl_cli.checkpoint.store.catalog import newest_valid
from ecrl_cli.checkpoint.store.integrity import IntegrityReport, verify_checkpoint
from ecrl_cli.studies.corruption.bytes_fs import ROOT, ShelfFs, look_at, taken
from ecrl_cli.studies.corruption.content import GUARD, image_of, store_in, training_specs
from ecrl_cli.studies.corruption.counts import Counts
from ecrl_cli.studies.corruption.faults import put
from ecrl_cli.studies.corruption.invariants import Look, looked, outcome
from ecrl_cli.studies.frame.study import StudyContext, Trial

ARM = "exhaustive"
LAYOUTS = ("group", "single")
SLICE = 2000
SMALL = (1200, 600, 1, 600)  # bytes of model and optimizer, ranks, bytes of the generator
_ALL, _ENDS = range(8), (0, 7)
_NAME = "step_00000020"


@dataclass(frozen=True)
class Region:
    """The bit flips of one file (each of `bits` in each byte) and its truncations (to every `stride`th length), numbered consecutively."""

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
        return put(self.data, place, bytes([self.data[place] ^ 1 << bit])), f"{self.name} byte {place} bit {bit}"


def _files(context: StudyContext) -> dict[str, dict[str, bytes]]:
    """The files of a small store, by layout; identical in every process, and so are the mutations."""
    return {layout: _committed(context, single=layout == "single") for layout in LAYOUTS}


def regions(context: StudyContext, layout: str) -> list[Region]:
    """Records and pointer: every bit and every length. Parts: first and last bit of each byte, every 7th length."""
    found = []
    for name, data in context.shared(_files)[layout].items():
        record = name.endswith((MANIFEST, COMMIT, LATEST, _NAME + ".json"))
        if name.startswith(_NAME) or name == LATEST:
            found.append(Region(name, data, tuple(_ALL if record else _ENDS), 1 if name.endswith(".json") else 7))
    return found


def trials(context: StudyContext) -> list[Trial]:
    found = []
    for layout in LAYOUTS:
        for region in regions(context, layout):
            for start in range(0, len(region), SLICE):
                facts = {"arm": ARM, "layout": layout, "file": region.name, "start": start, "stop": min(start + SLICE, len(region))}
                found.append(Trial(f"{ARM}/{layout}/{region.name.rpartition('/')[2]}/{start:06d}", facts))
    return found


def run(context: StudyContext, trial: Trial) -> dict[str, Any]:
    layout, tally = str(trial.facts["layout"]), Counts()
    region = next(region for region in regions(context, layout) if region.name == trial.facts["file"])
    for number in range(trial.facts["start"], trial.facts["stop"]):
        data, where = region.mutated(number)
        look = _look(context.shared(_files)[layout] | {region.name: data}, layout, region.name)
        # no decision reads the pointer: whatever it says, recovery finds the newest checkpoint
        changed = region.name != LATEST
        tally.add(outcome(look, changed), look, changed, where)
    return tally.found()


def _look(files: dict[str, bytes], layout: str, name: str) -> Look:
    newest = _NAME if layout == "group" else _NAME + ".safetensors"
    if name != LATEST:
        return look_at(files, newest, GUARD)
    fs = ShelfFs(files)

    def chosen() -> IntegrityReport:
        report = newest_valid(fs, ROOT, lambda path: verify_checkpoint(path, GUARD, fs)).report
        right = report is not None and report.path.name == newest
        return report if report and right else IntegrityReport(ROOT / newest, False, "pointer", "recovery chose another checkpoint")

    return looked(chosen)


def _committed(context: StudyContext, *, single: bool) -> dict[str, bytes]:
    root = context.scratch / "small"
    store = store_in(root)
    try:
        for step in (10, 20):
            saved = store.save(image_of(training_specs(*SMALL), context.seed, step, single=single), 0)
        pointer = {"path": saved.path.name, "epoch": 0, "global_step": 20, "world_size": 1, "timestamp": 0.0}
        return taken(root / "checkpoints") | {LATEST: (json.dumps(pointer, sort_keys=True) + "\n").encode()}
    finally:
        store.close()
        shutil.rmtree(root)
