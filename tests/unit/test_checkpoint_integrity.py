"""The integrity check: a good checkpoint passes, every damage is refused by the layer that names
it, nothing makes it raise or look elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecrl_cli.checkpoint.capture.loading import load_checkpoint
from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest
from ecrl_cli.checkpoint.format.hashing import Leaf, tensor_digest
from ecrl_cli.checkpoint.format.image import CheckpointMeta, TensorPlace, TensorSpec
from ecrl_cli.checkpoint.format.manifest import PartEntry, components, make_commit, read_manifest
from ecrl_cli.checkpoint.format.names import COMMIT, LAYERS, MANIFEST, MODEL, OPTIMIZER, RNG, TRAIN
from ecrl_cli.checkpoint.store.integrity import (
    CheckpointRejected,
    IntegrityConfig,
    _check_tensors,
    _hash_leaves,
    verify_checkpoint,
)
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.store.synthetic import (
    RUN_ID,
    image_components,
    synthetic_image,
    synthetic_plan,
)
from ecrl_cli.errors import StorageError
from ecrl_cli.linux.unix_socket import bind
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.storage.safe_read import PIECE
from ecrl_cli.studies.frame import store_fixture
from ecrl_cli.studies.frame.store_fixture import image_from, in_one_part, part_entry
from tests.unit.checkpoint_support import (
    CONFIG,
    commit,
    flip,
    image,
    replaced_by_fifo,
    replaced_by_link,
    store_at,
)


@pytest.fixture(params=[False, True], ids=["group", "single"])
def single(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """The folder of a committed checkpoint of step 20, with one of step 10 beside it."""
    store = store_at(tmp_path)
    commit(store, 10)
    path = commit(store, 20).path
    store.close()
    return path


def test_a_good_checkpoint_passes_and_is_described(tmp_path: Path, single: bool) -> None:
    store = store_at(tmp_path)
    first, saved = (
        commit(store, 10, single=single, attempt=0),
        commit(store, 20, single=single, attempt=0),
    )
    report = verify_checkpoint(saved.path, CONFIG.integrity)
    assert report.ok and (report.layer, report.reason) == ("", "")
    assert (report.global_step, report.attempt, report.run_id, report.commit_sha256) == (
        20,
        0,
        RUN_ID,
        saved.commit_sha256,
    )
    assert report.manifest is not None and components(report.manifest) == image_components(
        image(20, single=single)
    )
    assert first.commit_sha256 != saved.commit_sha256


def test_every_flipped_bit_of_the_records_is_seen(tmp_path: Path, single: bool) -> None:
    path = commit(store_at(tmp_path), 20, single=single).path
    records = [path.with_suffix(".json")] if single else [path / MANIFEST, path / COMMIT]
    for record in records:
        for offset in range(0, record.stat().st_size, 7):
            flip(record, offset, offset % 8)
            assert verify_checkpoint(path, CONFIG.integrity).layer in (
                "commit",
                "manifest",
                "parts",
                "hash",
            ), (record.name, offset)
            flip(record, offset, offset % 8)
    assert verify_checkpoint(path, CONFIG.integrity).ok


def test_every_region_of_the_parts_is_covered(tmp_path: Path, single: bool) -> None:
    """Header, padding, first and last byte of the file, the middle: one flipped bit each."""
    path = commit(store_at(tmp_path), 20, single=single).path
    files = [path] if single else [path / name for name in (MODEL, OPTIMIZER, RNG, TRAIN)]
    for file in files:
        size = file.stat().st_size
        for offset in (0, 8, size // 3, size // 2, size - 1):
            flip(file, offset, 3)
            assert verify_checkpoint(path, CONFIG.integrity).layer == "hash", (file.name, offset)
            flip(file, offset, 3)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def extend(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def replaced_by_socket(path: Path) -> None:
    path.unlink()
    bind(path).close()


def replaced_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def with_second_name(path: Path) -> None:
    os.link(path, path.parent.parent / "second")


def huge(path: Path) -> None:
    os.truncate(path, 2**40)


def from_the_other(path: Path) -> None:
    shutil.copy(path.parent.parent / "step_00000010" / path.name, path)


def rewritten(**changes: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_bytes(canonical_json(json.loads(path.read_bytes()) | changes))

    return change


def text(data: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_bytes(data)

    return change


@dataclass(frozen=True)
class Damage:
    name: str
    file: str
    do: Callable[[Path], object]
    layer: str


DAMAGES = [
    Damage("commit missing", COMMIT, Path.unlink, "commit"),
    Damage("commit empty", COMMIT, text(b""), "commit"),
    Damage("commit huge", COMMIT, huge, "commit"),
    Damage("commit a list", COMMIT, text(b"[]"), "commit"),
    Damage("commit not utf-8", COMMIT, text(b"\xff\xfe{\x00}\x00"), "commit"),
    Damage(
        "commit with a bom",
        COMMIT,
        lambda p: p.write_bytes(b"\xef\xbb\xbf" + p.read_bytes()),
        "commit",
    ),
    Damage("commit a million deep", COMMIT, text(b"[" * 60_000), "commit"),
    Damage("commit with duplicate keys", COMMIT, text(b'{"a":1,"a":1}'), "commit"),
    Damage("commit with a huge number", COMMIT, rewritten(attempt=2**64), "commit"),
    Damage("commit with an infinite number", COMMIT, text(b'{"attempt":1e999}'), "commit"),
    Damage(
        "commit not canonical", COMMIT, lambda p: p.write_bytes(p.read_bytes() + b"\n"), "commit"
    ),
    Damage("commit with an unknown key", COMMIT, rewritten(colour="red"), "commit"),
    Damage("commit edited", COMMIT, rewritten(attempt=7), "commit"),
    Damage("commit a link", COMMIT, replaced_by_link, "commit"),
    Damage("commit of another step", COMMIT, from_the_other, "manifest"),
    Damage("manifest missing", MANIFEST, Path.unlink, "manifest"),
    Damage("manifest of another step", MANIFEST, from_the_other, "manifest"),
    Damage("manifest edited", MANIFEST, rewritten(epoch=1), "manifest"),
    Damage("manifest a fifo", MANIFEST, replaced_by_fifo, "manifest"),
    Damage("part missing", MODEL, Path.unlink, "parts"),
    Damage("part truncated", MODEL, truncate, "parts"),
    Damage("part extended", MODEL, extend, "parts"),
    Damage("part empty", MODEL, text(b""), "parts"),
    Damage("part a terabyte", MODEL, huge, "parts"),
    Damage("part a link", OPTIMIZER, replaced_by_link, "parts"),
    Damage("part a fifo", OPTIMIZER, replaced_by_fifo, "parts"),
    Damage("part a socket", RNG, replaced_by_socket, "parts"),
    Damage("part a folder", RNG, replaced_by_folder, "parts"),
    Damage("part with a second name", TRAIN, with_second_name, "parts"),
    Damage("part of another step", OPTIMIZER, from_the_other, "hash"),
    Damage("part full of zeros", MODEL, lambda p: p.write_bytes(bytes(p.stat().st_size)), "hash"),
    Damage("an extra file", "extra.safetensors", text(b"x"), "parts"),
    Damage("an extra folder", "extra", Path.mkdir, "parts"),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_each_damage_is_refused_by_the_layer_that_names_it(group: Path, damage: Damage) -> None:
    damage.do(group / damage.file)
    report = verify_checkpoint(group, CONFIG.integrity)
    assert not report.ok and report.layer == damage.layer and report.reason, report


def test_swapped_parts_of_one_size_are_refused(group: Path) -> None:
    (group / MODEL).rename(group / "x")
    shutil.copy(group / "x", group / MODEL)
    (group / MODEL).write_bytes((group / MODEL).read_bytes()[::-1])
    (group / "x").unlink()
    assert verify_checkpoint(group, CONFIG.integrity).layer == "hash"


def test_a_checkpoint_under_another_number_or_of_another_run_is_refused(group: Path) -> None:
    renamed = group.with_name("step_00000099")
    shutil.copytree(group, renamed)
    assert verify_checkpoint(renamed, CONFIG.integrity).layer == "commit"
    assert verify_checkpoint(group, replace(CONFIG.integrity, run_id="6" * 64)).layer == "commit"


@pytest.mark.parametrize(
    "name", ["step_1", "step_1e3", "step_000000020", "latest_ok", "model", "step_00000020.zip"]
)
def test_other_names_are_no_checkpoints(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert verify_checkpoint(tmp_path / name).layer == "file"


def test_a_missing_a_linked_and_a_looping_folder_are_refused(group: Path) -> None:
    link, loop = group.with_name("step_00000030"), group.with_name("step_00000040")
    link.symlink_to(group)
    loop.symlink_to(loop)
    assert [
        verify_checkpoint(path).layer for path in (link, loop, group.with_name("step_00000050"))
    ] == ["file"] * 3


def forge(group: Path, data: bytes, **tensor: object) -> None:
    """Put `data` in the place of the model and rewrite manifest and commit so that all hashes
    agree.
    """
    (group / MODEL).write_bytes(data)
    value = json.loads((group / MANIFEST).read_bytes())
    part = value["parts"][MODEL]
    part["tensors"]["parameters.weight"].update(tensor)
    part.update(part_entry(MODEL, data, part["tensors"]))
    manifest = canonical_json(value)
    (group / MANIFEST).write_bytes(manifest)
    (group / COMMIT).write_bytes(
        make_commit(read_manifest(manifest), hashlib.sha256(manifest).hexdigest(), None).encoded()
    )


def header_edited(group: Path, edit: Callable[[dict[str, dict[str, object]]], object]) -> bytes:
    data = (group / MODEL).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


FORGED_HEADERS: dict[str, Callable[[dict[str, dict[str, object]]], object]] = {
    "another dtype": lambda header: header["parameters.weight"].update(dtype="I32"),
    "another shape": lambda header: header["parameters.weight"].update(shape=[100, 100]),
    "a shape that overflows": (
        lambda header: header["parameters.weight"].update(shape=[4194305, 4194305, 211106198978564])
    ),
    "overlap": lambda header: header["parameters.weight"].update(data_offsets=[0, 40_000]),
    "offsets outside": (
        lambda header: header["parameters.weight"].update(data_offsets=[2**40, 2**40 + 40_000])
    ),
    "negative offsets": (
        lambda header: header["parameters.weight"].update(data_offsets=[-8, 39_992])
    ),
    "a missing tensor": lambda header: header.pop("buffers.steps"),
    "an extra tensor": lambda header: header.update(other=header["buffers.steps"]),
    "metadata": lambda header: header.update(__metadata__={"x": "y"}),
}


@pytest.mark.parametrize("case", FORGED_HEADERS)
def test_a_header_that_disagrees_with_the_manifest_is_refused_even_if_all_hashes_agree(
    group: Path, case: str
) -> None:
    forge(group, header_edited(group, FORGED_HEADERS[case]))
    assert verify_checkpoint(group, CONFIG.integrity).layer == "schema"


@pytest.mark.parametrize("first", [0, 7, 2**32, 2**63, 2**64 - 1])
def test_a_header_length_that_cannot_be_is_refused(group: Path, first: int) -> None:
    forge(group, struct.pack("<Q", first) + (group / MODEL).read_bytes()[8:])
    assert verify_checkpoint(group, CONFIG.integrity).layer == "schema"


def test_a_tensor_that_is_not_what_its_digest_says_is_refused(group: Path) -> None:
    forge(group, (group / MODEL).read_bytes(), digest="0" * 64)
    assert verify_checkpoint(group, CONFIG.integrity).layer == "tensors"


def test_the_loader_compares_each_tensor_too(group: Path) -> None:
    forge(group, (group / MODEL).read_bytes(), digest="0" * 64)
    with pytest.raises(
        StorageError, match=r"failed at tensors: parameters\.weight does not match its digest"
    ):
        load_checkpoint(group)


@pytest.mark.parametrize("single", [False, True])
def test_empty_tensors_of_any_width_are_saved_checked_and_loaded(
    tmp_path: Path, single: bool
) -> None:
    """They lie at one place, where nothing says which comes first."""
    empty = [
        TensorSpec("buffers.z", "torch.int64", (0,)),
        TensorSpec("buffers.a", "torch.float32", (0, 3)),
    ]
    specs = {
        MODEL: [*empty, TensorSpec("parameters.w", "torch.float32", (4,))],
        OPTIMIZER: [],
        RNG: [],
    }
    image = image_from(
        in_one_part(specs, single=single),
        lambda place: bytes(place.spec.nbytes),
        CheckpointMeta(RUN_ID, 6, 0, 6, 7, 1),
        {},
    )
    with closing(CheckpointStore(tmp_path / "checkpoints")) as store:
        store.claim(0)
        path = store.save(image, 0).path
    assert verify_checkpoint(path).layer == ""
    assert {
        name: tuple(tensor.shape) for name, tensor in load_checkpoint(path).tensors.items()
    } == {
        "buffers.z": (0,),
        "buffers.a": (0, 3),
        "parameters.w": (4,),
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_model_that_is_not_finite_is_refused(group: Path, value: float) -> None:
    data = bytearray((group / MODEL).read_bytes())
    data[-4:] = struct.pack("<f", value)
    forge(
        group, bytes(data), digest=tensor_digest("torch.float32", (10_000,), bytes(data[-40_000:]))
    )
    report = verify_checkpoint(group, CONFIG.integrity)
    assert report.layer == "finite" and "parameters.weight" in report.reason


def test_more_bytes_than_allowed_are_not_read(group: Path) -> None:
    assert verify_checkpoint(group, replace(CONFIG.integrity, max_bytes=1000)).layer == "parts"


def test_as_many_bytes_as_are_allowed_are_read(group: Path) -> None:
    manifest = read_manifest((group / MANIFEST).read_bytes())
    total = sum(part.bytes for part in manifest.parts.values())
    assert verify_checkpoint(group, replace(CONFIG.integrity, max_bytes=total)).ok
    assert verify_checkpoint(group, replace(CONFIG.integrity, max_bytes=total - 1)).layer == "parts"


def test_a_manifest_of_another_attempt_than_the_commit_is_refused(group: Path) -> None:
    commit = json.loads((group / COMMIT).read_bytes())
    body = {name: value for name, value in commit.items() if name != "self_sha256"} | {"attempt": 7}
    (group / COMMIT).write_bytes(canonical_json(body | {"self_sha256": digest(body)}))
    report = verify_checkpoint(group, CONFIG.integrity)
    assert report.layer == "manifest" and "another run, attempt or step" in report.reason


def test_without_contents_only_names_sizes_and_records_are_looked_at(group: Path) -> None:
    flip(group / MODEL, 5000)
    assert verify_checkpoint(group, IntegrityConfig(contents=False)).ok
    truncate(group / MODEL)
    assert verify_checkpoint(group, IntegrityConfig(contents=False)).layer == "parts"


def test_the_hash_of_train_json_is_compared_by_all_that_read_it(group: Path) -> None:
    flip(group / TRAIN, 5)
    report = verify_checkpoint(group, replace(CONFIG.integrity, contents=False))
    assert (report.layer, report.reason) == ("hash", f"{TRAIN} does not match its BLAKE3")
    with pytest.raises(StorageError, match=f"failed at hash: {TRAIN} does not match its BLAKE3"):
        load_checkpoint(group)


def test_nothing_outside_the_folder_is_touched(tmp_path: Path, group: Path) -> None:
    """A part that leads out is refused without being opened for what it leads to: a FIFO would
    block for ever.
    """
    outside = tmp_path / "outside"
    os.mkfifo(outside)
    (group / MODEL).unlink()
    (group / MODEL).symlink_to(outside)
    assert verify_checkpoint(group, CONFIG.integrity).layer == "parts"


def test_every_layer_is_shown_to_refuse_something() -> None:
    shown = {damage.layer for damage in DAMAGES} | {"schema", "tensors", "finite", "file"}
    assert shown == set(LAYERS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda train: train.update(global_step=5),
            "train.json says global_step 5, the manifest 6",
        ),
        (lambda train: train["sampler"].update(epoch=9), "train.json says epoch 9, the manifest 0"),
        (
            lambda train: train["sampler"].update(cursor_step=9),
            "train.json says cursor_step 9, the manifest",
        ),
        (lambda train: train["sampler"].update(seed=9), "train.json says seed 9, the manifest 1"),
    ],
)
def test_a_train_json_of_another_place_than_the_manifest_is_refused_though_all_hashes_agree(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    store = store_at(tmp_path)
    path = store.save(synthetic_image(1, 6, synthetic_plan(4096, 2048), restorable=True), 0).path
    store.close()
    config = IntegrityConfig(restorable=True)
    assert verify_checkpoint(path, config).ok
    train = json.loads((path / TRAIN).read_bytes())
    change(train)
    store_fixture.forge(path, lambda manifest: None, {TRAIN: canonical_json(train)})
    report = verify_checkpoint(path, config)
    assert (report.ok, report.layer) == (False, "schema") and report.reason.startswith(said)


@pytest.mark.parametrize("bad", [None, 0, PIECE // 4, 2 * PIECE // 4 + 1])
def test_a_large_tensor_is_finite_where_all_its_pieces_are(tmp_path: Path, bad: int | None) -> None:
    """Three pieces: not finite in the first, in the middle, in the last."""
    values = np.ones(2 * PIECE // 4 + 7, dtype=np.float32)
    if bad is not None:
        values[bad] = np.nan
    (tmp_path / "large").write_bytes(values.tobytes())
    place = TensorPlace(TensorSpec("parameters.large", "torch.float32", values.shape), 0)
    fs = PosixFs()
    fd = fs.open(tmp_path / "large", os.O_RDONLY)
    ((digest_of, sound),) = _hash_leaves(
        fs, fd, [Leaf(0, values.nbytes, b"", place)], "blake3", "model"
    )
    assert sound == (bad is None)
    # of a part that is one leaf, whose tensors are looked at after it
    entry = PartEntry(values.nbytes, digest_of, (), {})
    with (
        nullcontext()
        if bad is None
        else pytest.raises(CheckpointRejected, match=r"parameters\.large")
    ):
        _check_tensors(fs, [(fd, entry, place)], "blake3", "model", once=True)
    fs.close(fd)
