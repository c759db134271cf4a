"""What one small file does not show: files read in many pieces, each tensor in turn, and more
damage than a text names.
"""

from __future__ import annotations

import errno
import json
import math
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.capture import loading
from ecrl_cli.checkpoint.capture.loading import load_checkpoint
from ecrl_cli.checkpoint.format.image import CheckpointMeta, TensorPlace, TensorSpec
from ecrl_cli.checkpoint.format.manifest import PartEntry
from ecrl_cli.checkpoint.format.names import (
    CHUNK,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    RNG,
    STAGE_PREFIX,
    TRAIN,
)
from ecrl_cli.checkpoint.repair import record_repair
from ecrl_cli.checkpoint.repair.damage import BitFlip, _Where
from ecrl_cli.checkpoint.repair.diagnose import diagnose
from ecrl_cli.checkpoint.repair.repair import repair
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, verify_checkpoint
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.store.synthetic import RUN_ID, synthetic_image, synthetic_plan
from ecrl_cli.errors import StorageError
from ecrl_cli.storage import safe_read
from ecrl_cli.storage.writing import WriteMode
from ecrl_cli.studies.frame import store_fixture
from tests.recording_fs import RecordingFs
from tests.unit.checkpoint_support import CONFIG, flip, image, store_at

TENSORS = {
    MODEL: ("buffers.steps", "parameters.weight"),
    OPTIMIZER: ("optimizer.weight.momentum_buffer",),
    RNG: ("rng.rank0.torch",),
}


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of several hundred kilobytes come in as many pieces as those of many megabytes do."""
    for module in (safe_read, loading):
        monkeypatch.setattr(module, "PIECE", CHUNK)


def committed(root: Path, *, single: bool = False) -> Path:
    with closing(store_at(root)) as store:
        return store.save(
            synthetic_image(
                1, 300, synthetic_plan(300_000, 200_000, single=single), restorable=True
            ),
            0,
        ).path


def files_of(path: Path) -> dict[str, bytes]:
    files = path.iterdir() if path.is_dir() else (path, path.with_suffix(".json"))
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("single", [False, True], ids=["group", "single"])
def test_a_file_in_many_pieces_is_read_hashed_diagnosed_and_repaired_to_its_end(
    tmp_path: Path, single: bool
) -> None:
    path = committed(tmp_path, single=single)
    before, data = files_of(path), path if single else path / MODEL
    made = synthetic_image(1, 300, synthetic_plan(300_000, 200_000, single=single), restorable=True)
    loaded = load_checkpoint(path).tensors
    for place in (place for part in made.parts for place in part.tensors):
        assert loaded[place.spec.name].numpy().tobytes() == bytes(
            made.memory[place.offset : place.offset + place.spec.nbytes]
        )
    size = data.stat().st_size
    for number, offset in enumerate((10, CHUNK + 5, 2 * CHUNK - 1, size - 1)):
        flip(data, offset, 3)
        for once in (True, False):
            assert (
                verify_checkpoint(path, once=once).reason
                == f"{data.name} does not match its BLAKE3"
            )
        with pytest.raises(
            StorageError, match=f"failed at hash: {data.name} does not match its BLAKE3"
        ):
            load_checkpoint(path)
        (finding,) = diagnose(path).findings
        assert (finding.file, finding.flips, finding.chunks) == (
            data.name,
            (BitFlip(offset, 3),),
            (offset // CHUNK,),
        )
        assert files_of(repair(path, diagnose(path), tmp_path / f"out{number}")) == before
        flip(data, offset, 3)
    assert verify_checkpoint(path, once=True).ok and verify_checkpoint(path).ok


@pytest.mark.usefixtures("in_pieces")
def test_a_manifest_is_made_again_from_parts_in_many_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_repair, "MAX_SEARCH", 300)
    path = committed(tmp_path)
    before = files_of(path)
    flip(path / MANIFEST, before[MANIFEST].index(b'"chunk_sums"') + 20, 1)
    assert files_of(repair(path, diagnose(path), tmp_path / "out")) == before


def forged(path: Path, part: str, tensor: str) -> None:
    """The digest of one tensor is another, and every hash agrees with that."""

    def edit(manifest: dict[str, Any]) -> None:
        manifest["parts"][part]["tensors"][tensor]["digest"] = "0" * 64

    store_fixture.forge(path, edit)


@pytest.mark.parametrize(
    ("part", "tensor"), [(part, tensor) for part, tensors in TENSORS.items() for tensor in tensors]
)
def test_each_tensor_is_held_against_its_digest(tmp_path: Path, part: str, tensor: str) -> None:
    path = committed(tmp_path)
    forged(path, part, tensor)
    for once in (True, False):
        report = verify_checkpoint(path, once=once)
        assert (report.layer, report.reason) == ("tensors", f"{tensor} does not match its digest")
    with pytest.raises(
        StorageError,
        match=(
            f"{path.name} failed at tensors: {tensor} does not match its digest; resume from"
            " another checkpoint"
        ),
    ):
        load_checkpoint(path)


def not_a_number(root: Path, name: str, *, single: bool = False) -> Path:
    """A checkpoint whose tensor `name` ends with NaN. Every hash agrees: it was written as it
    is.
    """
    specs = {
        MODEL: [
            TensorSpec(each, "torch.float32", (3,))
            for each in ("parameters.a", "parameters.b", "buffers.c")
        ],
        OPTIMIZER: [
            TensorSpec(each, "torch.float32", (2,)) for each in ("optimizer.a.b", "optimizer.b.b")
        ],
        RNG: [TensorSpec("rng.rank0.torch", "torch.uint8", (4,))],
    }

    def fill(place: TensorPlace) -> bytes:
        count = place.spec.nbytes // 4
        return (
            struct.pack(f"<{count}f", *[0.5] * (count - 1), math.nan)
            if place.spec.name == name
            else bytes(place.spec.nbytes)
        )

    made = store_fixture.image_from(
        store_fixture.in_one_part(specs, single=single),
        fill,
        CheckpointMeta(RUN_ID, 6, 0, 6, 7, 1),
        {},
    )
    with closing(store_at(root)) as store:
        return store.save(made, 0).path


def test_a_tensor_that_is_another_is_named_before_one_that_is_not_finite(tmp_path: Path) -> None:
    """The layers of the check have an order: what is not what was committed may hold anything."""
    path = not_a_number(tmp_path, "parameters.a")
    forged(path, MODEL, "parameters.b")
    for once in (True, False):
        report = verify_checkpoint(path, once=once)
        assert (report.layer, report.reason) == (
            "tensors",
            "parameters.b does not match its digest",
        )
    with pytest.raises(
        StorageError, match=r"failed at tensors: parameters\.b does not match its digest"
    ):
        load_checkpoint(path)


@pytest.mark.parametrize("single", [False, True], ids=["group", "single"])
@pytest.mark.parametrize(
    "name", ["parameters.a", "parameters.b", "buffers.c", "optimizer.a.b", "optimizer.b.b"]
)
def test_each_tensor_is_looked_through_for_nan(tmp_path: Path, name: str, single: bool) -> None:
    path = not_a_number(tmp_path, name, single=single)
    for once in (True, False):
        report = verify_checkpoint(path, once=once)
        assert (report.layer, report.reason) == ("finite", f"{name} holds NaN or infinity")
        assert verify_checkpoint(path, IntegrityConfig(finite="off"), once=once).ok
    with pytest.raises(StorageError, match=f"failed at finite: {name} holds NaN or infinity"):
        load_checkpoint(path)


@pytest.mark.parametrize("part", [*TENSORS, TRAIN])
def test_each_part_is_held_against_its_hash_and_its_size(tmp_path: Path, part: str) -> None:
    path = committed(tmp_path)
    size = (path / part).stat().st_size
    flip(path / part, size - 2)
    assert verify_checkpoint(path).reason == f"{part} does not match its BLAKE3"
    flip(path / part, size - 2)
    with (path / part).open("ab") as file:
        file.write(b"x")
    assert (
        verify_checkpoint(path).reason == f"{part} has {size + 1} bytes, the manifest says {size}"
    )
    (path / part).unlink()
    assert verify_checkpoint(path).reason == f"the folder lacks {part}"


@pytest.mark.parametrize("single", [False, True], ids=["group", "single"])
def test_the_first_and_the_last_byte_of_a_tensor_are_its_own(tmp_path: Path, single: bool) -> None:
    path = committed(tmp_path, single=single)
    data = path if single else path / MODEL
    table = json.loads(data.read_bytes()[8 : 8 + int.from_bytes(data.read_bytes()[:8], "little")])
    begin = data.stat().st_size - max(entry["data_offsets"][1] for entry in table.values())
    hits = {begin - 1: ("the header",)}
    for name, entry in table.items():
        first, end = entry["data_offsets"]
        hits |= {begin + first: (name,), begin + end - 1: (name,)}
    for place, tensors in hits.items():
        flip(data, place, 2)
        (finding,) = diagnose(path).findings
        assert (finding.tensors, finding.flips) == (tensors, (BitFlip(place, 2),))
        flip(data, place, 2)


# What a save that fails leaves


class RefusesRename(RecordingFs):
    """The rename, or the write, to a name with this end is refused."""

    def __init__(self, call: str, end: str) -> None:
        super().__init__()
        self._call, self._end = call, end

    def around(self, call: str, path: Path, act: Callable[[], Any]) -> Any:
        if call == self._call and path.name.endswith(self._end):
            raise StorageError.of(call, path, OSError(errno.EIO, "refused"))
        return super().around(call, path, act)


@pytest.mark.parametrize("atomic", [True, False])
def test_of_a_single_file_that_could_not_be_saved_the_commit_goes_first(
    tmp_path: Path, atomic: bool
) -> None:
    """A file whose commit stands beside it counts: it must never be the one that is half
    removed.
    """
    with closing(store_at(tmp_path)):
        pass
    fs = RefusesRename("rename", ".json") if atomic else RefusesRename("fsync", ".json")
    mode = WriteMode(sync_directories=False) if atomic else WriteMode(atomic=False)
    with (
        closing(CheckpointStore(tmp_path / "checkpoints", replace(CONFIG, mode=mode), fs)) as store,
        suppress(StorageError),
    ):
        store.save(image(6, single=True), 0)
    gone = [call.path.suffix for call in fs.calls if call.name == "unlink"]
    assert gone == [".json", ".safetensors"]
    assert not [
        path for path in store.root.iterdir() if path.name.startswith((STAGE_PREFIX, "step_"))
    ]


# More than a text names


def where(chunks: int = 100) -> _Where:
    """A part of six tensors of one chunk each after a header of one chunk."""
    specs = [TensorSpec(f"parameters.{letter}", "torch.uint8", (CHUNK,)) for letter in "abcdef"]
    places = [TensorPlace(spec, CHUNK * (number + 1)) for number, spec in enumerate(specs)]
    return _Where(PartEntry(7 * CHUNK - 10, "", (0,) * chunks, {}), places, "BLAKE3")


MATCH = "the corrected bytes match the BLAKE3"


@pytest.mark.parametrize(
    ("flips", "texts"),
    [
        ([CHUNK], ["chunk 1 of 100, byte 65536 bit 5 flipped (in parameters.a)", MATCH]),
        ([CHUNK - 1], ["chunk 0 of 100, byte 65535 bit 5 flipped (in the header)", MATCH]),
        (
            [0, CHUNK, 3 * CHUNK],
            [
                "chunk 0 of 100, byte 0 bit 5 flipped (in the header)",
                "chunk 1 of 100, byte 65536 bit 5 flipped (in parameters.a)",
                "chunk 3 of 100, byte 196608 bit 5 flipped (in parameters.c)",
                MATCH,
            ],
        ),
        (
            [0, CHUNK, 3 * CHUNK, 4 * CHUNK, 5 * CHUNK],
            [
                "chunk 0 of 100, byte 0 bit 5 flipped (in the header)",
                "chunk 1 of 100, byte 65536 bit 5 flipped (in parameters.a)",
                "chunk 3 of 100, byte 196608 bit 5 flipped (in parameters.c)",
                "and 2 more flipped bits",
                MATCH,
            ],
        ),
    ],
)
def test_three_flipped_bits_are_named_and_the_rest_is_counted(
    flips: list[int], texts: list[str]
) -> None:
    assert where().flips(tuple(BitFlip(offset, 5) for offset in flips)) == texts


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ((1,), "chunk 1 of 7 damaged, between bytes 65536 and 131071 (in parameters.a)"),
        (
            (1, 2),
            (
                "chunks 1 to 2 of 7 damaged, between bytes 65536 and 196607 (in parameters.a,"
                " parameters.b)"
            ),
        ),
        (
            (0, 2, 3),
            (
                "chunks 0, 2 to 3 of 7 damaged, between bytes 0 and 262143 (in the header,"
                " parameters.b, parameters.c)"
            ),
        ),
        (
            (0, 2, 4),
            (
                "chunks 0, 2, 4 of 7 damaged, between bytes 0 and 327679 (in the header,"
                " parameters.b, parameters.d)"
            ),
        ),
        (
            (0, 2, 4, 6),
            (
                "chunks 0, 2, 4 and 1 more ranges of 7 damaged, between bytes 0 and 458741 (in the"
                " header, parameters.b, parameters.d and 1 more)"
            ),
        ),
        ((6,), "chunk 6 of 7 damaged, between bytes 393216 and 458741 (in parameters.f)"),
    ],
)
def test_three_ranges_and_three_tensors_are_named_and_the_rest_is_counted(
    chunks: tuple[int, ...], text: str
) -> None:
    assert where(7).chunks(chunks) == [text]


def test_what_is_hit_is_nothing_where_the_layout_is_unknown() -> None:
    unknown = _Where(PartEntry(CHUNK, "", (0,), {}), [], "BLAKE3")
    assert (
        unknown.chunks((0,)) == ["chunk 0 of 1 damaged, between bytes 0 and 65535"]
        and unknown.tensors([(0, 1)]) == ()
    )
    assert where().tensors([]) == ()
    assert where().tensors([(CHUNK, CHUNK + 1), (2 * CHUNK - 1, 2 * CHUNK)]) == ("parameters.a",)


def test_flipped_bits_of_a_record_are_named_up_to_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_repair, "MAX_SEARCH", 300)
    path = committed(tmp_path)
    begin = json.dumps(json.loads((path / MANIFEST).read_bytes()), separators=(",", ":")).index(
        '"parts":'
    )
    expected = {
        1: "byte {0} bit 0 flipped",
        3: "byte {0} bit 0, byte {1} bit 0, byte {2} bit 0 flipped",
    }
    for count in (1, 3, 5):
        places = [begin + 60 + 10 * number for number in range(count)]
        for place in places:
            flip(path / MANIFEST, place)
        (finding,) = diagnose(path).findings
        words = expected.get(
            count, "byte {0} bit 0, byte {1} bit 0, byte {2} bit 0 and 2 more bits flipped"
        ).format(*places)
        assert finding.text == f"{words}; the corrected bytes match the SHA-256 in COMMIT.json"
        for place in places:
            flip(path / MANIFEST, place)
