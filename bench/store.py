"""How fast the store saves: `python -m bench.store` measures, in one run with interleaved arms, and
prints JSON.

The state of ResNet-50 with momentum (about 195 MB), from live tensors to acknowledged: ECRL's group
(atomic_dirsync, every hash, captured into a reused shared slot as the strategies do),
torch.distributed.checkpoint.save, and torch.save made durable (sync, rename, directory sync); and
the floor, which copies nothing and hashes nothing: as many bytes by O_DIRECT from a reused buffer,
then a sync. Beside it what BLAKE3 and the chunk sums alone cost on all cores, and the same group
with checkpoint.digest=sha256. Then a small group (128 KiB model, 64 KiB optimizer) in the safest
and the weakest write mode. The order of the arms turns from round to round; ratios are medians of
the rounds' ratios. Absolute numbers belong to this machine and this minute.
"""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from bench.goals import at_most, note
from bench.program import add_folder_option, bench_folder, show
from bench.runs import machine
from blake3 import blake3
from torchvision.models import resnet50

from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.capture.staging_buffer import CapturePlanner, StagingBuffer
from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.format.hashing import chunk_sums, workers
from ecrl_cli.checkpoint.format.image import CheckpointImage, CheckpointMeta
from ecrl_cli.checkpoint.format.names import DIGEST, TRAIN
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import synthetic_image, synthetic_plan
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.storage.writing import WriteMode

GOALS = {
    "group save / DCP.save": 0.6,
    "group save / torch.save made durable": 0.6,
    "group save / O_DIRECT write and sync": 1.3,
    "small group, atomic_dirsync / unsafe": 3.0,
}
_RUN_ID = "0" * 64
_CHUNK = 8 * 2**20


