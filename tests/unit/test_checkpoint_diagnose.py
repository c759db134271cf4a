"""Damage is named: the file, the chunk, the byte and the bit, the tensor; a repaired copy is
bitwise the original, or there is none.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.format.hashing import CHUNK_SUMS
from ecrl_cli.checkpoint.format.names import (
    CHUNK,
    COMMIT,
    FORMAT_VERSION,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    RNG,
    TRAIN,
)
from ecrl_cli.checkpoint.repair import record_repair
from ecrl_cli.checkpoint.repair.damage import BitFlip, flipped, single_flip
from ecrl_cli.checkpoint.repair.diagnose import diagnose, line
from ecrl_cli.checkpoint.repair.repair import check_folder, repair
from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.checkpoint.store.synthetic import synthetic_image, synthetic_plan
from ecrl_cli.errors import RunDirectoryError, StorageError
from ecrl_cli.storage.fs import Buffer, PosixFs
from tests.recording_fs import RecordingFs
from tests.unit.checkpoint_support import (
    CountingFs,
    flip,
    replaced_by_fifo,
    replaced_by_link,
    store_at,
)


@pytest.fixture(params=[False, True], ids=["group", "single"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A checkpoint whose parts have several chunks."""
    return committed(tmp_path, single=request.param)


def committed(root: Path, *, single: bool = False) -> Path:
    store = store_at(root)
    path = store.save(
        synthetic_image(1, 300, synthetic_plan(300_000, 200_000, single=single)), 0
    ).path
    store.close()
    return path


@pytest.fixture
def group(tmp_path: Path) -> Path:
    return committed(tmp_path)


def files_of(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path, path.with_suffix(".json")]


def said(path: Path) -> str:
    """What a person reads about the checkpoint at `path`, which must be refused."""
    report = verify_checkpoint(path)
    assert not report.ok
    return line(report, diagnose(path))


def repaired(path: Path, out: Path) -> Path:
    return repair(path, diagnose(path), out)


@pytest.mark.parametrize("version", CHUNK_SUMS)
def test_a_flipped_bit_follows_from_the_two_sums(version: int) -> None:
    generator, sums = random.Random(7), CHUNK_SUMS[version]
    for length in (1, 2, 1000, CHUNK) * 12:
        data, where = (
            generator.randbytes(length),
            BitFlip(generator.randrange(length), generator.randrange(8)),
        )
        assert (
            single_flip(sums.of(flipped(data, where)), sums.of(data), length, sums.polynomial)
            == where
        )


@pytest.mark.parametrize("version", CHUNK_SUMS)
def test_sums_that_no_single_bit_explains_name_none(version: int) -> None:
    data, sums = random.Random(7).randbytes(5000), CHUNK_SUMS[version]
    other = flipped(flipped(data, BitFlip(17, 3)), BitFlip(4000, 1))
    assert single_flip(sums.of(other), sums.of(data), len(data), sums.polynomial) is None
    assert single_flip(sums.of(data), sums.of(data), len(data), sums.polynomial) is None


def test_a_flipped_bit_in_any_file_is_named_and_repaired(path: Path, tmp_path: Path) -> None:
    generator = random.Random(3)
    for number, file in enumerate(files_of(path) * 3):
        original = file.read_bytes()
        offset, bit = generator.randrange(len(original)), generator.randrange(8)
        flip(file, offset, bit)
        findings = diagnose(path).findings
        assert [(found.file, found.flips) for found in findings] == [
            (file.name, (BitFlip(offset, bit),))
        ], (file.name, offset, bit)
        copy = repaired(path, tmp_path / f"repaired-{number}")
        flip(file, offset, bit)
        assert file.read_bytes() == original
        assert [made.read_bytes() for made in files_of(copy)] == [
            made.read_bytes() for made in files_of(path)
        ]


