"""What the format of a checkpoint refuses, one condition at a time: tables, records, train.json,
the pickle of a torch file.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import re
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ecrl_cli.checkpoint.capture.rng import capture_rng, packed, restore_rng, unpacked
from ecrl_cli.checkpoint.format import manifest
from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest
from ecrl_cli.checkpoint.format.hashing import Leaf, leaves
from ecrl_cli.checkpoint.format.image import TensorSpec, header_of
from ecrl_cli.checkpoint.format.manifest import PartEntry, TensorEntry, read_commit, read_manifest
from ecrl_cli.checkpoint.format.names import MODEL
from ecrl_cli.checkpoint.format.tensor_table import header_length, places, tensor_table
from ecrl_cli.checkpoint.format.torch_file import torch_places
from ecrl_cli.checkpoint.format.train_document import check_train_document, due_on_rank, saved_state

# The table of a safetensors file

TWO = [
    TensorSpec("parameters.a", "torch.float32", (2, 3)),
    TensorSpec("parameters.b", "torch.uint8", (5,)),
]
SIZE = 24 + 5
WHOLE = len(header_of(TWO)) + SIZE


def part(specs: list[TensorSpec] = TWO, bytes: int = 0) -> PartEntry:
    header = len(header_of(TWO))
    return PartEntry(
        bytes or header + SIZE,
        "0" * 64,
        (0,),
        {spec.name: TensorEntry(spec.dtype, spec.shape, "0" * 64) for spec in specs},
    )


def header(change: Callable[[dict[str, Any]], Any] = lambda table: None) -> bytes:
    """The JSON of TWO's header, changed and as long as before."""
    text = header_of(TWO)[8:]
    table = json.loads(text)
    made = change(table)
    return (
        json.dumps(table if made is None else made, separators=(",", ":")).encode().ljust(len(text))
    )


def test_a_table_that_agrees_gives_every_place_in_file_order() -> None:
    start = len(header_of(TWO))
    assert [(place.spec, place.offset) for place in places(header(), part())] == [
        (TWO[0], start),
        (TWO[1], start + 24),
    ]
    turned = header(
        lambda t: (
            t["parameters.a"].update(data_offsets=[5, 29])
            or t["parameters.b"].update(data_offsets=[0, 5])
        )
    )
    assert [(place.spec, place.offset) for place in places(turned, part())] == [
        (TWO[1], start),
        (TWO[0], start + 5),
    ]


