"""Where a repair ends: more damage than a search may cost, records whose parts cannot be read,
files that change between the look and the copy.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from blake3 import blake3

from ecrl_cli.checkpoint.format.manifest import read_manifest
from ecrl_cli.checkpoint.format.names import CHUNK, COMMIT, MANIFEST, MODEL, TRAIN
from ecrl_cli.checkpoint.repair import damage, record_repair
from ecrl_cli.checkpoint.repair.damage import BitFlip
from ecrl_cli.checkpoint.repair.diagnose import diagnose
from ecrl_cli.checkpoint.repair.record_repair import (
    Form,
    rebuild_entry,
    rebuild_manifest,
    repair_commit,
    repair_sidecar,
)
from ecrl_cli.checkpoint.repair.repair import repair
from ecrl_cli.checkpoint.repair.scrub import holds_checkpoints
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import READ, PosixFs
from ecrl_cli.studies.frame.store_fixture import part_digest
from tests.unit.checkpoint_support import commit, flip, image, store_at

OLD = Form(1, "sha256")


@pytest.fixture
def group(tmp_path: Path) -> Path:
    return commit(store_at(tmp_path), 6).path


@pytest.fixture
def sidecar(tmp_path: Path) -> Path:
    return commit(store_at(tmp_path), 6, single=True).path.with_suffix(".json")


def flipped(data: bytes, *places: int) -> bytes:
    changed = bytearray(data)
    for place in places:
        changed[place] ^= 1
    return bytes(changed)


# Parts


@pytest.mark.parametrize(("most", "repairable"), [(2, True), (1, False)])
def test_no_more_chunks_are_searched_than_bits_flip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, repairable: bool
) -> None:
    store = store_at(tmp_path)
    path = store.save(image_of_chunks(), 0).path
    monkeypatch.setattr(damage, "MAX_FLIPS", most)
    for chunk in range(2):
        flip(path / MODEL, chunk * CHUNK + 5000, 1)
    (finding,) = diagnose(path).findings
    assert (finding.chunks, finding.repairable) == ((0, 1), repairable)
    assert finding.flips == ((BitFlip(5000, 1), BitFlip(CHUNK + 5000, 1)) if repairable else ())


def image_of_chunks() -> Any:
    from ecrl_cli.checkpoint.store.synthetic import synthetic_image, synthetic_plan

    return synthetic_image(1, 6, synthetic_plan(300_000, 200_000))


@pytest.mark.parametrize(
    ("size", "chunks", "words"),
    [
        (3 * CHUNK, (), ""),
        (3 * CHUNK - 1, (), ""),
        (2 * CHUNK + 1, (), ""),
        (2 * CHUNK + 1, (1,), "chunk 1 of"),
    ],
)
def test_a_file_that_ends_early_has_no_damage_in_what_is_left_of_its_last_chunk(
    tmp_path: Path, size: int, chunks: tuple[int, ...], words: str
) -> None:
    path = store_at(tmp_path).save(image_of_chunks(), 0).path
    whole = (path / MODEL).stat().st_size
    os.truncate(path / MODEL, size)
    for chunk in chunks:
        flip(path / MODEL, chunk * CHUNK + 5000, 1)
    (finding,) = diagnose(path).findings
    assert (finding.chunks, finding.repairable) == (chunks, False)
    assert (
        f"ends {whole - size} bytes early, at byte {size}" in finding.text and words in finding.text
    )


@pytest.mark.parametrize(
    ("start", "changed"), [(0, {7: 3}), (100, {4: 1, 0: 1}), (108, {}), (92, {8: 1, 12: 1})]
)
def test_bits_are_turned_back_where_they_lie_in_the_file(
    start: int, changed: dict[int, int]
) -> None:
    """Of a piece of eight bytes, or more, that begins at `start`."""
    flips = (BitFlip(7, 3), BitFlip(100, 1), BitFlip(104, 1))
    size = 16 if start == 92 else 8
    right = bytearray(size)
    for place, bit in changed.items():
        right[place] ^= 1 << bit
    assert bytes(damage.corrected(memoryview(bytes(size)), start, flips)) == bytes(right)


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        *(
            (name, True)
            for name in (
                "step_00000006",
                "step_00000006.pt",
                "step_00000006.json",
                "latest.json",
                "latest_ok",
                ".attempt",
            )
        ),
        *(
            (name, True)
            for name in (
                ".rejected_step_00000006.0badcafe",
                ".stage_00000006.0.0badcafe",
                ".trash_step_00000006.0badcafe",
            )
        ),
        *((name, False) for name in ("step_6", "step_00000006.txt", "notes.json", ".hidden")),
    ],
)
def test_a_folder_holds_checkpoints_by_its_names(tmp_path: Path, name: str, holds: bool) -> None:
    (tmp_path / name).touch()
    assert holds_checkpoints(tmp_path) == holds


def test_what_is_no_checkpoint_by_its_name_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    assert diagnose(tmp_path / "checkpoint").findings == []


# Records


def entry_of(
    tmp_path: Path, data: bytes, name: str = MODEL, limit: int = 10**6, form: Form = OLD
) -> Any:
    (tmp_path / name).write_bytes(data)
    fs = PosixFs()
    fd = fs.open(tmp_path / name, READ)
    try:
        return rebuild_entry(fs, fd, len(data), name, form, limit)
    finally:
        fs.close(fd)


def safetensors(header: Any, body: bytes = b"\1\2\3\4") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


GOOD = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


def test_the_entry_of_a_part_is_made_again_from_its_bytes(tmp_path: Path, group: Path) -> None:
    data = safetensors({"parameters.w": GOOD})
    made = entry_of(tmp_path, data)
    assert (made.bytes, made.digest, made.chunk_sums) == (
        len(data),
        hashlib.sha256(data).hexdigest(),
        (zlib.crc32(data),),
    )
    assert (
        made.tensors["parameters.w"].digest
        == hashlib.sha256(b"torch.uint8(4,)" + b"\1\2\3\4").hexdigest()
    )
    new = entry_of(tmp_path, data, form=Form(2, "blake3"))
    assert (
        new.tensors["parameters.w"].digest == blake3(b"torch.uint8(4,)" + b"\1\2\3\4").hexdigest()
    )
    assert new.digest == part_digest(MODEL, new, data) and new.chunk_sums == (
        google_crc32c.value(data),
    )
    assert entry_of(tmp_path, b"{}", TRAIN).tensors == {}
    assert entry_of(tmp_path, data, limit=len(data)) == made


UNREADABLE: dict[str, tuple[str, bytes, int, str]] = {
    "a torch file": (
        "step_00000006.pt",
        b"PK",
        100,
        "the tensors of a torch file are not read here",
    ),
    "larger than may be read": (MODEL, safetensors({}), 5, "at most 5 are read"),
    "a header that is a list": (MODEL, safetensors([1]), 10**6, "not an object"),
    "an entry that is a number": (MODEL, safetensors({"a": 1}), 10**6, "an entry of the header"),
    "an entry without offsets": (
        MODEL,
        safetensors({"a": {"dtype": "U8", "shape": [4]}}),
        10**6,
        "an entry of the header",
    ),
    "an entry of no dtype": (
        MODEL,
        safetensors({"a": GOOD | {"dtype": "U9"}}),
        10**6,
        "an entry of the header",
    ),
    "an entry without a shape": (
        MODEL,
        safetensors({"a": GOOD | {"shape": None}}),
        10**6,
        "an entry of the header",
    ),
    "offsets that go back": (
        MODEL,
        safetensors({"a": GOOD | {"data_offsets": [4, 0]}}),
        10**6,
        "offsets in the header",
    ),
    "more dimensions than a tensor has": (
        MODEL,
        safetensors({"a": GOOD | {"shape": [2**62] * 17}}),
        10**6,
        "a shape in the header",
    ),
    "a size below zero": (
        MODEL,
        safetensors({"a": GOOD | {"shape": [-4, -1]}}),
        10**6,
        "a shape in the header",
    ),
    "offsets of another size": (
        MODEL,
        safetensors({"a": GOOD | {"shape": [3]}}),
        10**6,
        "offsets in the header",
    ),
    "offsets below zero": (
        MODEL,
        safetensors({"a": GOOD | {"data_offsets": [-4, 0]}}),
        10**6,
        "offsets in the header",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_part_that_cannot_be_read_makes_no_entry(tmp_path: Path, name: str) -> None:
    file, data, limit, words = UNREADABLE[name]
    with pytest.raises(ValueError, match=words):
        entry_of(tmp_path, data, file, limit)


def entries_of(group: Path, form: Form) -> Any:
    fs, found = PosixFs(), {}
    for path in sorted(set(group.iterdir()) - {group / MANIFEST, group / COMMIT}):
        fd = fs.open(path, READ)
        found[path.name] = rebuild_entry(fs, fd, path.stat().st_size, path.name, form, 10**7)
        fs.close(fd)
    return found


def rebuilt(group: Path, data: bytes) -> tuple[BitFlip, ...]:
    """What of the manifest `data` has changed, by the parts beside it."""
    right = (group / MANIFEST).read_bytes()
    return rebuild_manifest(
        data, hashlib.sha256(right).hexdigest(), lambda form: entries_of(group, form)
    )


@pytest.mark.parametrize("form", [OLD, Form(2, "blake3"), Form(2, "sha256")], ids=str)
def test_a_manifest_of_every_form_is_made_again_whose_form_is_tried_first(
    group: Path, form: Form
) -> None:
    now = read_manifest((group / MANIFEST).read_bytes())
    right = replace(
        now, schema_version=form.version, digest=form.digest, parts=entries_of(group, form)
    ).encoded()
    begin, asked = right.index(b'"parts":') + len(b'"parts":'), list[Form]()

    def entries(asked_for: Form) -> Any:
        asked.append(asked_for)
        return entries_of(group, asked_for)

    inside = [begin + 40, begin + 50, begin + 300]
    found = rebuild_manifest(flipped(right, *inside), hashlib.sha256(right).hexdigest(), entries)
    assert found == tuple(BitFlip(place, 0) for place in inside) and asked == [form], (
        "each form costs a pass over the parts"
    )


def test_a_manifest_is_made_again_from_its_parts(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = (group / MANIFEST).read_bytes()
    begin = right.index(b'"parts":') + len(b'"parts":')
    inside = [begin + 40, begin + 50, begin + 300]
    assert rebuilt(group, flipped(right, *inside)) == tuple(BitFlip(place, 0) for place in inside)
    assert rebuilt(group, flipped(right, 3, *inside)) == (
        BitFlip(3, 0),
        *(BitFlip(place, 0) for place in inside),
    )
    behind = len(right) - 3
    assert rebuilt(group, flipped(right, *inside, behind)) == (
        *(BitFlip(place, 0) for place in inside),
        BitFlip(behind, 0),
    )
    assert rebuilt(group, flipped(right, 3, behind, *inside)) == (), "two outside of the parts"
    assert (
        rebuilt(group, right.replace(b'"parts"', b'"parto"')) == ()
        and rebuilt(group, right + b" ") == ()
    )
    monkeypatch.setattr(record_repair, "MAX_HASHED", 1000)
    assert (
        rebuilt(group, flipped(right, *inside)) != ()
        and rebuilt(group, flipped(right, 3, *inside)) == ()
    )
    monkeypatch.setattr(record_repair, "MAX_DIFFERENCES", 2)
    assert (
        rebuilt(group, flipped(right, *inside)) == ()
        and len(rebuilt(group, flipped(right, *inside[:2]))) == 2
    )


def test_a_commit_is_searched_up_to_its_limit(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = (group / COMMIT).read_bytes()
    assert repair_commit(right).flips == () and repair_commit(right).value is not None
    found = repair_commit(flipped(right, 30))
    assert (found.flips, found.value) == ((BitFlip(30, 0),), repair_commit(right).value)
    assert repair_commit(flipped(right, 30, 40)).value is None
    monkeypatch.setattr(record_repair, "MAX_COMMIT_SEARCH", len(right))
    assert repair_commit(flipped(right, 30)).value is not None
    monkeypatch.setattr(record_repair, "MAX_COMMIT_SEARCH", len(right) - 1)
    assert repair_commit(flipped(right, 30)).value is None


def test_each_record_of_a_sidecar_is_mended_where_one_bit_of_it_flipped(
    sidecar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = sidecar.read_bytes()
    places = [
        right.index(b'"commit":') + 30,
        right.index(b'"manifest":') + 400,
        right.index(b'"train":') + 20,
    ]

    def mended(data: bytes) -> Any:
        return repair_sidecar(data, lambda form: {})

    assert mended(right).flips == () and mended(right).value is not None
    for place in places:
        assert mended(flipped(right, place)).flips == (BitFlip(place, 0),)
        assert mended(flipped(right, place, place + 3)).value is None
    assert mended(flipped(right, *places)).flips == tuple(BitFlip(place, 0) for place in places)
    frame = right.index(b',"train":')
    assert (
        mended(flipped(right, frame + 1)).flips == (BitFlip(frame + 1, 0),)
        and mended(flipped(right, frame + 1, 12)).value is None
    )
    monkeypatch.setattr(record_repair, "MAX_SEARCH", 10)
    assert (
        mended(flipped(right, places[2])).value is None
        and mended(flipped(right, frame + 1)).value is None
    )


# The copy


def replaced(path: Path) -> None:
    os.link(path, path.parent.parent / "second name")


CHANGES: dict[str, Callable[[Path], None]] = {
    "another name for it": replaced,
    "cut short": lambda path: os.truncate(path, 100),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_changes_between_the_look_and_the_copy_is_an_error_that_leaves_nothing(
    group: Path, tmp_path: Path, name: str
) -> None:
    flip(group / MODEL, 5000, 1)
    found = diagnose(group)
    assert found.repairable
    CHANGES[name](group / TRAIN if name == "gone" else group / MODEL)
    with pytest.raises(StorageError):
        repair(group, found, tmp_path / "repaired")
    assert list((tmp_path / "repaired").iterdir()) == []


def test_a_repaired_copy_is_the_checkpoint_as_it_was_written(group: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in group.iterdir()}
    flip(group / MODEL, 5000, 1)
    flip(group / MANIFEST, 30, 2)
    made = repair(group, diagnose(group), tmp_path / "repaired")
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before
    assert image(6).documents[TRAIN] == before[TRAIN]


def test_a_sidecar_is_not_mended_by_one_bit_where_its_train_document_is_damaged_too(
    sidecar: Path,
) -> None:
    """One bit of the JSON around the three values, alone and with one in the text of train.json."""
    right = sidecar.read_bytes()
    framing = flipped(right, 1)
    assert repair_sidecar(framing, lambda form: {}).value is not None
    assert repair_sidecar(flipped(framing, right.rindex(b"}") - 4), lambda form: {}).value is None
