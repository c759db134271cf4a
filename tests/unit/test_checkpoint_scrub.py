"""A scrub answers as the integrity check does, reading each byte once; a sample that holds a bad
one makes it look at all; nothing is changed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import struct
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.checkpoint.format.hashing import document_entry, tensor_digest
from ecrl_cli.checkpoint.format.manifest import make_commit, read_manifest
from ecrl_cli.checkpoint.format.names import (
    COMMIT,
    LATEST,
    LATEST_OK,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    TRAIN,
)
from ecrl_cli.checkpoint.repair.scrub import Scrub, ScrubConfig, sampled, scrub
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, verify_checkpoint
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import synthetic_image, synthetic_plan
from ecrl_cli.config.codec import encode
from ecrl_cli.errors import StorageError
from ecrl_cli.storage import safe_read
from ecrl_cli.storage.fs import PosixFs
from tests.unit.checkpoint_support import commit, flip, store_at
from tests.unit.test_checkpoint_diagnose import CountingFs
from tests.unit.test_checkpoint_integrity import (
    DAMAGES,
    FORGED_HEADERS,
    Damage,
    forge,
    header_edited,
)


def folder_of(root: Path, count: int, *, single: bool = False) -> Path:
    """`checkpoints/` with `count` of them, steps 10, 20, ..."""
    store = store_at(root, StoreConfig(keep=100))
    for number in range(count):
        commit(store, 10 * (number + 1), single=single)
    store.close()
    return store.root


examine_once = partial(verify_checkpoint, once=True)


@pytest.fixture
def group(tmp_path: Path) -> Path:
    return folder_of(tmp_path, 2) / "step_00000020"


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_the_answer_is_that_of_the_integrity_check(group: Path, damage: Damage) -> None:
    assert examine_once(group) == verify_checkpoint(group)
    damage.do(group / damage.file)
    assert examine_once(group) == verify_checkpoint(group)


@pytest.mark.parametrize("case", FORGED_HEADERS)
def test_the_answer_to_a_forged_header_is_that_of_the_integrity_check(
    group: Path, case: str
) -> None:
    forge(group, header_edited(group, FORGED_HEADERS[case]))
    assert examine_once(group) == verify_checkpoint(group)
    assert examine_once(group).layer == "schema"


def padded(data: bytes) -> bytes:
    """The same file with a header of another length: the numbers no longer lie at a multiple of
    their size.
    """
    (length,) = struct.unpack("<Q", data[:8])
    return struct.pack("<Q", length + 1) + data[8 : 8 + length] + b" " + data[8 + length :]


@pytest.mark.parametrize("arrange", [bytes, padded], ids=["as we lay it out", "otherwise"])
@pytest.mark.parametrize("value", [1.0, float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_seen_wherever_they_lie(
    group: Path, value: float, arrange: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_read, "PIECE", 4096)  # so that a file comes in many
    data = bytearray((group / MODEL).read_bytes())
    data[-4:] = struct.pack("<f", value)
    forge(
        group,
        arrange(bytes(data)),
        digest=tensor_digest("torch.float32", (10_000,), bytes(data[-40_000:])),
    )
    assert (
        examine_once(group).layer
        == verify_checkpoint(group).layer
        == ("" if value == 1.0 else "finite")
    )


def test_a_train_json_that_is_none_is_refused_even_if_all_hashes_agree(group: Path) -> None:
    data, value = b"not JSON", json.loads((group / MANIFEST).read_bytes())
    value["parts"][TRAIN] = encode(document_entry(data))
    manifest = canonical_json(value)
    (group / TRAIN).write_bytes(data)
    (group / MANIFEST).write_bytes(manifest)
    (group / COMMIT).write_bytes(
        make_commit(read_manifest(manifest), hashlib.sha256(manifest).hexdigest(), None).encoded()
    )
    assert examine_once(group).layer == verify_checkpoint(group).layer == "schema"


@pytest.mark.parametrize("deep", [False, True])
def test_a_writer_that_digested_other_bytes_is_seen(group: Path, deep: bool) -> None:
    """Where the bytes of a part are hashed as one, as in a `.pt` file, in a deep look alone
    (test_checkpoint_torch_file.py).
    """
    forge(group, (group / MODEL).read_bytes(), digest="0" * 64)
    looked = scrub(group.parent, config=ScrubConfig(deep=deep)).looked
    assert [one.report.layer for one in looked] == ["tensors", ""]


def test_each_byte_is_read_once(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    path = store.save(synthetic_image(1, 10, synthetic_plan(9_000_000, 5_000_000)), 0).path
    store.close()
    fs = CountingFs()
    assert examine_once(path, fs=fs).ok
    for name in (MODEL, OPTIMIZER):
        size = (path / name).stat().st_size
        assert size <= fs.read[name] < size + 1000, (
            "the header is looked at again when its hash is known"
        )


def names_of(found: Scrub) -> list[tuple[str, bool]]:
    return [(one.report.path.name, one.ok) for one in found.looked]


def test_all_are_looked_at_newest_first(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 3)
    flip(folder / "step_00000020" / MODEL, 5000, 2)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = scrub(folder)
    assert names_of(found) == [
        ("step_00000030", True),
        ("step_00000020", False),
        ("step_00000010", True),
    ]
    assert [one.diagnosis is None for one in found.looked] == [True, False, True]
    assert (found.total, found.valid, found.spread, found.pointers) == (3, 2, False, ())
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("count", "numbers"),
    [(0, [0, 1, 2, 3, 4]), (1, [0]), (2, [0, 4]), (3, [0, 2, 4]), (9, [0, 1, 2, 3, 4])],
)
def test_a_sample_is_the_newest_and_spread_evenly(count: int, numbers: list[int]) -> None:
    entries: list[Any] = [0, 1, 2, 3, 4]
    assert sampled(entries, count) == numbers


def test_a_bad_neighbour_makes_a_sample_look_at_all(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 5)
    flip(folder / "step_00000040" / MODEL, 5000)
    quiet = scrub(folder, config=ScrubConfig(sample=2))
    assert (len(quiet.looked), quiet.total, quiet.spread) == (
        2,
        5,
        False,
    ), "the bad one is not in this sample"
    flip(folder / "step_00000010" / MODEL, 5000)
    loud = scrub(folder, config=ScrubConfig(sample=2))
    assert loud.spread and [ok for _, ok in names_of(loud)] == [True, False, True, True, False]


def pointer_to(target: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / LATEST).write_text(json.dumps({"path": target}))

    return change


def link_to(target: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / LATEST_OK).unlink()
        (folder / LATEST_OK).symlink_to(target)

    return change


def no_link(folder: Path) -> None:
    (folder / LATEST_OK).unlink()
    (folder / LATEST_OK).write_text("step_00000020")


def fifo(folder: Path) -> None:
    (folder / LATEST).unlink()
    os.mkfifo(folder / LATEST)


POINTERS: list[tuple[str, Callable[[Path], object], str]] = [
    ("cut", lambda folder: os.truncate(folder / LATEST, 9), "latest.json is damaged"),
    (
        "no path",
        lambda folder: (folder / LATEST).write_text("{}"),
        "latest.json is damaged (names no path)",
    ),
    (
        "a list",
        lambda folder: (folder / LATEST).write_text('["path"]'),
        "latest.json is damaged (names no path)",
    ),
    (
        "a path that is a number",
        lambda folder: (folder / LATEST).write_text('{"path":20}'),
        "latest.json is damaged (names no path)",
    ),
    (
        "deep",
        lambda folder: (folder / LATEST).write_text("[" * 4000),
        "latest.json is damaged (nested deeper",
    ),
    ("huge", lambda folder: os.truncate(folder / LATEST, 2**40), "latest.json is damaged"),
    ("fifo", fifo, "latest.json is damaged (latest.json is not a regular file)"),
    (
        "to nothing",
        pointer_to("step_00000099"),
        "latest.json points to 'step_00000099', which is no checkpoint here",
    ),
    (
        "outside",
        pointer_to("../../etc/passwd"),
        "latest.json points to '../../etc/passwd', which is no checkpoint here",
    ),
    (
        "link to nothing",
        link_to("step_00000099"),
        "latest_ok points to 'step_00000099', which is no checkpoint here",
    ),
    (
        "link to itself",
        link_to("latest_ok"),
        "latest_ok points to 'latest_ok', which is no checkpoint here",
    ),
    ("no link", no_link, "latest_ok is damaged (is no symbolic link)"),
]


@pytest.mark.parametrize(("name", "do", "words"), POINTERS, ids=[row[0] for row in POINTERS])
def test_a_damaged_pointer_is_named(
    tmp_path: Path, name: str, do: Callable[[Path], object], words: str
) -> None:
    folder = folder_of(tmp_path, 2)
    do(folder)
    (complaint,) = scrub(folder).pointers
    assert complaint.startswith(words), name


def test_pointers_to_a_refused_checkpoint_are_named_and_none_are_missed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 2)
    flip(folder / "step_00000020" / TRAIN, 3)
    assert scrub(folder).pointers == tuple(
        f"{name} points to step_00000020, which is refused" for name in (LATEST, LATEST_OK)
    )
    (folder / LATEST).unlink()
    (folder / LATEST_OK).unlink()
    assert scrub(folder).pointers == ()


def test_what_was_set_aside_is_listed_and_not_judged(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 2)
    (folder / "step_00000010").rename(folder / ".rejected_step_00000010.abc")
    (folder / ".rejected_step_00000010.abc" / COMMIT).unlink()
    (folder / ".stage_00000030.0.abc").mkdir()
    found = scrub(folder)
    assert names_of(found) == [("step_00000020", True)]
    assert found.aside == (".rejected_step_00000010.abc", ".stage_00000030.0.abc")


class AtWork(PosixFs):
    """As soon as the oldest checkpoint is opened, `store` commits another, and so retires what is
    too old.
    """

    def __init__(self, store: CheckpointStore, step: int, *, single: bool) -> None:
        super().__init__()
        self._store, self._step, self._single = store, step, single
        self._lock = threading.Lock()

    def _commit_once(self, name: str) -> None:
        with self._lock:
            if name.startswith("step_00000010") and self._step:
                commit(self._store, self._step, single=self._single)
                self._step = 0

    def open(self, path: Path, flags: int) -> int:
        self._commit_once(path.name)
        return super().open(path, flags)

    def open_at(self, folder: int, name: str, flags: int) -> int:
        self._commit_once(name)
        return super().open_at(folder, name, flags)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("sample", [0, 2])
def test_what_a_writer_retires_and_commits_meanwhile_is_no_damage(
    tmp_path: Path, sample: int, single: bool
) -> None:
    folder = folder_of(tmp_path, 3, single=single)
    store = store_at(tmp_path)
    found = scrub(folder, config=ScrubConfig(sample), fs=AtWork(store, 40, single=single))
    store.close()
    assert store.newest_valid().report.global_step == 40  # type: ignore[union-attr]
    assert found.valid == len(found.looked) and not found.spread and found.pointers == ()
    assert len(found.looked) < 3 and found.total < 3


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_what_this_process_lacks_is_not_the_checkpoints_fault(tmp_path: Path, number: int) -> None:
    folder = folder_of(tmp_path, 2)

    class Poor(PosixFs):
        def open_at(self, folder: int, name: str, flags: int) -> int:
            if name == OPTIMIZER:
                raise StorageError.of("open", name, OSError(number, os.strerror(number)))
            return super().open_at(folder, name, flags)

    with pytest.raises(StorageError, match=errno.errorcode[number]):
        scrub(folder, fs=Poor())


@pytest.mark.parametrize("gone", [".json", ".safetensors"])
def test_half_of_a_single_file_checkpoint_is_refused(tmp_path: Path, gone: str) -> None:
    folder = folder_of(tmp_path, 2, single=True)
    (folder / f"step_00000010{gone}").unlink()
    assert names_of(scrub(folder)) == [
        ("step_00000020.safetensors", True),
        ("step_00000010.safetensors", False),
    ]
    (folder / f"step_00000020{gone}").unlink()
    assert names_of(scrub(folder)) == [
        ("step_00000020.safetensors", False),
        ("step_00000010.safetensors", False),
    ], "the newest first"


def test_two_forms_of_one_step_are_both_looked_at_in_one_order(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    folder, other = folder_of(tmp_path, 2), folder_of(tmp_path / "other", 1, single=True)
    for name in ("step_00000010.json", "step_00000010.safetensors"):
        shutil.copy(other / name, folder / name)
    looked = names_of(scrub(folder))
    assert looked == [
        ("step_00000020", True),
        ("step_00000010.safetensors", True),
        ("step_00000010", True),
    ]


def test_hostile_entries_are_refused_and_not_followed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 2)
    (folder / "step_00000030").symlink_to(folder / "step_00000020")
    (folder / "step_00000040").symlink_to("step_00000040")
    os.mkfifo(folder / "step_00000050")
    (folder / "step_00000060.safetensors").mkdir()
    os.mkfifo(folder / "step_00000060.json")
    os.truncate(folder / "step_00000010" / OPTIMIZER, 2**42)
    assert [ok for _, ok in names_of(scrub(folder))] == [False, False, False, False, True, False]


def test_more_bytes_than_allowed_are_neither_read_nor_searched(group: Path) -> None:
    fs = CountingFs()
    found = scrub(
        group.parent,
        config=ScrubConfig(integrity=IntegrityConfig(trust_owner=True, max_bytes=1000)),
        fs=fs,
    )
    assert found.valid == 0 and fs.read[OPTIMIZER] == fs.read[MODEL] == 0
