"""What is read of strangers' files: each rule of the formats by a file that breaks it alone, and
the words about a changed folder.
"""

from __future__ import annotations

import io
import json
import os
import struct
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecrl_cli.checkpoint.format.names import DIGEST
from ecrl_cli.checkpoint.repair import folder_manifest as module
from ecrl_cli.checkpoint.repair.folder_manifest import (
    CHANGED,
    DAMAGED,
    MISSING,
    MOST_DEEP,
    NEW,
    SAME,
    FileFacts,
    FolderManifest,
    TensorFacts,
    changes,
    examine,
    folder_manifest,
    read_manifest,
    write_manifest,
)
from ecrl_cli.errors import ConfigError, EvidenceMissing
from ecrl_cli.storage.durable import FOLDER
from ecrl_cli.storage.fs import PosixFs

MOST = 1000  # bytes that a file's tensors may have in these tests


@pytest.fixture(params=[2**20, 8], ids=["in one piece", "in small ones"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(module, "PIECE", request.param)
    yield request.param


def facts_of(folder: Path, name: str, data: bytes, most: int = MOST) -> FileFacts:
    (folder / name).write_bytes(data)
    fs = PosixFs()
    home = fs.open(folder, FOLDER)
    try:
        return examine(fs, home, name, DIGEST, most)
    finally:
        fs.close(home)


def safetensors(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: Any, begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


ONE = entry("F32", [2], 0, 8)
NUMBERS = struct.pack("<2f", 1, 2)


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ([], b"", "a header that is no object"),
        (
            {"a": ONE, "b": entry("U8", [1], 9, 10)},
            NUMBERS + b"12",
            "a gap or an overlap before 'b'",
        ),
        ({"a": ONE, "b": entry("U8", [1], 7, 8)}, NUMBERS, "a gap or an overlap before 'b'"),
        ({"a": entry("F32", [2], 1, 9)}, b"x" + NUMBERS, "a gap or an overlap before 'a'"),
        ({"a": ONE}, NUMBERS + b"x", "tensors end at byte"),
        ({"a": entry("F32", [2], 0, 7)}, NUMBERS, "size of 'a'"),
        ({"a": entry("F32", [3], 0, 8)}, NUMBERS, "size of 'a'"),
        ({"a": entry("F99", [3], 8, 0)}, NUMBERS, "size of 'a'"),
        ({"a": ONE | {"more": 1}}, NUMBERS, "entry of 'a'"),
        ({"a": 5}, NUMBERS, "entry of 'a'"),
        ({"a": ONE | {"dtype": 5}}, NUMBERS, "entry of 'a'"),
        ({"a": ONE | {"shape": 2}}, NUMBERS, "entry of 'a'"),
        ({"a": ONE | {"data_offsets": {}}}, NUMBERS, "entry of 'a'"),
        ({"a": ONE | {"data_offsets": [0]}}, NUMBERS, "shape or offsets of 'a'"),
        ({"a": ONE | {"data_offsets": [0, 4, 8]}}, NUMBERS, "shape or offsets of 'a'"),
        ({"a": ONE | {"shape": [-2]}}, NUMBERS, "shape or offsets of 'a'"),
        ({"a": ONE | {"shape": [2.0]}}, NUMBERS, "shape or offsets of 'a'"),
        ({"a": ONE | {"shape": [True]}}, NUMBERS, "shape or offsets of 'a'"),
    ],
)
def test_a_safetensors_file_that_breaks_a_rule_has_a_problem_and_a_digest(
    tmp_path: Path, header: Any, data: bytes, words: str
) -> None:
    found = facts_of(tmp_path, "a.safetensors", safetensors(header, data))
    assert words in found.problem and found.tensors == {} and len(found.digest) == 64
    assert found.bytes == len(safetensors(header, data))


@pytest.mark.parametrize("data", [b"", b"1234567"])
def test_less_than_a_length_is_no_safetensors_file(tmp_path: Path, data: bytes) -> None:
    assert "no safetensors file" in facts_of(tmp_path, "a.safetensors", data).problem


@pytest.mark.usefixtures("pieces")
def test_tensors_lie_in_any_order_and_unknown_dtypes_in_any_width(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"by": "a stranger"},
        "z": ONE,
        "a": entry("F4", [5], 8, 11),
        "none": entry("F32", [0, 7], 11, 11),
        "b": entry("BF16", [1], 11, 13),
        "n": entry("I16", [1], 13, 15),
    }
    data = NUMBERS + b"abc" + b"\x80\x7f" + b"\x80\x7f"
    found = facts_of(tmp_path, "a.safetensors", safetensors(header, data))
    assert found.problem == ""
    assert {
        name: (each.dtype, each.shape, each.finite) for name, each in found.tensors.items()
    } == {
        "z": ("F32", (2,), True),
        "a": ("F4", (5,), True),
        "none": ("F32", (0, 7), True),
        "b": ("BF16", (1,), False),
        "n": ("I16", (1,), True),
    }
    other = facts_of(
        tmp_path, "b.safetensors", safetensors(header, NUMBERS + b"abd" + b"\x80\x7f" + b"\x80\x7f")
    )
    assert [
        name for name in found.tensors if found.tensors[name].digest != other.tensors[name].digest
    ] == ["a"]
    assert facts_of(tmp_path, "c.safetensors", safetensors({}, b"")) == replace(
        facts_of(tmp_path, "d.safetensors", safetensors({}, b"")), problem=""
    )