def test_every_bit_of_the_frame_of_a_sidecar_is_found(tmp_path: Path) -> None:
    path = committed(tmp_path, single=True)
    sidecar = path.with_suffix(".json")
    data = sidecar.read_bytes()
    starts = [0, data.index(b',"manifest":') - 2, data.index(b',"train":') - 2, len(data) - 4]
    for offset in (
        offset for start in starts for offset in range(start, min(start + 13, len(data)), 4)
    ):
        flip(sidecar, offset, 1)
        assert [found.flips for found in diagnose(path).findings] == [(BitFlip(offset, 1),)], offset
        flip(sidecar, offset, 1)


def test_a_sidecar_of_another_file_is_no_damage_that_could_be_repaired(tmp_path: Path) -> None:
    """A checkpoint under another step's name: its sidecar is whole, and tells nothing about a file
    of that name.
    """
    path = committed(tmp_path, single=True)
    other = path.with_name(path.name.replace("300", "301"))
    for file in files_of(path):
        file.rename(other.with_suffix(file.suffix))
    diagnosis = diagnose(other)
    assert not verify_checkpoint(other).ok
    assert not diagnosis.findings and not diagnosis.repairable


def test_a_large_manifest_is_mended_from_the_parts(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_repair, "MAX_SEARCH", 300)
    file = path / MANIFEST if path.is_dir() else path.with_suffix(".json")
    before = file.read_bytes()
    start, end = before.index(b'"parts":'), before.index(b',"run_id":', before.index(b'"parts":'))
    for number, offsets in enumerate(
        [
            (start + 60,),
            (start + 200, start + 300, start + 301),
            (start - 3,),
            (end + 40,),
            (end - 30, end + 40),
        ]
    ):
        for offset in offsets:
            flip(file, offset, 2)
        assert [found.flips for found in diagnose(path).findings] == [
            tuple(BitFlip(offset, 2) for offset in offsets)
        ]
        copy = repaired(path, tmp_path / f"repaired-{number}")
        assert (
            copy / MANIFEST if copy.is_dir() else copy.with_suffix(".json")
        ).read_bytes() == before
        file.write_bytes(before)


def test_the_words_name_chunk_byte_bit_and_tensor(group: Path) -> None:
    flip(group / OPTIMIZER, 150_000, 3)
    expected = (
        "step_00000300: refused by hash: optimizer.safetensors does not match its BLAKE3; chunk 2"
        " of 4, byte 150000 bit 3 flipped (in optimizer.weight.momentum_buffer); the corrected"
        " bytes match the BLAKE3"
    )
    assert said(group) == expected
    assert diagnose(group).findings[0].tensors == ("optimizer.weight.momentum_buffer",)


def test_a_flipped_bit_in_the_header_is_told_from_one_in_a_tensor(group: Path) -> None:
    flip(group / MODEL, 20, 0)
    assert "(in the header)" in said(group)


@pytest.mark.parametrize(("after", "tensor"), [(-1, "the header"), (0, "buffers.steps")])
def test_damage_is_in_what_has_the_byte_and_not_in_its_neighbour(
    group: Path, after: int, tensor: str
) -> None:
    header = int.from_bytes((group / MODEL).read_bytes()[:8], "little")
    flip(group / MODEL, 8 + header + after, 0)
    assert [finding.tensors for finding in diagnose(group).findings] == [(tensor,)]


def test_flipped_bits_in_several_chunks_and_files_are_all_named_and_repaired(
    group: Path, tmp_path: Path
) -> None:
    before = {file.name: file.read_bytes() for file in files_of(group)}
    for name, offset in (
        (MODEL, 70_000),
        (MODEL, 200_000),
        (RNG, 900),
        (TRAIN, 3),
        (COMMIT, 40),
        (MANIFEST, 400),
    ):
        flip(group / name, offset, 6)
    found = {
        finding.file: [each.offset for each in finding.flips]
        for finding in diagnose(group).findings
    }
    assert found == {
        COMMIT: [40],
        MANIFEST: [400],
        MODEL: [70_000, 200_000],
        RNG: [900],
        TRAIN: [3],
    }
    copy = repaired(group, tmp_path / "repaired")
    assert {file.name: file.read_bytes() for file in files_of(copy)} == before


def zeroed(path: Path, start: int, end: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))