def of_a(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda table: table["parameters.a"].update(changes)


def moved_by_one(table: dict[str, Any]) -> None:
    for entry in table.values():
        entry["data_offsets"] = [offset + 1 for offset in entry["data_offsets"]]


TABLES: dict[str, tuple[bytes, PartEntry, str]] = {
    "no object": (header(lambda t: [1]), part(), "name different tensors"),
    "a tensor less": (
        header(lambda t: t.pop("parameters.b") and None),
        part(),
        "name different tensors",
    ),
    "a tensor more than the manifest": (header(), part(TWO[:1]), "name different tensors"),
    "a gap": (
        header(lambda t: t["parameters.b"].update(data_offsets=[25, 30])),
        part(bytes=WHOLE + 1),
        "a gap or an overlap before 'parameters.b'",
    ),
    "an overlap": (
        header(lambda t: t["parameters.b"].update(data_offsets=[23, 28])),
        part(),
        "a gap or an overlap before 'parameters.b'",
    ),
    "not from the beginning": (
        header(moved_by_one),
        part(),
        "a gap or an overlap before 'parameters.a'",
    ),
    "a file that is longer": (
        header(),
        part(bytes=WHOLE + 1),
        f"tensors end at byte {WHOLE} of {WHOLE + 1}",
    ),
    "a file that is shorter": (header(), part(bytes=WHOLE - 1), "tensors end at byte"),
    "a dtype of no checkpoint": (
        header(),
        part([replace(TWO[0], dtype="torch.float8"), TWO[1]]),
        "dtype 'torch.float8'",
    ),
    "an entry that is none": (
        header(lambda t: t.update({"parameters.a": 1})),
        part(),
        "entry of 'parameters.a'",
    ),
    "an entry with more": (header(of_a(more=1)), part(), "entry of 'parameters.a'"),
    "another dtype": (
        header(of_a(dtype="I32")),
        part(),
        "dtype or shape of 'parameters.a' differs",
    ),
    "another shape": (
        header(of_a(shape=[3, 2])),
        part(),
        "dtype or shape of 'parameters.a' differs",
    ),
    "offsets that are no list": (
        header(of_a(data_offsets={})),
        part(),
        "offsets of 'parameters.a'",
    ),
    "three offsets": (header(of_a(data_offsets=[0, 24, 24])), part(), "offsets of 'parameters.a'"),
    "an offset below zero": (
        header(of_a(data_offsets=[-1, 23])),
        part(),
        "offsets of 'parameters.a'",
    ),
    "an offset that is no integer": (
        header(of_a(data_offsets=[0.0, 24])),
        part(),
        "offsets of 'parameters.a'",
    ),
    "an offset that is a bool": (
        header(of_a(data_offsets=[False, 24])),
        part(),
        "offsets of 'parameters.a'",
    ),
    "another size": (header(of_a(data_offsets=[0, 23])), part(), "size of 'parameters.a'"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_disagrees_is_refused(name: str) -> None:
    text, entry, words = TABLES[name]
    with pytest.raises(ValueError, match=re.escape(words)):
        places(text, entry)


def test_a_header_is_as_long_as_its_file_allows() -> None:
    assert header_length((92).to_bytes(8, "little"), 100) == 92
    for first, size in (
        ((93).to_bytes(8, "little"), 100),
        (b"\1\0\0\0\0\0\0", 100),
        ((100 * 2**20 + 1).to_bytes(8, "little"), 2**40),
    ):
        with pytest.raises(ValueError, match="a header of"):
            header_length(first, size)
    assert header_length((100 * 2**20).to_bytes(8, "little"), 2**40) == 100 * 2**20


def test_no_more_of_a_file_is_read_than_its_tensors_can_need() -> None:
    data = header_of(TWO) + bytes(SIZE)
    asked: list[tuple[int, int]] = []

    def read(offset: int, count: int) -> bytes:
        asked.append((offset, count))
        return data[offset : offset + count]

    assert len(tensor_table(read, "model.safetensors", part(), b"")) == 2
    assert asked == [(0, 8), (8, len(header_of(TWO)) - 8)]
    with pytest.raises(ValueError, match="is no safetensors file"):
        tensor_table(read, "model.safetensors", part(bytes=7), b"")
    long = (2**20).to_bytes(8, "little")
    with pytest.raises(ValueError, match="has a header of 1048576 bytes for 2 tensors"):
        tensor_table(lambda offset, count: long, "model.safetensors", part(bytes=2**21), b"")


# Records


def test_places_are_expected_of_known_dtypes_and_behind_a_header() -> None:
    first = len(header_of(TWO))
    assert [(leaf.start, leaf.end) for leaf in leaves(MODEL, part(), 2)] == [
        (0, first),
        (first, first + 24),
        (first + 24, part().bytes),
    ]
    assert len(leaves(MODEL, part(bytes=SIZE + 8), 2)) == 3 and leaves(MODEL, part([]), 2) == (
        Leaf(0, part([]).bytes),
    )
    for name, version in ((MODEL, 1), ("step_00000006.pt", 2), ("train.json", 2)):
        assert leaves(name, part(), version) == (Leaf(0, part().bytes),), "hashed as a whole"
    with pytest.raises(ValueError, match="float8"):
        leaves(MODEL, part([replace(TWO[0], dtype="torch.float8"), TWO[1]]), 2)
    with pytest.raises(ValueError, match="its tensors need more"):
        leaves(MODEL, part(bytes=SIZE + 7), 2)


def test_records_longer_than_their_limit_are_not_parsed() -> None:
    for read, limit in ((read_commit, manifest.MAX_COMMIT), (read_manifest, manifest.MAX_MANIFEST)):
        with pytest.raises(ValueError, match=f"{limit + 1} bytes, at most {limit} are read"):
            read(b" " * (limit + 1))
        with pytest.raises(ValueError, match="Expecting value"):
            read(b" " * limit)


COMMIT: dict[str, Any] = {
    "manifest_sha256": "a" * 64,
    "run_id": "r",
    "attempt": 0,
    "global_step": 6,
    "prev_commit_sha256": "b" * 64,
}


def committed(**changes: Any) -> bytes:
    """A commit record that matches its own hash."""
    body = COMMIT | changes
    return canonical_json(body | {"self_sha256": digest(body)})


def test_a_commit_that_names_no_predecessor_or_one_by_its_hash_is_read() -> None:
    assert read_commit(committed()).prev_commit_sha256 == "b" * 64
    assert read_commit(committed(prev_commit_sha256=None)).prev_commit_sha256 is None
    assert read_commit(committed(hmac_sha256="anything")).global_step == 6, (
        "readers without the key ignore it"
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (committed(prev_commit_sha256="b" * 63), "not a digest: 'bbb"),
        (committed(prev_commit_sha256="../step"), "not a digest: '../step'"),
        (committed(manifest_sha256="A" * 64), "not a digest: 'AAA"),
        (committed(hmac_sha256=None), "hmac_sha256 is null"),
        (committed().replace(b'"global_step":6', b'"global_step":7'), "self_sha256 does not match"),
    ],
)
def test_a_commit_beyond_the_rules_is_refused_though_its_hash_is_right(
    data: bytes, words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read_commit(data)


TRAIN: dict[str, Any] = {
    "global_step": 1,
    "line_chain": [""],
    "sampler": {"epoch": 0, "cursor_step": 1, "seed": 7},
    "scheduler": {},
    "scaler": None,
    "optimizer": {"param_groups": [], "scalars": {}, "host_keys": []},
}


def test_a_train_json_that_can_be_restored_is_what_it_says() -> None:
    assert check_train_document(json.dumps(TRAIN).encode()) == TRAIN
    assert check_train_document(json.dumps(TRAIN | {"scaler": {"scale": 1.0}}).encode())[
        "scaler"
    ] == {"scale": 1.0}


@pytest.mark.parametrize("name", TRAIN)
@pytest.mark.parametrize("value", ["absent", "1"])
def test_a_train_json_without_a_part_is_refused_by_its_name(name: str, value: str) -> None:
    document = {key: item for key, item in TRAIN.items() if key != name} | (
        {} if value == "absent" else {name: value}
    )
    with pytest.raises(ValueError, match=f"train.json has no {name} that could be restored"):
        check_train_document(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([1], "train.json is not an object"),
        (TRAIN | {"optimizer": TRAIN["optimizer"] | {"param_groups": {}}}, "has no optimizer that"),
        (TRAIN | {"optimizer": TRAIN["optimizer"] | {"scalars": []}}, "has no optimizer that"),
        (TRAIN | {"optimizer": {"param_groups": [], "scalars": {}}}, "has no optimizer that"),
        (TRAIN | {"sampler": {"epoch": 0, "cursor_step": 1}}, "has no sampler that"),
        (TRAIN | {"sampler": {"epoch": "0", "cursor_step": 1, "seed": 7}}, "has no sampler that"),
        (TRAIN | {"sampler": {"epoch": 0, "seed": 7}}, "has no sampler that"),
    ],
)
def test_a_train_json_that_no_rank_could_restore_is_refused(document: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_train_document(json.dumps(document).encode())


def test_what_a_rank_must_hold_has_its_own_generators_or_those_of_all() -> None:
    tensors = {
        "parameters.w": "1",
        "rng.rank0.torch": "2",
        "rng.rank0.numpy": "3",
        "rng.rank1.torch": "2",
        "rng.rank1.numpy": "4",
    }
    saved = saved_state(tensors, TRAIN)
    assert saved.keys() == {"parameters", "buffers", "optimizer", "rng.rank0", "rng.rank1", "train"}
    assert due_on_rank(saved, 1)["rng"] == saved["rng.rank1"] != saved["rng.rank0"]
    assert due_on_rank(saved, 2).keys() == {"parameters", "buffers", "optimizer", "train"}
    shared = saved_state({"rng.shared.torch": "2"}, {})
    assert due_on_rank(shared, 5)["rng"] == shared["rng.shared"] and "train" not in shared


# The pickle of a torch file


def torch_file(
    pickled: bytes,
    storage: bytes = b"\0" * 8,
    more: dict[str, bytes] | None = None,
    name: str = "archive",
) -> tuple[bytes, PartEntry]:
    """A zip as torch.save writes it, with this pickle and one storage of two float32."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for key, data in ({"data.pkl": pickled, "data/0": storage} | (more or {})).items():
            archive.writestr(f"{name}/{key}", data)
    data = file.getvalue()
    return data, PartEntry(
        len(data), "0" * 64, (0,), {"parameters.w": TensorEntry("torch.float32", (2,), "0" * 64)}
    )


GLOBAL = b"ctorch._utils\n_rebuild_tensor_v2\n"
STORAGE = b"((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + b"0X\3\0\0\0cpuK\2tQ"
TENSOR = GLOBAL + STORAGE + b"K\0K\2\x85K\1\x85\x89ccollections\nOrderedDict\n)RtR"


def pickled(
    tensor: bytes = TENSOR,
    begin: bytes = b"\x80\2",
    end: bytes = b".",
    train: bytes = b"X\2\0\0\0{}",
) -> bytes:
    """{"tensors": {"parameters.w": TENSOR}, "train": "{}"}."""
    return (
        begin
        + b"}(X\7\0\0\0tensors}X\x0c\0\0\0parameters.w"
        + tensor
        + b"sX\5\0\0\0train"
        + train
        + b"u"
        + end
    )


def read_places(data: bytes, entry: PartEntry) -> list[Any]:
    return torch_places(lambda offset, count: data[offset : offset + count], entry, b"{}")


def test_the_pickle_of_a_torch_file_is_read() -> None:
    data, entry = torch_file(pickled(), b"12345678")
    (place,) = read_places(data, entry)
    assert data[place.offset : place.offset + 8] == b"12345678"


PICKLES: dict[str, tuple[bytes, str]] = {
    "of another protocol": (pickled(begin=b"\x80\4"), "protocol 4"),
    "with bytes behind its end": (pickled(end=b".."), "bytes behind its end"),
    "without an end": (pickled(end=b""), "the pickle is none of a checkpoint"),
    "that leaves nothing": (b"\x80\2.", "the pickle is none of a checkpoint"),
    "of a list": (pickle.dumps([1], 2), "the pickle is none of a checkpoint"),
    "with a key twice": (b"\x80\2}(X\1\0\0\0aK\1X\1\0\0\0aK\2u.", "is there twice"),
    "with a key that is no text": (b"\x80\2}K\1K\2s.", "a key that is no text"),
    "with items of a tuple": (b"\x80\2)X\1\0\0\0aK\1s.", "items of what is no dictionary"),
    "with a third key": (pickled(end=b"X\4\0\0\0moreK\1s."), "not what a checkpoint holds"),
    "with a train.json that is no text": (pickled(train=b"K\1"), "not what a checkpoint holds"),
    "with a tensor that is none": (pickled(b"K\1"), "not what a checkpoint holds"),
    "with another class": (
        pickled(TENSOR.replace(b"OrderedDict", b"OrderedDic_")),
        "the pickle is none of a checkpoint",
    ),
    "with a storage of no kind": (
        pickled(TENSOR.replace(b"FloatStorage", b"FloorStorage")),
        "a storage that is none",
    ),
    "with a storage that is called otherwise": (
        pickled(TENSOR.replace(b"storage", b"Storage", 1)),
        "a storage that is none",
    ),
    "with a storage of another module": (
        pickled(TENSOR.replace(b"ctorch\nF", b"ctorcH\nF")),
        "a storage that is none",
    ),
    "with a storage of an odd size": (
        pickled(TENSOR.replace(b"cpuK\2", b"cpuX\1\0\0\0002")),
        "a storage that is none",
    ),
    "with a larger storage than its tensor": (
        pickled(TENSOR.replace(b"cpuK\2", b"cpuK\3")),
        "size of 'parameters.w'",
    ),
    "with a tensor that begins within its storage": (
        pickled(TENSOR.replace(b"tQK\0", b"tQK\1")),
        "a tensor that is no plain one",
    ),
    "with another shape": (
        pickled(TENSOR.replace(b"K\0K\2\x85", b"K\0K\3\x85")),
        "differs from the manifest",
    ),
    "with another train.json": (
        pickled(train=b"X\2\0\0\0[]"),
        "another train.json than the one beside it",
    ),
}


@pytest.mark.parametrize("name", PICKLES)
def test_another_pickle_is_refused(name: str) -> None:
    data, words = PICKLES[name]
    with pytest.raises(ValueError, match=words):
        read_places(*torch_file(data))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"data/1": b""}, "tensors and storages do not correspond"),
        ({"other/data/1": b""}, "has an entry 'other/data/1', which does not belong"),
        ({"code.py": b""}, "has an entry 'code.py', which does not belong"),
        ({"byteorder": b"big"}, "not in little-endian byte order"),
    ],
)
def test_other_entries_are_refused(more: dict[str, bytes], words: str) -> None:
    assert read_places(*torch_file(pickled(), more={"byteorder": b"little", "version": b"3"}))
    with pytest.raises(ValueError, match=words):
        read_places(*torch_file(pickled(), more=more))


def test_a_zip_without_a_pickle_in_a_folder_is_none_of_torch_save() -> None:
    for names in (
        ["archive/data/0"],
        ["data.pkl", "data/0"],
        ["archive/data.pkl", "other/data/0"],
        ["archive/data.pkl", "archive/data.pkl"],
    ):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a name may be there twice
            for name in names:
                archive.writestr(name, pickled())
        data = file.getvalue()
        with pytest.raises(ValueError, match=r"^not the entries of a file of torch\.save$"):
            read_places(data, replace(torch_file(pickled())[1], bytes=len(data)))


def test_a_dtype_that_no_checkpoint_has_is_refused() -> None:
    data, entry = torch_file(pickled())
    tensors = {"parameters.w": TensorEntry("torch.float8", (2,), "0" * 64)}
    with pytest.raises(ValueError, match=r"dtype 'torch\.float8'"):
        read_places(data, replace(entry, tensors=tensors))


# Generators


def test_generators_travel_as_bytes() -> None:
    device = torch.device("cpu")
    before = capture_rng(device)
    data = packed(before)
    drawn = torch.rand(3)
    restore_rng(unpacked(data, device), device)
    assert torch.equal(torch.rand(3), drawn)


@pytest.mark.parametrize("drawn", [1, 2], ids=["kept", "none kept"])
def test_the_second_gaussian_of_a_pair_is_kept(drawn: int) -> None:
    """Python's and NumPy's generators draw two at a time and keep one for the next call."""
    device = torch.device("cpu")
    random.seed(1), np.random.seed(1)
    for draw in (lambda: random.gauss(0, 1), lambda: float(np.random.standard_normal())):
        for _ in range(drawn):
            draw()
        states = capture_rng(device)
        expected = [draw() for _ in range(3)]
        random.gauss(0, 1), np.random.standard_normal()
        restore_rng(states, device)
        assert [draw() for _ in range(3)] == expected


def test_generators_have_names_and_one_spelling() -> None:
    device = torch.device("cpu")
    data = packed(capture_rng(device))
    assert (
        list(unpacked(data, device)) == ["python", "numpy", "torch"]
        and packed(unpacked(data, device)) == data
    )


def test_the_generator_of_a_cuda_device_is_captured_and_restored_on_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[tuple[list[int], str]] = []
    monkeypatch.setattr(
        torch.cuda, "get_rng_state", lambda device: torch.arange(4, dtype=torch.uint8)
    )
    monkeypatch.setattr(
        torch.cuda,
        "set_rng_state",
        lambda state, device: done.append((state.tolist(), str(device))),
    )
    cuda, cpu = torch.device("cuda", 1), torch.device("cpu")
    states = capture_rng(cuda)
    assert (
        list(states) == list(unpacked(packed(states), cuda)) == ["python", "numpy", "torch", "cuda"]
    )
    restore_rng(states, cuda)
    restore_rng(states, cpu)
    restore_rng(capture_rng(cpu), cuda)
    assert done == [([0, 1, 2, 3], "cuda:1")]