WIDTHS = {
    8: ("F64", "I64", "U64", "C64"),
    4: ("F32", "I32", "U32"),
    2: ("F16", "BF16", "I16", "U16"),
    1: ("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"),
}


@pytest.mark.parametrize(
    ("dtype", "width"), [(dtype, width) for width, dtypes in WIDTHS.items() for dtype in dtypes]
)
def test_a_tensor_has_as_many_bytes_as_its_dtype_says_and_only_numbers_may_be_none(
    tmp_path: Path, dtype: str, width: int
) -> None:
    """All bits set is NaN in every floating-point number that is looked at."""
    data = b"\xff" * (3 * width)
    found = facts_of(
        tmp_path, "a.safetensors", safetensors({"a": entry(dtype, [3], 0, 3 * width)}, data)
    )
    assert found.problem == "" and found.tensors["a"].finite == (
        dtype not in ("F64", "F32", "F16", "BF16", "C64")
    )
    assert (
        facts_of(
            tmp_path,
            "a.safetensors",
            safetensors({"a": entry(dtype, [3], 0, 3 * width)}, bytes(3 * width)),
        )
        .tensors["a"]
        .finite
    )
    for other in (3 * width - 1, 3 * width + 1):
        assert (
            "size of 'a'"
            in facts_of(
                tmp_path,
                "a.safetensors",
                safetensors({"a": entry(dtype, [3], 0, other)}, bytes(other)),
            ).problem
        )


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    # of two entries of one name
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings(action="ignore"):
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize(
    ("array", "kind", "finite"),
    [
        (np.arange(7, dtype=np.float32), "<f4", True),
        (np.array([1, np.nan, 3]), "<f8", False),
        (np.array([1, 2, np.inf]), "<f8", False),
        (np.array([-np.inf, 2, 3]), "<f8", False),
        (np.array([1, complex(0, np.nan)]), "<c16", False),
        (np.array([255, 127], np.uint8), "|u1", True),
        (np.asfortranarray(np.zeros((2, 3))), "<f8 F", True),
        (np.zeros(0), "<f8", True),
        (np.array(5), "<i8", True),
        (np.zeros(2, [("a", "<f4"), ("b", "<i8")]), "[('a', '<f4'), ('b', '<i8')]", True),
    ],
)
def test_an_array_is_what_its_header_says(
    tmp_path: Path, array: Any, kind: str, finite: bool
) -> None:
    found = facts_of(tmp_path, "a.npy", npy(array))
    assert found.problem == "" and {
        name: (each.dtype, each.shape, each.finite) for name, each in found.tensors.items()
    } == {"": (kind, array.shape, finite)}
    inside = facts_of(tmp_path, "a.npz", npz(("deep/x.npy", npy(array)), ("y", npy(array))))
    assert inside.tensors == {"deep/x": found.tensors[""], "y": found.tensors[""]}


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_an_array_is_read_in_every_version_of_its_format(
    tmp_path: Path, version: tuple[int, int]
) -> None:
    file = io.BytesIO()
    # that older numpy cannot read the later versions
    with warnings.catch_warnings(action="ignore"):
        np.lib.format.write_array(file, np.arange(3.0), version=version)
    found = facts_of(tmp_path, "a.npy", file.getvalue())
    assert found.problem == "" and found.tensors[""].shape == (3,)


