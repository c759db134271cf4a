"""The integrity check with a single pass over each byte, for scrubs of many checkpoints and for restarts.

`integrity.verify_checkpoint` hashes twice, each file and each tensor. Here the file's SHA-256 stands for both: bytes that match a MANIFEST that
matches its COMMIT are the bytes that the writer hashed tensor by tensor. (Only `verify_checkpoint` would detect a writer whose memory changed
between the two.) All other layers are the same: names, records, sizes, hashes, headers, NaN and infinities. Numbers are checked for NaN and
infinity while they are hashed, at the places that the manifest implies; the header, parsed only after its hash is known, must confirm these
places, else the numbers are read again. So are those of a `.pt` file, whose layout the manifest does not imply.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ecrl_cli.checkpoint.format.canonical_json import parse
from ecrl_cli.checkpoint.format.hashing import workers
from ecrl_cli.checkpoint.format.image import DTYPES, TensorPlace
from ecrl_cli.checkpoint.format.manifest import PartEntry, expected_places
from ecrl_cli.checkpoint.format.names import must_be_finite
from ecrl_cli.checkpoint.format.tensor_table import all_finite
from ecrl_cli.checkpoint.format.train_document import check_train_document
from ecrl_cli.checkpoint.store.integrity import (
    CheckpointRejected,
    IntegrityConfig,
    IntegrityReport,
    OpenCheckpoint,
    layer,
    opened,
    report_of,
    tensor_files,
    tensor_places,
)
from ecrl_cli.storage.fs import Fs, PosixFs
from ecrl_cli.storage.safe_read import pieces


def examine_once(path: Path, config: IntegrityConfig | None = None, fs: Fs | None = None) -> IntegrityReport:
    """As `integrity.verify_checkpoint`, without the hashes of the tensors."""
    found = OpenCheckpoint()
    config, fs = config or IntegrityConfig(), fs or PosixFs()
    try:
        with opened(path, config, fs, found):
            _check_contents(fs, found, config)
    except CheckpointRejected as refused:
        return report_of(path, found, refused)
    return report_of(path, found)


def _check_contents(fs: Fs, found: OpenCheckpoint, config: IntegrityConfig) -> None:
    assert found.manifest is not None
    entries, finite = found.manifest.parts, config.finite
    with ThreadPoolExecutor(workers()) as pool:
        jobs = {name: pool.submit(partial(_look, fs, name, fd, entries[name], finite)) for name, fd in found.files.items()}
        results = {name: job.result() for name, job in jobs.items()}
    with layer("schema"):
        (check_train_document if config.restorable else parse)(found.train)
    laid_out = {name: tensor_places(fs, name, fd, entries[name], found.train) for name, fd in tensor_files(found)}
    for name, found_places in laid_out.items():
        wanted = [place for place in found_places if must_be_finite(place.spec.name, finite)]
        _check_finite(fs, found.files[name], wanted, results[name])


def _look(fs: Fs, name: str, fd: int, entry: PartEntry, finite: str) -> dict[TensorPlace, bool]:
    """Hash a part; returns, for each expected place of a tensor that must be finite, whether it is."""
    state, start = hashlib.sha256(), 0
    expected = expected_places(entry) if name.endswith(".safetensors") else []
    # aligned to its element size, so that no number is split between pieces
    aligned = [place for place in expected if place.offset % DTYPES[place.spec.dtype][1] == 0]
    numbers = _Numbers([place for place in aligned if must_be_finite(place.spec.name, finite)])
    with layer("hash"):
        for piece in pieces(fs, fd, 0, entry.bytes):
            state.update(piece)
            numbers.look(piece, start)
            start += len(piece)
        if state.hexdigest() != entry.sha256:
            raise ValueError(f"{name} does not match its SHA-256")
    return numbers.finite


class _Numbers:
    """Checks the numbers at the places `expected` (in file order) for NaN and infinity while their file is read in pieces."""

    def __init__(self, expected: list[TensorPlace]) -> None:
        self.expected, self._at = expected, 0
        self.finite = dict.fromkeys(expected, True)

    def look(self, piece: memoryview, start: int) -> None:
        while self._at < len(self.expected):
            place = self.expected[self._at]
            if place.offset >= start + len(piece):
                break
            self.finite[place] = self.finite[place] and _all_finite(place, piece, start)
            if place.offset + place.spec.nbytes > start + len(piece):
                break
            self._at += 1


def _all_finite(place: TensorPlace, piece: memoryview, start: int) -> bool:
    """Whether the numbers of `place` inside `piece`, which begins at byte `start`, are finite."""
    first, last = max(place.offset, start), min(place.offset + place.spec.nbytes, start + len(piece))
    return first >= last or all_finite(place.spec.dtype, piece[first - start : last - start])


def _check_finite(fs: Fs, fd: int, wanted: list[TensorPlace], seen: dict[TensorPlace, bool]) -> None:
    with layer("tensors"):
        for place in wanted:
            finite = seen[place] if place in seen else _read_finite(fs, fd, place)
            if not finite:
                raise CheckpointRejected("finite", f"{place.spec.name[:80]} holds NaN or infinity")


def _read_finite(fs: Fs, fd: int, place: TensorPlace) -> bool:
    """Read a tensor again that was not at its expected place; whether all its numbers are finite."""
    start, finite = place.offset, True
    for piece in pieces(fs, fd, place.offset, place.offset + place.spec.nbytes):
        finite = finite and _all_finite(place, piece, start)
        start += len(piece)
    return finite
