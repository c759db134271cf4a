"""The format at its bounds: the last value that is read, the first that is refused, and how an
image is laid out.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from ecrl_cli.checkpoint.capture.rng import capture_rng, restore_rng, seed_rank, seed_replica
from ecrl_cli.checkpoint.format import manifest as manifests
from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse
from ecrl_cli.checkpoint.format.hashing import batches, chunk_sums, document_entry
from ecrl_cli.checkpoint.format.image import ALIGN, DTYPES, CheckpointImage, TensorSpec, plan_image
from ecrl_cli.checkpoint.format.manifest import Manifest, PartEntry, TensorEntry, read_manifest
from ecrl_cli.checkpoint.format.names import CHUNK, MODEL, OPTIMIZER, TRAIN
from ecrl_cli.checkpoint.format.tensor_table import all_finite
from ecrl_cli.checkpoint.store.synthetic import synthetic_image, synthetic_plan
from ecrl_cli.storage.writing import BLOCK

SHA = "a" * 64
TENSOR = TensorEntry("torch.float32", (2, 3), SHA)
PART = PartEntry(65_537, SHA, (1, 2), {"parameters.w": TENSOR})
WHOLE = Manifest(2, SHA, 0, 50, 1, 2, 1337, 2, {MODEL: PART})

# JSON


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"9223372036854775807", 2**63 - 1),
        (b"-9223372036854775807", 1 - 2**63),
        (b"9223372036854775808", None),
        (b"-9223372036854775808", None),
        (b"1" * 21, None),
        (b"[" * 16 + b"]" * 16, [[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]),
        (b"[" * 17 + b"]" * 17, None),
        (b'[{"a":1},{"a":1}]', [{"a": 1}, {"a": 1}]),
        (b"[[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[]]", [[]] * 18),
        (b'"' + b'\\"' + b"[" * 17 + b'"', '"' + "[" * 17),
        (b'["' + b'\\"' + b'",' + b"[" * 16 + b"]" * 17, None),
        (b"1e308", 1e308),
        (b"-1e309", None),
        (b"-Infinity", None),
    ],
)
def test_json_is_read_up_to_its_bounds(text: bytes, value: Any) -> None:
    if value is not None:
        assert parse(text) == value
        return
    with pytest.raises(ValueError):
        parse(text)


# MANIFEST


def of_part(**changes: Any) -> Manifest:
    return replace(WHOLE, parts={MODEL: replace(PART, **changes)})


def of_tensor(name: str = "parameters.w", **changes: Any) -> Manifest:
    return of_part(tensors={name: replace(TENSOR, **changes)})


READ: dict[str, Manifest] = {
    "step 0 of attempt 0, with seed 0": replace(
        WHOLE, attempt=0, global_step=0, epoch=0, cursor_step=0, seed=0
    ),
    "one rank": replace(WHOLE, world_size=1),
    "as many parts as there may be": replace(
        WHOLE, parts={f"p{number}": replace(PART, tensors={}) for number in range(64)}
    ),
    "a name of 64 letters": replace(WHOLE, parts={"p" * 64: PART}),
    "an empty part": of_part(bytes=0, chunk_sums=(), tensors={}),
    "a whole chunk": of_part(bytes=CHUNK, chunk_sums=(0,)),
    "the smallest and the largest sum": of_part(chunk_sums=(0, 2**32 - 1)),
    "sixteen dimensions": of_tensor(shape=(1,) * 16),
    "a scalar": of_tensor(shape=()),
    "a tensor without elements": of_tensor(shape=(0, 3)),
    "as many elements as torch counts": of_tensor(shape=(2**62,)),
    "a name as long as it may be": of_tensor("parameters." + "w" * 501),
    "a name that is a component": of_tensor("parameters"),
    **{
        f"a tensor of {component}": of_tensor(f"{component}.w")
        for component in ("parameters", "buffers", "optimizer", "rng")
    },
}


@pytest.mark.parametrize("name", READ)
def test_a_manifest_is_read_up_to_its_bounds(name: str) -> None:
    assert read_manifest(READ[name].encoded()) == READ[name]


REFUSED: dict[str, tuple[Manifest, str]] = {
    **{
        f"{key} below zero": (replace(WHOLE, **{key: -1}), "negative numbers")
        for key in ("attempt", "epoch", "cursor_step", "seed")
    },
    "a step below zero": (
        replace(WHOLE, global_step=-1),
        "Manifest.global_step is -1, not in 0 .. 100000000",
    ),
    "no rank": (replace(WHOLE, world_size=0), "negative numbers"),
    "no part": (replace(WHOLE, parts={}), "0 parts"),
    "a part of fewer bytes than none": (
        of_part(bytes=-1, chunk_sums=()),
        f"{MODEL}: -1 bytes with 0 chunk sums",
    ),
    "a chunk more": (of_part(bytes=CHUNK), f"{MODEL}: 65536 bytes with 2 chunk sums"),
    "a byte more": (of_part(bytes=2 * CHUNK + 1), f"{MODEL}: 131073 bytes with 2 chunk sums"),
    "the second sum out of range": (
        of_part(chunk_sums=(1, 2**32)),
        f"{MODEL}: a chunk sum out of range",
    ),
    "the first sum below zero": (of_part(chunk_sums=(-1, 1)), f"{MODEL}: a chunk sum out of range"),
    "a tensor without a name": (of_tensor(""), f"{MODEL}: tensor name ''"),
    "a name one letter too long": (
        of_tensor("parameters." + "w" * 502),
        f"{MODEL}: tensor name 'parameters.",
    ),
    "another component": (
        of_tensor("weights.parameters"),
        f"{MODEL}: tensor name 'weights.parameters'",
    ),
    "seventeen dimensions": (of_tensor(shape=(1,) * 17), f"{MODEL}: shape of 'parameters.w'"),
    "a size below zero after another": (
        of_tensor(shape=(1, -1)),
        f"{MODEL}: shape of 'parameters.w'",
    ),
    "more elements than torch counts": (
        of_tensor(shape=(2**62, 2)),
        f"{MODEL}: shape of 'parameters.w'",
    ),
    "more strides than torch counts": (
        of_tensor(shape=(0, 2**62, 2)),
        f"{MODEL}: shape of 'parameters.w'",
    ),
    "a tensor's digest that is none": (
        of_tensor(digest="A" * 64),
        "not a digest: 'AAAAAAAAAAAAAAAAAAAA'",
    ),
    "a part's digest that is none": (
        of_part(digest="b" * 63),
        "not a digest: 'bbbbbbbbbbbbbbbbbbbb'",
    ),
    "a part's name with two dots": (replace(WHOLE, parts={"a..b": PART}), "part name 'a..b'"),
    "tensors in train.json": (replace(WHOLE, parts={TRAIN: PART}), "train.json holds no tensors"),
    "a tensor in two parts": (
        replace(WHOLE, parts={MODEL: PART, OPTIMIZER: PART}),
        "a tensor is in two parts",
    ),
    "a hash of another kind": (
        replace(WHOLE, digest="md5"),
        "digest 'md5', this ECRL knows blake3 and sha256",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_manifest_beyond_a_bound_is_refused_in_words_of_its_own(name: str) -> None:
    made, words = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(words)):
        read_manifest(made.encoded())


@pytest.mark.parametrize(("most", "read"), [(2, True), (1, False)])
def test_all_tensors_count_towards_their_limit(
    monkeypatch: pytest.MonkeyPatch, most: int, read: bool
) -> None:
    monkeypatch.setattr(manifests, "MAX_TENSORS", most)
    two = replace(
        WHOLE, parts={MODEL: PART, OPTIMIZER: replace(PART, tensors={"optimizer.w": TENSOR})}
    )
    if read:
        assert read_manifest(two.encoded()) == two
        return
    with pytest.raises(ValueError, match="too many tensors"):
        read_manifest(two.encoded())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema_version": 3}, "checkpoint format 3, this ECRL reads 1 and 2; upgrade ECRL"),
        (
            {"schema_version": 0},
            "checkpoint format 0, this ECRL reads 1 and 2; no ECRL has written such a version",
        ),
        (
            {"schema_version": "2"},
            "checkpoint format '2', this ECRL reads 1 and 2; no ECRL has written such a version",
        ),
        (
            {"schema_version": True},
            "checkpoint format True, this ECRL reads 1 and 2; no ECRL has written such a version",
        ),
        (
            {"schema_version": None},
            "checkpoint format None, this ECRL reads 1 and 2; no ECRL has written such a version",
        ),
        ({"schema_version": 1}, "a manifest of version 1 has parts and names no digest"),
        ({"digest": None}, "Manifest.digest is None, not str"),
        ({"more": 1}, "Manifest has no field 'more'"),
        ({"parts": {MODEL: {"bytes": 1}}}, "Manifest.parts.model.safetensors lacks 'digest'"),
    ],
)
def test_a_manifest_of_another_form_says_which(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read_manifest(canonical_json(json.loads(WHOLE.encoded()) | changes))


def test_a_manifest_that_names_no_hash_is_refused_though_there_is_a_default() -> None:
    value = json.loads(WHOLE.encoded())
    del value["digest"]
    with pytest.raises(ValueError, match="lacks 'digest'"):
        read_manifest(canonical_json(value))
    for data in (b"[]", b"1"):
        with pytest.raises(ValueError, match="not an object"):
            read_manifest(data)


# NaN and infinity

FLOATS: dict[str, tuple[Callable[[float], bytes], float]] = {
    "torch.float64": (lambda x: struct.pack("<d", x), 1.7e308),
    "torch.float32": (lambda x: struct.pack("<f", x), 3.4e38),
    "torch.float16": (lambda x: struct.pack("<e", x), 65504.0),
    "torch.bfloat16": (lambda x: struct.pack("<f", x)[2:], 3.3e38),
    "torch.complex64": (lambda x: struct.pack("<ff", 0.0, x), 3.4e38),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_of_number_is_looked_through_for_nan_and_infinity(dtype: str) -> None:
    if dtype not in FLOATS:
        assert all_finite(dtype, b"\xff" * 16), "integers are finite"
        return
    pack, largest = FLOATS[dtype]
    assert len(pack(1.0)) == DTYPES[dtype][1]
    good = [pack(value) for value in (0.0, -largest, largest, 1.0)]
    assert all_finite(dtype, b"".join(good)) and all_finite(dtype, b"")
    for value in (math.nan, math.inf, -math.inf):
        for place in range(4):
            assert not all_finite(
                dtype, b"".join([*good[:place], pack(value), *good[place + 1 :]])
            ), (value, place)


# The image

MIXED = [
    TensorSpec("parameters.b", "torch.bool", (3,)),
    TensorSpec("parameters.z", "torch.float32", (2, 2)),
    TensorSpec("parameters.a", "torch.float32", (5,)),
    TensorSpec("parameters.h", "torch.bfloat16", (7,)),
    TensorSpec("parameters.i", "torch.int64", ()),
]


def test_an_image_is_laid_out_as_its_files_widest_type_first_without_gaps() -> None:
    plan = plan_image({MODEL: MIXED, OPTIMIZER: [], TRAIN: MIXED[:1]})
    model, optimizer, last = plan.parts
    assert [place.spec.name[-1] for place in model.tensors] == [
        "i",
        "a",
        "z",
        "h",
        "b",
    ], "by width, then by name"
    places = [(place.offset, place.spec.nbytes) for place in model.tensors]
    assert [nbytes for _, nbytes in places] == [8, 20, 16, 14, 3]
    assert all(one + nbytes == following for (one, nbytes), (following, _) in pairwise(places))
    (begin, header), (second, none), (third, _) = plan.headers
    assert (
        (begin, second, third)
        == (model.offset, optimizer.offset, last.offset)
        == (0, BLOCK, 2 * BLOCK)
    )
    assert (
        len(header) % ALIGN == 0 == len(none) % ALIGN
        and places[0][0] == len(header)
        and model.nbytes == len(header) + 61
    )
    assert optimizer.nbytes == len(none) == ALIGN and optimizer.tensors == ()
    assert plan.nbytes == 3 * BLOCK and plan.tensors == (*model.tensors, *last.tensors)
    assert all(place.offset % DTYPES[place.spec.dtype][1] == 0 for place in plan.tensors)


def test_a_file_of_an_image_is_one_that_safetensors_reads() -> None:
    specs = [spec for spec in MIXED if spec.dtype != "torch.bfloat16"]  # numpy has none
    plan = plan_image({MODEL: specs})
    memory = bytearray(plan.nbytes)
    for offset, header in plan.headers:
        memory[offset : offset + len(header)] = header
    memory[plan.tensors[1].offset : plan.tensors[1].offset + 20] = np.arange(
        5, dtype="<f4"
    ).tobytes()
    read = load(bytes(memory[: plan.parts[0].nbytes]))
    assert {name: (str(array.dtype), array.shape) for name, array in read.items()} == {
        "parameters.i": ("int64", ()),
        "parameters.a": ("float32", (5,)),
        "parameters.z": ("float32", (2, 2)),
        "parameters.b": ("bool", (3,)),
    }
    assert read["parameters.a"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("single", [False, True])
def test_the_bytes_of_an_image_are_those_of_its_files_and_documents(single: bool) -> None:
    made: CheckpointImage = synthetic_image(1, 6, synthetic_plan(4000, 2000, single=single))
    assert made.nbytes == sum(part.nbytes for part in made.parts) + len(made.documents[TRAIN])
    assert len(made.parts) == (1 if single else 3) and list(made.documents) == [TRAIN]


def test_jobs_for_threads_are_large_and_lose_nothing() -> None:
    mib = 2**20
    assert batches("abcdef", [mib, mib, mib, 5 * mib, 0, 1]) == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert batches([], []) == []


def test_sums_and_digest_of_a_document_are_of_its_version() -> None:
    entry, old = document_entry(b"{}"), document_entry(b"{}", "sha256", 1)
    assert (entry.bytes, entry.tensors, old.bytes) == (2, {}, 2)
    assert entry.chunk_sums == chunk_sums(b"{}") != old.chunk_sums == chunk_sums(b"{}", 1)
    assert (
        old.digest
        == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
        != entry.digest
    )


# Seeds


def test_the_streams_of_a_rank_and_of_a_replica_depend_on_each_number_of_theirs() -> None:
    before, device = capture_rng(torch.device("cpu")), torch.device("cpu")
    seen: dict[str, set[bytes]] = {name: set() for name in before}
    keys = [(1, 2, 3), (9, 2, 3), (1, 9, 3), (1, 2, 9), (2, 1, 3), (1, 3, 2)]
    for seed in (seed_rank, seed_replica):
        for key in keys:
            seed(*key)
            once = capture_rng(device)
            seed(*key)
            for name, state in capture_rng(device).items():
                assert torch.equal(state, once[name]), "the same numbers give the same stream"
                seen[name].add(state.numpy().tobytes())
    assert {name: len(states) for name, states in seen.items()} == dict.fromkeys(
        before, 2 * len(keys)
    )
    restore_rng(before, device)