def test_form_and_order_are_part_of_an_arrays_digest(tmp_path: Path) -> None:
    arrays = [
        np.zeros(4, np.float32),
        np.zeros((2, 2), np.float32),
        np.zeros(4, np.int32),
        np.asfortranarray(np.zeros((2, 2), np.float32)),
    ]
    digests = {facts_of(tmp_path, "a.npy", npy(array)).tensors[""].digest for array in arrays}
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.npy", npy(np.zeros(3))[:-1], "ends 1 bytes early"),
        ("a.npy", npy(np.zeros(3)) + b"x", "bytes after its end"),
        ("a.npy", b"no array", "ValueError"),
        ("a.npz", npz(("a", npy(np.zeros(2))), ("a", npy(np.zeros(2)))), "two entries of one name"),
        ("a.npz", npz(("a", npy(np.zeros(2))[:-3])), "ends 3 bytes early"),
    ],
)
def test_an_array_that_breaks_a_rule_has_a_problem(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    found = facts_of(tmp_path, name, data)
    assert words in found.problem and found.tensors == {} and len(found.digest) == 64


def test_no_more_is_unpacked_than_is_allowed_in_one_array_or_several(tmp_path: Path) -> None:
    whole, half = npy(np.zeros(MOST // 8)), npy(np.zeros(MOST // 16))
    assert facts_of(tmp_path, "a.npy", whole).problem == ""
    assert (
        "1000 bytes unpacked, at most 999 are read"
        in facts_of(tmp_path, "a.npy", whole, MOST - 1).problem
    )
    assert facts_of(tmp_path, "a.npz", npz(("a", half), ("b", half)), 992).problem == ""
    assert (
        "496 bytes unpacked, at most 495 are read"
        in facts_of(tmp_path, "a.npz", npz(("a", half), ("b", half)), 991).problem
    )
    thirds = npz(*((name, npy(np.zeros(MOST // 24))) for name in "abc"))
    assert (
        "328 bytes unpacked, at most 327 are read"
        in facts_of(tmp_path, "a.npz", thirds, 983).problem
    )


def test_form_is_part_of_a_tensors_digest(tmp_path: Path) -> None:
    forms = [("F32", [2]), ("I32", [2]), ("F32", [2, 1]), ("F64", [1])]
    found = [
        facts_of(tmp_path, "a.safetensors", safetensors({"a": entry(dtype, shape, 0, 8)}, bytes(8)))
        for dtype, shape in forms
    ]
    assert len({each.tensors["a"].digest for each in found}) == len(forms)


def test_a_reader_that_gives_little_at_a_time_is_read_to_the_end() -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 2))

    assert module._exactly(Slow(b"0123456789"), 7) == b"0123456"
    with pytest.raises(ValueError, match="ends 3 bytes early"):
        module._exactly(Slow(b"0123"), 7)


def test_what_is_no_regular_file_is_named_by_the_fact_alone(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    (found,) = folder_manifest(tmp_path, MOST).files.values()
    assert found.problem.startswith("ELOOP") and (found.bytes, found.digest, found.tensors) == (
        0,
        "",
        {},
    )


def test_files_of_other_kinds_are_digested_alone(tmp_path: Path) -> None:
    found = facts_of(tmp_path, "a.bin", b"bytes")
    assert (found.bytes, found.tensors, found.problem) == (5, {}, "") and found.digest != facts_of(
        tmp_path, "b.bin", b"other"
    ).digest


SOUND = TensorFacts("F32", (2,), "1" * 64)
OTHER = replace(SOUND, digest="2" * 64)


def facts(tensors: dict[str, TensorFacts], digest: str = "a", **more: Any) -> FileFacts:
    return FileFacts(**{"bytes": 9, "digest": digest, "tensors": tensors, "problem": ""} | more)


@pytest.mark.parametrize(
    ("before", "now", "status", "said"),
    [
        (None, facts({}), NEW, "not in the manifest"),
        (facts({}), None, MISSING, "is gone"),
        (facts({}), facts({}), SAME, ""),
        (facts({}), facts({}, bytes=8), CHANGED, "9 bytes, now 8"),
        (facts({}), facts({}, "b"), CHANGED, "other bytes of the same number"),
        (facts({}), facts({}, "b", problem="cut"), DAMAGED, "cannot be loaded any more (cut)"),
        (
            facts({}, problem="cut"),
            facts({}, "b", problem="cut"),
            CHANGED,
            "other bytes of the same number",
        ),
        (
            facts({"a": SOUND}),
            facts({"a": SOUND}, "b"),
            CHANGED,
            "every tensor is the same (1), the bytes around them are not",
        ),
        (
            facts({"a": SOUND, "b": SOUND}),
            facts({"b": SOUND}, "b"),
            CHANGED,
            "lacks 'a'; 1 tensor is the same",
        ),
        (
            facts({"a": SOUND}),
            facts({"a": SOUND, "b": SOUND, "c": SOUND}, "b"),
            CHANGED,
            "has new 'b', 'c'; 1 tensor is the same",
        ),
        (
            facts({"a": SOUND}),
            facts({"a": replace(OTHER, dtype="F16")}, "b"),
            CHANGED,
            "another dtype or shape: 'a'",
        ),
        (
            facts({"a": SOUND}),
            facts({"a": replace(SOUND, shape=(1, 2))}, "b"),
            CHANGED,
            "another dtype or shape: 'a'",
        ),
        (
            facts({"a": SOUND, "b": SOUND}),
            facts({"a": OTHER, "b": SOUND}, "b"),
            CHANGED,
            "other values in 'a'; 1 tensor is the same",
        ),
        (
            facts({"a": SOUND}),
            facts({"a": replace(OTHER, finite=False)}, "b"),
            CHANGED,
            "other values in 'a'; NaN or infinity in 'a'",
        ),
        (
            facts({"a": replace(SOUND, finite=False)}),
            facts({"a": replace(OTHER, finite=False)}, "b"),
            CHANGED,
            "other values in 'a'",
        ),
        (
            facts(dict.fromkeys("fedcba", SOUND)),
            facts(dict.fromkeys("abcdef", OTHER), "b"),
            CHANGED,
            "other values in 'a', 'b', 'c', 'd', 'e' and 1 more",
        ),
        (
            facts(dict.fromkeys("abcde", SOUND)),
            facts({}, "b"),
            CHANGED,
            "lacks 'a', 'b', 'c', 'd', 'e'",
        ),
        (facts({"a": SOUND}), facts({}, "b", bytes=8), CHANGED, "lacks 'a'"),
    ],
)
def test_what_became_of_a_file_is_said_in_words(
    before: FileFacts | None, now: FileFacts | None, status: str, said: str
) -> None:
    one, other = (FolderManifest(1, DIGEST, {"x": each} if each else {}) for each in (before, now))
    (change,) = changes(one, other)
    assert (change.path, change.status, change.said) == ("x", status, said)


def test_a_manifest_that_was_written_survives_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is synced, then the folder that has its name."""
    synced: list[Path] = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink())
    )
    written = write_manifest(tmp_path, folder_manifest(tmp_path, MOST))
    assert [path.parent if written.name in path.name else path for path in synced] == [
        tmp_path,
        tmp_path,
    ]
    assert written.name in synced[0].name and synced[1] == tmp_path


def nested(folder: Path, deep: int) -> Path:
    path = folder / "/".join(["d"] * deep)
    path.mkdir(parents=True)
    (path / "file").write_bytes(b"1")
    return folder


def test_folders_are_followed_as_deep_as_is_allowed(tmp_path: Path) -> None:
    assert list(folder_manifest(nested(tmp_path / "a", MOST_DEEP - 1), MOST).files) == [
        f"{'d/' * (MOST_DEEP - 1)}file"
    ]
    with pytest.raises(ConfigError, match=f"has more than {MOST_DEEP} levels of folders"):
        folder_manifest(nested(tmp_path / "b", MOST_DEEP), MOST)


def test_a_manifest_is_read_as_it_was_written_and_is_no_part_of_itself(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    (tmp_path / "b").write_bytes(b"1")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "ecrl-manifest.json").write_bytes(b"2")
    written = folder_manifest(tmp_path, MOST)
    write_manifest(tmp_path, written)
    assert read_manifest(tmp_path) == written == folder_manifest(tmp_path, MOST) and list(
        written.files
    ) == ["a/ecrl-manifest.json", "b"]
    assert (tmp_path / "ecrl-manifest.json").read_bytes().endswith(b"}\n")  # a line, as of a log
    for other in (replace(written, schema_version=2), replace(written, digest="md5")):
        write_manifest(tmp_path, other)
        with pytest.raises(
            EvidenceMissing, match=f"schema version {other.schema_version}, digest {other.digest}"
        ):
            read_manifest(tmp_path)
    (tmp_path / "ecrl-manifest.json").write_text("[]")
    with pytest.raises(EvidenceMissing, match="its own digest does not match"):
        read_manifest(tmp_path)
