"""What a scrub costs, and what it finds: `python -m bench.scrub` measures in one run with
interleaved arms, and prints JSON.

Two checkpoints of ResNet-50's size (model and momentum, 195 MiB each). Arms, the order reversed
every other round: our scrub (twice: the A/A control), `--deep`, reading the same files by direct
I/O and from the page cache, BLAKE3 of the same bytes in memory with a thread per core; and our
scrub after the files were dropped from the page cache. Ratios are medians of the rounds' ratios,
against the slower of reading and hashing. Then one random bit at a time is flipped in a small
checkpoint: is the file, the byte and the bit named, and confirmed by the digest?
"""

from __future__ import annotations

import argparse
import mmap
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.goals import at_most, note
from bench.program import add_folder_option, show
from blake3 import blake3

from ecrl_cli.checkpoint.format.hashing import workers
from ecrl_cli.checkpoint.repair.damage import BitFlip
from ecrl_cli.checkpoint.repair.diagnose import diagnose
from ecrl_cli.checkpoint.repair.scrub import ScrubConfig, scrub
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.store.synthetic import synthetic_image, synthetic_plan
from ecrl_cli.linux.clock import monotonic

PART = 102_228_128  # bytes of ResNet-50's parameters and buffers; its momentum is about as large
PIECE = 4 * 2**20
GOAL = 1.15


def make(root: Path, steps: tuple[int, ...], part: int) -> Path:
    """A folder of checkpoints."""
    store = CheckpointStore(root / "checkpoints")
    root.mkdir()
    store.claim(0)
    for step in steps:
        store.save(synthetic_image(1, step, synthetic_plan(part, part)), 0)
    store.close()
    return store.root


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.parent != folder)


def in_threads(jobs: list[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(workers()) as pool:
        for future in [pool.submit(job) for job in jobs]:
            future.result()


def read_all(files: list[Path], *, direct: bool) -> None:
    in_threads([lambda path=path: read(path, direct=direct) for path in files])  # type: ignore[misc]


def read(path: Path, *, direct: bool) -> None:
    buffer = mmap.mmap(-1, PIECE)  # aligned
    fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    try:
        offset = 0
        while got := os.preadv(fd, [buffer], offset):
            offset += got
            if got % 4096:
                break
    finally:
        os.close(fd)


def drop(files: list[Path]) -> None:
    """Out of the page cache."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def digest_all(contents: list[bytes]) -> None:
    in_threads([lambda data=data: blake3(data).digest() for data in contents])  # type: ignore[misc]


def seconds(job: Callable[[], object]) -> float:
    began = monotonic()
    job()
    return monotonic() - began


def speed(folder: Path, rounds: int) -> dict[str, list[float]]:
    files = files_of(folder)
    contents = [path.read_bytes() for path in files]

    def ours(config: ScrubConfig | None = None) -> None:
        found = scrub(folder, config=config)
        assert found.valid == found.total == 2

    arms: dict[str, Callable[[], object]] = {
        "read": lambda: read_all(files, direct=False),
        "scrub": ours,
        "blake3": lambda: digest_all(contents),
        "scrub_again": ours,
        "deep": lambda: ours(ScrubConfig(deep=True)),
        "read_direct": lambda: read_all(files, direct=True),
        "scrub_cold": ours,
    }
    found: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name in arms if number % 2 else reversed(arms):
            if name == "scrub_cold":
                drop(files)
            took = seconds(arms[name])
            if number:  # the first round warms up
                found[name].append(took)
    return found


def flips(root: Path, count: int) -> dict[str, int]:
    """Flip one bit at a time, anywhere in any file in proportion to its size."""
    folder = make(root, (10,), 1_000_000)
    generator, files = random.Random(1337), files_of(folder)
    sizes = [path.stat().st_size for path in files]
    named = 0
    for _ in range(count):
        path = generator.choices(files, sizes)[0]
        flip = BitFlip(generator.randrange(path.stat().st_size), generator.randrange(8))
        turn(path, flip)
        found = diagnose(folder / "step_00000010")
        named += [(one.file, one.flips, one.repairable) for one in found.findings] == [
            (path.name, (flip,), True)
        ]
        turn(path, flip)
    return {"flipped": count, "named_and_confirmed": named}


def turn(path: Path, flip: BitFlip) -> None:
    with path.open("r+b") as file:
        file.seek(flip.offset)
        (byte,) = file.read(1)
        file.seek(flip.offset)
        file.write(bytes([byte ^ 1 << flip.bit]))


def median_ratio(found: dict[str, list[float]], over: str, *under: str) -> float:
    """Against the slowest of `under`, round by round."""
    floors = [max(values) for values in zip(*(found[name] for name in under), strict=True)]
    return statistics.median(a / b for a, b in zip(found[over], floors, strict=True))


def summary(found: dict[str, list[float]], nbytes: int) -> dict[str, Any]:
    ratios = {
        "scrub / max(read, BLAKE3), warm": median_ratio(found, "scrub", "read", "blake3"),
        "scrub / max(read, BLAKE3), cold": median_ratio(
            found, "scrub_cold", "read_direct", "blake3"
        ),
    }
    controls = {
        "A/A: scrub / scrub": median_ratio(found, "scrub_again", "scrub"),
        "deep / max(read, BLAKE3), warm": median_ratio(found, "deep", "read", "blake3"),
    }
    conclusive = abs(controls["A/A: scrub / scrub"] - 1) <= 0.03
    return {
        "ratios": {name: round(value, 4) for name, value in ratios.items()},
        "goals": {name: at_most(value, GOAL) for name, value in ratios.items()},
        "controls": {name: round(value, 4) for name, value in controls.items()},
        "conclusive": conclusive,
        "note": note(conclusive),
        "milliseconds": {
            name: round(statistics.median(values) * 1e3, 1) for name, values in found.items()
        },
        "spread": {name: round(max(values) / min(values), 2) for name, values in found.items()},
        "megabytes": round(nbytes / 1e6),
        "rounds": len(found["scrub"]),
        "machine": {
            "cores": os.cpu_count(),
            "threads": workers(),
            "python": platform.python_version(),
            "load": os.getloadavg(),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure what a scrub costs and whether it names flipped bits; prints JSON."
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--flips", type=int, default=1000)
    add_folder_option(parser)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-scrub-", dir=options.folder or Path.cwd()))
    document: dict[str, Any] = {}
    try:
        if options.rounds:
            folder = make(root / "speed", (10, 20), PART)
            document |= summary(
                speed(folder, options.rounds), sum(path.stat().st_size for path in files_of(folder))
            )
        document["flips"] = flips(root / "flips", options.flips)
    finally:
        with suppress(OSError):
            shutil.rmtree(root)
    missed = show("scrub", document)
    return missed or int(document["flips"]["named_and_confirmed"] != options.flips)


if __name__ == "__main__":
    sys.exit(main())
