"""The MAC on the commit record: forgeries that agree with themselves, which nothing but a key can
tell from the original.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest
from ecrl_cli.checkpoint.format.hashing import tensor_digest
from ecrl_cli.checkpoint.format.manifest import make_commit, read_commit, read_manifest
from ecrl_cli.checkpoint.format.names import COMMIT, MANIFEST, MODEL
from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.config.build import build
from ecrl_cli.config.hmac_key import read_key
from ecrl_cli.config.identity import run_id
from ecrl_cli.config.machine import check_machine
from ecrl_cli.errors import ConfigError
from ecrl_cli.studies.frame.store_fixture import part_entry
from tests.unit.checkpoint_support import CONFIG, commit, image, store_at

KEY, OTHER = b"k" * 32, b"o" * 32


def with_key(key: bytes) -> StoreConfig:
    return replace(CONFIG, integrity=replace(CONFIG.integrity, hmac_key=key))


def forge(group: Path, number: int, key: bytes = b"") -> None:
    """Another model than was saved, and every record rewritten so that all agree: part, manifest,
    commit, the chain to its predecessor.
    """
    data = bytearray((group / MODEL).read_bytes())
    data[-40_000 + 4 * number] ^= 1 << number % 8
    (group / MODEL).write_bytes(data)
    value = json.loads((group / MANIFEST).read_bytes())
    part = value["parts"][MODEL]
    part["tensors"]["parameters.weight"]["digest"] = tensor_digest(
        "torch.float32", (10_000,), bytes(data[-40_000:])
    )
    part.update(part_entry(MODEL, bytes(data), part["tensors"]))
    manifest = canonical_json(value)
    (group / MANIFEST).write_bytes(manifest)
    previous = (
        json.loads((group / COMMIT).read_bytes())["prev_commit_sha256"] if number % 2 else None
    )
    made = make_commit(read_manifest(manifest), hashlib.sha256(manifest).hexdigest(), previous, key)
    (group / COMMIT).write_bytes(made.encoded())


def recommit(group: Path, **changes: object) -> None:
    """Edit the commit record and let its own sum agree."""
    body = json.loads((group / COMMIT).read_bytes()) | changes
    del body["self_sha256"]
    (group / COMMIT).write_bytes(canonical_json(body | {"self_sha256": digest(body)}))


@pytest.mark.parametrize("number", range(20))
def test_a_consistent_forgery_is_seen_with_the_key_and_only_with_it(
    tmp_path: Path, number: int
) -> None:
    store = store_at(tmp_path, with_key(KEY))
    commit(store, 10)
    group = commit(store, 20).path
    store.close()
    mac = json.loads((group / COMMIT).read_bytes())["hmac_sha256"]
    forge(group, number, OTHER if number % 3 == 0 else b"")
    if number % 3 == 1:
        recommit(group, hmac_sha256=mac)  # the genuine record's MAC, copied
    assert verify_checkpoint(group, CONFIG.integrity).ok, (
        "a forger who makes everything agree is not seen without a key: this is what the key is for"
    )
    report = verify_checkpoint(group, with_key(KEY).integrity)
    assert report.layer == "commit" and "hmac_sha256" in report.reason


@pytest.mark.parametrize("single", [False, True])
def test_a_store_with_a_key_accepts_its_own_and_refuses_what_has_no_mac(
    tmp_path: Path, single: bool
) -> None:
    plain = store_at(tmp_path)
    commit(plain, 10, single=single)
    plain.close()
    store = store_at(tmp_path, with_key(KEY), attempt=1)
    saved = commit(store, 20, single=single, attempt=1)
    assert [
        report.ok for report in map(store.verify, (entry.path for entry in store.entries()))
    ] == [True, False]
    assert store.verify(store.entries()[1].path).layer == "commit"
    choice = store.newest_valid()
    assert choice.report is not None and choice.report.commit_sha256 == saved.commit_sha256
    assert verify_checkpoint(saved.path, CONFIG.integrity).ok, (
        "without a key the MAC is not looked at"
    )
    assert verify_checkpoint(saved.path, with_key(OTHER).integrity).layer == "commit"
    store.close()


def test_the_same_state_saved_again_is_committed_and_one_without_a_mac_is_set_aside(
    tmp_path: Path,
) -> None:
    plain = store_at(tmp_path)
    commit(plain, 10)
    plain.close()
    store: CheckpointStore = store_at(tmp_path, with_key(KEY))
    first, second = store.save(image(10), 0), store.save(image(10), 0)
    assert first.commit_sha256 == second.commit_sha256 and store.verify(first.path).ok
    assert [path.name.startswith(".rejected_") for path in sorted(store.root.iterdir())].count(
        True
    ) == 1
    store.close()


def test_without_a_key_the_record_is_what_it_was(tmp_path: Path) -> None:
    group = commit(store_at(tmp_path), 20).path
    value = json.loads((group / COMMIT).read_bytes())
    assert sorted(value) == [
        "attempt",
        "global_step",
        "manifest_sha256",
        "prev_commit_sha256",
        "run_id",
        "self_sha256",
    ]


@pytest.mark.parametrize(
    "change",
    [{"hmac_sha256": ""}, {"hmac_sha256": "é" * 64}, {"hmac_sha256": 7}, {"hmac_sha256": "0" * 64}],
)
def test_a_mac_that_is_none_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    group = commit(store_at(tmp_path, with_key(KEY)), 20).path
    recommit(group, **change)
    assert verify_checkpoint(group, with_key(KEY).integrity).layer == "commit"


def test_no_mac_has_one_spelling(tmp_path: Path) -> None:
    group = commit(store_at(tmp_path), 20).path
    recommit(group, hmac_sha256=None)
    with pytest.raises(ValueError, match="null"):
        read_commit((group / COMMIT).read_bytes())


def test_a_key_is_never_shown() -> None:
    assert "kkkk" not in repr(with_key(KEY)) and str(KEY) not in repr(with_key(KEY))


def as_link(path: Path) -> None:
    path.rename(path.with_name("there"))
    path.symlink_to(path.with_name("there"))


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


UNFIT: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "cannot be read"),
    "short": (lambda path: os.truncate(path, 31), "31 bytes"),
    "huge": (lambda path: os.truncate(path, 2**40), "bytes"),
    "read by all": (lambda path: path.chmod(0o644), "0644"),
    "written by the group": (lambda path: path.chmod(0o620), "0620"),
    "executable": (lambda path: path.chmod(0o700), "0700"),
    "a link": (as_link, "cannot be read"),
    "a fifo": (as_fifo, "regular"),
    "a folder": (lambda path: (path.unlink(), path.mkdir(mode=0o600)), "regular"),
}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("unfit", UNFIT)
def test_a_key_file_that_does_not_keep_a_secret_is_refused_before_anything_starts(
    key_file: Path, unfit: str
) -> None:
    spoil, word = UNFIT[unfit]
    spoil(key_file)
    with pytest.raises(ConfigError, match=word) as caught:
        check_machine(build({"checkpoint": {"hmac_key_file": str(key_file)}}))
    assert caught.value.key == "checkpoint.hmac_key_file" and caught.value.exit_code == 2


def test_a_key_file_of_somebody_else_is_refused(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: key_file.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="belongs to uid"):
        read_key(str(key_file))


def test_where_the_key_lies_is_no_part_of_the_run_and_reaches_the_store(key_file: Path) -> None:
    keyed, plain = build({"checkpoint": {"hmac_key_file": str(key_file)}}), build({})
    assert run_id(keyed) == run_id(plain)
    assert (
        StoreConfig.of(keyed, "").integrity.hmac_key,
        StoreConfig.of(plain, "").integrity.hmac_key,
    ) == (KEY, b"")