def test_a_zeroed_range_is_named_to_the_byte(group: Path) -> None:
    zeroed(group / MODEL, 70_001, 140_003)
    first = 70_001
    assert "chunks 1 to 2 of 5 damaged" in said(group) and "read as zero" in said(group)
    text = said(group).partition("; bytes ")[2]
    start, end = (int(word) for word in text.split() if word.isdigit())
    assert start <= first < start + 8 and 140_002 <= end < 140_010, (
        "no more than what was zero before, too"
    )


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 70_000)


def garbage(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:100] + os.urandom(64) + data[164:])


def two_bits(path: Path) -> None:
    flip(path, 100, 1)
    flip(path, 200, 1)


def outside_of_the_parts(path: Path) -> None:
    flip(path, 4, 1)
    flip(path, 6, 1)


BEYOND_REPAIR: list[tuple[str, str, Callable[[Path], None], str]] = [
    ("truncated", OPTIMIZER, truncated, "ends 70000 bytes early, at byte 130"),
    (
        "garbage",
        OPTIMIZER,
        garbage,
        (
            "chunk 0 of 4 damaged, between bytes 0 and 65535 (in the header,"
            " optimizer.weight.momentum_buffer)"
        ),
    ),
    ("two bits of one chunk", MODEL, two_bits, "chunk 0 of 5 damaged"),
    ("two bits of the commit", COMMIT, two_bits, "COMMIT.json: what changed in it cannot be told"),
    (
        "two bits of the manifest, outside of its parts",
        MANIFEST,
        outside_of_the_parts,
        "MANIFEST.json: what changed in it cannot be told",
    ),
    ("missing part", MODEL, Path.unlink, "lacks model.safetensors; model.safetensors is missing"),
    ("missing commit", COMMIT, Path.unlink, "; COMMIT.json is missing"),
    ("link", RNG, replaced_by_link, "ELOOP at"),
    ("fifo", RNG, replaced_by_fifo, "is not a regular file"),
    ("folder", TRAIN, lambda path: (path.unlink(), path.mkdir())[0], "is not a regular file"),
]


@pytest.mark.parametrize(
    ("name", "file", "do", "words"), BEYOND_REPAIR, ids=[row[0] for row in BEYOND_REPAIR]
)
def test_what_cannot_be_confirmed_is_named_and_not_repaired(
    group: Path, tmp_path: Path, name: str, file: str, do: Callable[[Path], None], words: str
) -> None:
    do(group / file)
    assert words in said(group), name
    with pytest.raises(StorageError, match="beyond"):
        repaired(group, tmp_path / "repaired")
    assert not (tmp_path / "repaired").exists()


def test_a_file_that_grew_and_one_that_does_not_belong_are_repaired(
    path: Path, tmp_path: Path
) -> None:
    before = [file.read_bytes() for file in files_of(path)]
    data = path / MODEL if path.is_dir() else path
    os.truncate(data, data.stat().st_size + 2**40)  # sparse: nobody may read it to its end
    if path.is_dir():
        (path / "notes.txt").write_text("mine")
    assert f"{2**40} bytes too long; the first" in said(path)
    assert [file.read_bytes() for file in files_of(repaired(path, tmp_path / "repaired"))] == before


def test_a_copy_is_durable_before_it_has_its_name(path: Path, tmp_path: Path) -> None:
    flip(files_of(path)[0], 40, 1)
    fs, out = RecordingFs(), tmp_path / "repaired"
    repair(path, diagnose(path), out, fs=fs)
    calls = [(call.name, call.path) for call in fs.calls]
    named = [number for number, call in enumerate(calls) if call[0] == "rename"]
    created = [made for name, made in calls if name == "create"]
    assert len(created) == len(files_of(path))
    for made in created:
        last_write = max(number for number, call in enumerate(calls) if call == ("write", made))
        assert (
            last_write
            < calls.index(("fsync", made))
            < calls.index(("fsyncdir", made.parent))
            < named[0]
        )
    assert named[-1] < calls.index(("fsyncdir", out)) < calls.index(("fsyncdir", tmp_path))