class Sampler:
    """The cursor is the step: there is no data order here."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class State:
    """ResNet-50 with momentum, and its number of saves."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = resnet50(num_classes=10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.optimizer.step()
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10_000)
        self.train_state = TrainState(self.model, self.optimizer, scheduler, None, Sampler(), 0, 1)

    def document(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def group(
    state: State, root: Path, name: str, *, from_slot: bool = False, digest: str = DIGEST
) -> Callable[[int], float]:
    """ECRL's save: the copy into the slot and the commit; with `from_slot` the commit alone, as the
    background writer does it.
    """
    store = CheckpointStore(root / name, StoreConfig(keep=2, digest=digest))
    store.claim(0)
    snapshotter = CapturePlanner(state.train_state, "")
    layout = snapshotter.refresh(state.train_state.gather(TrainPosition(0, 0, 0, 0, "")))
    slot = StagingBuffer(Memory.create(layout.nbytes), layout, torch.device("cpu"))

    def save(step: int) -> float:
        progress = TrainPosition(step, 0, step, 0, "")
        began = monotonic()
        gathered = state.train_state.gather(progress)
        snapshotter.refresh(gathered)
        slot.capture(snapshotter.found)
        train = state.train_state.train_document(progress, gathered.line_chain)
        began = monotonic() if from_slot else began
        image = CheckpointImage(
            CheckpointMeta(_RUN_ID, step, 0, step, 0, 1),
            slot.memory.view,
            layout.parts(step, 0),
            {TRAIN: train},
        )
        saved = store.save(image, 0)
        seconds = monotonic() - began
        store.update_pointers_and_retire(saved, image)
        return seconds

    return save


def dcp_save(state: State, root: Path) -> Callable[[int], float]:
    def save(step: int) -> float:
        folder = root / f"dcp-{step}"
        began = monotonic()
        dcp.save(state.document(), checkpoint_id=str(folder), no_dist=True)
        seconds = monotonic() - began
        shutil.rmtree(folder)
        return seconds

    return save


def torch_save(state: State, root: Path) -> Callable[[int], float]:
    """torch.save as a careful user makes it durable: the protocol of atomic_dirsync for one
    file.
    """

    def save(step: int) -> float:
        path, temporary = root / f"torch-{step}.pt", root / "torch.tmp"
        began = monotonic()
        with temporary.open("wb") as file:
            torch.save(state.document(), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        folder = os.open(root, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        seconds = monotonic() - began
        path.unlink()
        return seconds

    return save


def floor(nbytes: int, root: Path) -> Callable[[int], float]:
    """As many bytes from a reused, touched buffer, past the page cache, and a sync."""
    buffer = mmap.mmap(-1, _CHUNK)
    buffer.write(os.urandom(_CHUNK))
    view = memoryview(buffer)

    def save(step: int) -> float:
        path = root / f"floor-{step}"
        began = monotonic()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_DIRECT", 0), 0o600)
        left = nbytes // 4096 * 4096
        while left:
            left -= os.write(fd, view[: min(left, _CHUNK)])
        os.fsync(fd)
        os.close(fd)
        seconds = monotonic() - began
        path.unlink()
        return seconds

    return save


def digests(nbytes: int) -> Callable[[int], float]:
    """Digests and chunk sums of as many bytes, on all cores, and nothing else."""
    pool, data = ThreadPoolExecutor(workers()), memoryview(bytearray(os.urandom(_CHUNK)))

    def save(step: int) -> float:
        began = monotonic()
        jobs = [
            pool.submit(job, data)
            for _ in range(nbytes // _CHUNK + 1)
            for job in (blake3, chunk_sums)
        ]
        for job in jobs:
            job.result()
        return monotonic() - began

    return save


def small(root: Path, name: str, mode: WriteMode) -> Callable[[int], float]:
    store = CheckpointStore(root / name, StoreConfig(mode=mode, keep=2))
    store.claim(0)
    plan = synthetic_plan(128 * 1024, 64 * 1024)

    def save(step: int) -> float:
        image = synthetic_image(0, step, plan)
        began = monotonic()
        saved = store.save(image, 0)
        seconds = monotonic() - began
        store.update_pointers_and_retire(saved, image)
        return seconds

    return save


def measure(arms: dict[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds per arm and round; the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            spent = arms[name](number + 1)
            if number:
                seconds[name].append(spent)
    return seconds


def median_ratio(seconds: dict[str, list[float]], over: str, under: str) -> float:
    return statistics.median(a / b for a, b in zip(seconds[over], seconds[under], strict=True))


def _bound(large: dict[str, list[float]]) -> float:
    rounds = zip(large["from_slot"], large["floor"], large["digests"], strict=True)
    return statistics.median(saved / max(written, hashed) for saved, written, hashed in rounds)


def summary(
    large: dict[str, list[float]], tiny: dict[str, list[float]], nbytes: int
) -> dict[str, Any]:
    ratios = {
        "group save / DCP.save": median_ratio(large, "group", "dcp_save"),
        "group save / torch.save made durable": median_ratio(large, "group", "torch_save"),
        "group save / O_DIRECT write and sync": median_ratio(large, "group", "floor"),
        "small group, atomic_dirsync / unsafe": median_ratio(tiny, "atomic_dirsync", "unsafe"),
    }
    control = {
        "A/A: group / group": median_ratio(large, "group_again", "group"),
        "A/A: floor / floor": median_ratio(large, "floor_again", "floor"),
        "from a captured slot / O_DIRECT write and sync": median_ratio(large, "from_slot", "floor"),
        "from a captured slot / the slower of floor and digests on all cores": _bound(large),
        "group save with checkpoint.digest=sha256 / group save": median_ratio(
            large, "sha256", "group"
        ),
        "A/A: small group / small group": median_ratio(
            tiny, "atomic_dirsync_again", "atomic_dirsync"
        ),
    }
    conclusive = all(
        abs(value - 1) <= 0.03 for name, value in control.items() if name.startswith("A/A")
    )
    everything = {**large, **{f"small {name}": values for name, values in tiny.items()}}
    return {
        "ratios": {name: round(value, 4) for name, value in ratios.items()},
        "goals": {name: at_most(ratios[name], goal) for name, goal in GOALS.items()},
        "controls": {name: round(value, 4) for name, value in control.items()},
        "conclusive": conclusive,
        "note": note(conclusive),
        "milliseconds": {
            name: round(statistics.median(values) * 1e3, 2) for name, values in everything.items()
        },
        "megabytes": round(nbytes / 1e6, 1),
        "rounds": len(large["floor"]),
        "machine": machine(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how fast the store saves; prints JSON.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--small-rounds", type=int, default=100)
    add_folder_option(parser)
    options = parser.parse_args()
    state = State()
    nbytes = sum(source.find().nbytes for source in state.train_state.sources())
    with bench_folder("store", options.folder) as root:
        arms = {
            "group": group(state, root, "group"),
            "floor": floor(nbytes, root),
            "from_slot": group(state, root, "from_slot", from_slot=True),
            "group_again": group(state, root, "group_again"),
            "floor_again": floor(nbytes, root),
            "digests": digests(nbytes),
            "sha256": group(state, root, "sha256", digest="sha256"),
            "torch_save": torch_save(state, root),
            "dcp_save": dcp_save(state, root),
        }
        large = measure(arms, options.rounds)
        unsafe = WriteMode(sync_files=False, atomic=False, sync_directories=False)
        modes = {
            "atomic_dirsync": WriteMode(),
            "unsafe": unsafe,
            "atomic_dirsync_again": WriteMode(),
        }
        tiny = measure(
            {name: small(root, f"small-{name}", mode) for name, mode in modes.items()},
            options.small_rounds,
        )
    return show("store", summary(large, tiny, nbytes))


if __name__ == "__main__":
    sys.exit(main())
