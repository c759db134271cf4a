"""MANIFEST, COMMIT and canonical JSON: one spelling, strict limits, digests that anyone can
recompute.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from blake3 import blake3

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse, parse_canonical
from ecrl_cli.checkpoint.format.hashing import chunk_sums, tensor_digest
from ecrl_cli.checkpoint.format.manifest import (
    Manifest,
    PartEntry,
    TensorEntry,
    components,
    make_commit,
    read_commit,
    read_manifest,
)
from ecrl_cli.checkpoint.format.names import MODEL, OPTIMIZER, TRAIN
from ecrl_cli.checkpoint.store.atomic_install import logged_digest
from ecrl_cli.studies.frame.store_fixture import part_digest

SHA = "a" * 64
BAD_NAMES = ("../x", "/x", "a/b", "x\0", "", ".", "..", "A", "a..b", "x" * 65)
PART = PartEntry(65_537, SHA, (1, 2), {"parameters.w": TensorEntry("torch.float32", (2, 3), SHA)})
MANIFEST = Manifest(2, SHA, 0, 50, 1, 2, 1337, 2, {MODEL: PART})


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":1}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e999}',
        b'{"a":9223372036854775808}',
        b'{"a":' + b"1" * 5000 + b"}",
        b"\xef\xbb\xbf{}",
        b'{"a":"\xff"}',
        b"[" * 17 + b"]" * 17,
        b"[" * 100_000,
        b'{"a":1}x',
        b"{'a':1}",
        b"// no\n{}",
        b"",
        b"\0",
    ],
)
def test_what_is_not_strict_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_brackets_in_strings_are_not_depth() -> None:
    value = {"a": "[" * 100 + '\\"{' * 50, "b": [[[["x"]]]]}
    assert parse_canonical(canonical_json(value)) == value


@pytest.mark.parametrize(
    "text", [b'{"b":1,"a":2}', b'{"a": 1}', b'{"a":1.0e0}', b'{"a":"\\u0061"}', b'{"a":1}\n']
)
def test_another_spelling_is_refused(text: bytes) -> None:
    parse(text.strip())
    with pytest.raises(ValueError, match="canonical"):
        parse_canonical(text)


def test_manifest_and_commit_have_exactly_the_keys_of_the_contract() -> None:
    value = json.loads(MANIFEST.encoded())
    assert list(value) == [
        "attempt",
        "cursor_step",
        "digest",
        "epoch",
        "global_step",
        "parts",
        "run_id",
        "schema_version",
        "seed",
        "world_size",
    ]
    assert list(value["parts"][MODEL]) == ["bytes", "chunk_sums", "digest", "tensors"]
    assert value["parts"][MODEL]["tensors"] == {
        "parameters.w": {"digest": SHA, "dtype": "torch.float32", "shape": [2, 3]}
    }
    commit = json.loads(make_commit(MANIFEST, SHA, None).encoded())
    assert list(commit) == [
        "attempt",
        "global_step",
        "manifest_sha256",
        "prev_commit_sha256",
        "run_id",
        "self_sha256",
    ]
    body = {key: item for key, item in commit.items() if key != "self_sha256"}
    assert (
        commit["self_sha256"]
        == hashlib.sha256(
            json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        ).hexdigest()
    )


def test_they_are_read_back_as_they_were() -> None:
    assert read_manifest(MANIFEST.encoded()) == MANIFEST
    commit = make_commit(MANIFEST, SHA, "b" * 64)
    assert read_commit(commit.encoded()) == commit


def edited(**changes: Any) -> bytes:
    return canonical_json(json.loads(MANIFEST.encoded()) | changes)


@pytest.mark.parametrize(
    "data",
    [
        edited(schema_version=3),
        edited(schema_version=1),
        edited(digest="md5"),
        edited(digest=None),
        edited(attempt=-1),
        edited(global_step=1.5),
        edited(global_step=True),
        edited(world_size=0),
        edited(parts={}),
        edited(parts=[]),
        edited(extra=1),
        edited(run_id=None),
        *(
            edited(parts={name: json.loads(MANIFEST.encoded())["parts"][MODEL]})
            for name in BAD_NAMES
        ),
    ],
)
def test_a_manifest_beyond_the_rules_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_manifest(data)


@pytest.mark.parametrize(
    "part",
    [
        replace(PART, bytes=-1),
        replace(PART, bytes=10),
        replace(PART, digest="A" * 64),
        replace(PART, digest="a" * 63),
        replace(PART, chunk_sums=(1, 2**32)),
        replace(PART, chunk_sums=(1, -1)),
        replace(PART, tensors={"module.__class__": TensorEntry("torch.float32", (1,), SHA)}),
        replace(PART, tensors={"parameters.w": TensorEntry("torch.float32", (-1,), SHA)}),
        replace(PART, tensors={"parameters.w": TensorEntry("torch.float32", (1,) * 17, SHA)}),
        replace(PART, tensors={"parameters.w": TensorEntry("torch.float32", (0, 2**62, 2), SHA)}),
        replace(PART, tensors={"parameters." + "w" * 600: TensorEntry("torch.float32", (1,), SHA)}),
    ],
)
def test_a_part_beyond_the_rules_is_a_value_error(part: PartEntry) -> None:
    with pytest.raises(ValueError):
        read_manifest(replace(MANIFEST, parts={MODEL: part}).encoded())


def test_a_tensor_is_in_one_part_and_none_is_in_train_json() -> None:
    for parts in ({MODEL: PART, OPTIMIZER: PART}, {TRAIN: PART}):
        with pytest.raises(ValueError, match=r"in two parts|train.json holds no tensors"):
            read_manifest(replace(MANIFEST, parts=parts).encoded())


def test_too_many_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="65 parts"):
        read_manifest(replace(MANIFEST, parts={f"p{i}": PART for i in range(65)}).encoded())


def test_digests_are_what_the_contract_says() -> None:
    assert (
        tensor_digest("torch.float32", (2,), b"12345678")
        == blake3(b"torch.float32(2,)12345678").hexdigest()
    )
    assert (
        tensor_digest("torch.float32", (2,), b"12345678", "sha256")
        == hashlib.sha256(b"torch.float32(2,)12345678").hexdigest()
    )
    assert chunk_sums(b"x" * 65_537) == (chunk_sums(b"x" * 65_536)[0], chunk_sums(b"x")[0])
    found = components(MANIFEST)
    assert found.parameters == hashlib.sha256(f'[["parameters.w","{SHA}"]]'.encode()).hexdigest()
    assert found.buffers == found.rng == hashlib.sha256(b"[]").hexdigest()


def test_a_manifest_of_version_1_has_its_own_names_and_is_written_as_it_was() -> None:
    old = Manifest(1, SHA, 0, 50, 1, 2, 1337, 2, {MODEL: PART}, "sha256")
    value = json.loads(old.encoded())
    assert "digest" not in value and list(value["parts"][MODEL]) == [
        "bytes",
        "chunk_crc32",
        "sha256",
        "tensors",
    ]
    assert value["parts"][MODEL]["tensors"] == {
        "parameters.w": {"dtype": "torch.float32", "sha256": SHA, "shape": [2, 3]}
    }
    assert read_manifest(old.encoded()) == old
    with pytest.raises(ValueError):
        read_manifest(canonical_json(value | {"digest": "sha256"}))
    with pytest.raises(ValueError):
        read_manifest(edited(parts=value["parts"]))
    for newer in ("digest", "chunk_sums"):  # one name of today, beside those of then
        mixed = value | {
            "parts": {MODEL: value["parts"][MODEL] | {newer: value["parts"][MODEL]["sha256"]}}
        }
        with pytest.raises(ValueError, match="an entry that version 1 does not have"):
            read_manifest(canonical_json(mixed))


def test_a_part_s_digest_is_the_root_over_its_header_and_its_tensors() -> None:
    header, tensor = b"h" * 16, b"0" * 24
    entry = PartEntry(40, "", (), {"parameters.w": TensorEntry("torch.float32", (2, 3), SHA)})
    leaves = [blake3(header).hexdigest(), blake3(b"torch.float32(2, 3)" + tensor).hexdigest()]
    assert (
        part_digest(MODEL, entry, header + tensor)
        == blake3(json.dumps(leaves, separators=(",", ":")).encode()).hexdigest()
    )
    assert (
        part_digest("step_00000001.pt", entry, header + tensor)
        == blake3(header + tensor).hexdigest()
    )
    assert part_digest(MODEL, replace(entry, tensors={}), header) == blake3(header).hexdigest()
    with pytest.raises(ValueError, match="its tensors need more"):
        part_digest(MODEL, replace(entry, bytes=24), tensor)


def test_the_state_that_a_save_is_held_against_is_without_its_generators() -> None:
    """A rank's line has them apart: another generator is no other state."""

    def part(name: str, digest: str) -> PartEntry:
        return PartEntry(1, "a" * 64, (0,), {name: TensorEntry("torch.uint8", (1,), digest)})

    model = {"model.safetensors": part("parameters.w", "b" * 64)}
    first = logged_digest(model | {"rng.safetensors": part("rng.rank0.torch", "c" * 64)})
    assert (
        first
        == logged_digest(model | {"rng.safetensors": part("rng.rank0.torch", "d" * 64)})
        == logged_digest(model)
    )
    assert first != logged_digest({"model.safetensors": part("parameters.w", "d" * 64)})