def test_a_sum_that_names_the_wrong_bit_is_not_believed(group: Path) -> None:
    """An error that is a multiple of CRC-32C's polynomial does not show in the sum: what is left of
    the syndrome names a single bit.
    """
    data = bytearray((group / MODEL).read_bytes())
    polynomial = 1 | CHUNK_SUMS[FORMAT_VERSION].polynomial << 1
    data[1000:1005] = (int.from_bytes(data[1000:1005], "little") ^ polynomial).to_bytes(5, "little")
    (group / MODEL).write_bytes(data)
    assert "no chunk sum sees the damage" in said(group)
    flip(group / MODEL, 5000, 1)
    (finding,) = diagnose(group).findings
    assert (finding.chunks, finding.flips, finding.repairable) == ((0,), (), False)


def test_a_wrong_correction_is_never_handed_out(path: Path, tmp_path: Path) -> None:
    """Sums and hash agree with a file that changes between the look and the copy."""
    data = path / MODEL if path.is_dir() else path
    flip(data, 5000, 1)
    found = diagnose(path)
    flip(data, 6000, 1)
    with pytest.raises(StorageError, match="refused by hash"):
        repair(path, found, tmp_path / "repaired")
    assert list((tmp_path / "repaired").iterdir()) == []


def test_a_checkpoint_under_another_name_is_not_repaired(group: Path, tmp_path: Path) -> None:
    renamed = group.with_name("step_00000301")
    shutil.move(group, renamed)
    assert "says step 300" in said(renamed)
    with pytest.raises(StorageError, match="beyond"):
        repaired(renamed, tmp_path / "repaired")


def test_where_repaired_copies_may_not_go(group: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "into").symlink_to(group.parent)
    for out in (
        "used",
        "link",
        "loop",
        "into/new",
        "loop/new",
        "used/file",
        "nowhere/new",
        "checkpoints",
        "checkpoints/new",
        "checkpoints/step_00000300/new",
    ):
        with pytest.raises(RunDirectoryError):
            check_folder(tmp_path / out, group.parent)
    for out in ("new", "empty"):
        check_folder(tmp_path / out, group.parent)


def test_a_hostile_part_is_not_read_over_and_over(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the manifest damaged, its parts are read to make it again: a header that names one range
    a thousand times does not get its way.
    """
    monkeypatch.setattr(record_repair, "MAX_SEARCH", 300)
    flip(group / MANIFEST, 300, 1)
    size = 400_000
    header = json.dumps(
        {
            f"parameters.{number}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
            for number in range(1000)
        }
    ).encode()
    (group / MODEL).write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    fs = CountingFs()
    assert not diagnose(group, fs=fs).repairable
    assert fs.read[MODEL] < 2_000_000


def test_a_sound_checkpoint_has_no_damage(path: Path) -> None:
    assert diagnose(path).findings == []


@pytest.mark.parametrize(("limit", "mended"), [(10**6, True), (1000, True), (10, False)])
def test_a_manifest_is_mended_from_parts_of_any_size_and_a_small_train_json(
    group: Path, monkeypatch: pytest.MonkeyPatch, limit: int, mended: bool
) -> None:
    """Its differences are many: the entries are made again from the parts, which are larger than
    train.json may be.
    """
    monkeypatch.setattr("ecrl_cli.checkpoint.repair.diagnose.MAX_TRAIN", limit)
    right = (group / MANIFEST).read_bytes()
    begin = right.index(b'"parts":') + len(b'"parts":')
    wrong = right
    for place in (40, 50, 300):
        wrong = flipped(wrong, BitFlip(begin + place, 0))
    (group / MANIFEST).write_bytes(wrong)
    found = next(finding for finding in diagnose(group).findings if finding.file == MANIFEST)
    assert found.repairable is mended


class ShortWrites(PosixFs):
    """Writes less than it is given, as a system call may."""

    def write(self, fd: int, data: Buffer) -> int:
        return super().write(fd, memoryview(data)[:1000])


def test_a_repaired_copy_is_whole_where_writes_are_short(group: Path, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in files_of(group)}
    flip(group / MODEL, 5000)
    copy = repair(group, diagnose(group), tmp_path / "out", fs=ShortWrites())
    assert {file.name: file.read_bytes() for file in files_of(copy)} == before
