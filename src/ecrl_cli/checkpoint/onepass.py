"""The guard's answer at the price of one look at each byte: what a scrub of many checkpoints asks, and a restart.

`guard.examine` hashes twice, each file and each tensor. Here the file's SHA-256 stands for both: bytes that match a MANIFEST that matches its
COMMIT are the bytes that the writer hashed tensor by tensor. (Only `examine` would see a writer whose memory changed between the two.) All other
layers are the guard's: names, records, sizes, hashes, headers, NaN and infinities. The numbers are looked at while they are hashed, where by the
manifest they must lie; the header, which is parsed only after its hash is known, has to confirm that, else they are read again.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ecrl_cli.checkpoint.canonical import parse
from ecrl_cli.checkpoint.damage import expected_places
from ecrl_cli.checkpoint.guard import GuardConfig, GuardReport, OpenCheckpoint, Refused, check_header, layer, opened, report_of
from ecrl_cli.checkpoint.hashing import workers
from ecrl_cli.checkpoint.image import DTYPES, TensorPlace
from ecrl_cli.checkpoint.manifest import PartEntry
from ecrl_cli.storage.fs import Fs, PosixFs
from ecrl_cli.storage.reading import pieces


def examine_once(path: Path, config: GuardConfig | None = None, fs: Fs | None = None) -> GuardReport:
    """As `guard.examine`, without the digests of the tensors."""
    found = OpenCheckpoint()
    config, fs = config or GuardConfig(), fs or PosixFs()
    try:
        with opened(path, config, fs, found):
            _check_contents(fs, found)
    except Refused as refused:
        return report_of(path, found, refused)
    return report_of(path, found)


def _check_contents(fs: Fs, found: OpenCheckpoint) -> None:
    assert found.manifest is not None
    entries = found.manifest.parts
    with ThreadPoolExecutor(workers()) as pool:
        looks = {name: pool.submit(partial(_look, fs, name, fd, entries[name])) for name, fd in found.files.items()}
        guesses = {name: look.result() for name, look in looks.items()}
    with layer("schema"):
        parse(found.train)
    tensors = [name for name in found.files if name.endswith(".safetensors")]
    laid_out = {name: check_header(fs, name, found.files[name], entries[name]) for name in tensors}
    for name, found_places in laid_out.items():
        _check_finite(fs, found.files[name], found_places, guesses[name])


def _look(fs: Fs, name: str, fd: int, entry: PartEntry) -> dict[TensorPlace, bool]:
    """Hash a part; gives, for each place where the manifest lets expect numbers of the model, whether all are finite."""
    state, start = hashlib.sha256(), 0
    numbers = _Numbers([place for place in expected_places(entry) if _has_numbers(place)] if name.endswith(".safetensors") else [])
    with layer("hash"):
        for piece in pieces(fs, fd, 0, entry.bytes):
            state.update(piece)
            numbers.look(piece, start)
            start += len(piece)
        if state.hexdigest() != entry.sha256:
            raise ValueError(f"{name} does not match its SHA-256")
    return numbers.finite


class _Numbers:
    """Looks at the numbers at `expected`, in file order, while their file passes by in pieces."""

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
    """Are the numbers of `place` that lie in `piece`, which begins at byte `start`, finite?"""
    from ecrl_cli.checkpoint.finite import all_finite  # numpy costs a tenth of a second

    first, last = max(place.offset, start), min(place.offset + place.spec.nbytes, start + len(piece))
    return first >= last or all_finite(place.spec.dtype, piece[first - start : last - start])


def _has_numbers(place: TensorPlace) -> bool:
    """Of the model, and aligned, so that no number is cut in two between pieces."""
    return place.spec.name.startswith(("parameters.", "buffers.")) and place.offset % DTYPES[place.spec.dtype][1] == 0


def _check_finite(fs: Fs, fd: int, laid_out: list[TensorPlace], seen: dict[TensorPlace, bool]) -> None:
    with layer("tensors"):
        for place in laid_out:
            if not place.spec.name.startswith(("parameters.", "buffers.")):
                continue
            finite = seen[place] if place in seen else _read_finite(fs, fd, place)
            if not finite:
                raise Refused("finite", f"{place.spec.name[:80]} holds NaN or infinity")


def _read_finite(fs: Fs, fd: int, place: TensorPlace) -> bool:
    """Where the file is laid out in another way than ours."""
    start, finite = place.offset, True
    for piece in pieces(fs, fd, place.offset, place.offset + place.spec.nbytes):
        finite = finite and _all_finite(place, piece, start)
        start += len(piece)
    return finite
