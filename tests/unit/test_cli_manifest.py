"""Folders of strangers' files under a manifest: what it says of a change, and what a hostile file
cannot do.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ecrl_cli.checkpoint.repair.folder_manifest import FOLDER_MANIFEST, folder_manifest
from ecrl_cli.cli.main import main

WEIGHTS: dict[str, Any] = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.zeros(3, np.float64),
    "n": np.array(7),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a stranger, with its manifest."""
    place = tmp_path / "weights"
    (place / "deep").mkdir(parents=True)
    save_file(WEIGHTS, place / "model.safetensors")
    np.savez(place / "deep" / "state.npz", **WEIGHTS)
    np.savez_compressed(place / "packed.npz", **WEIGHTS)
    np.save(place / "one.npy", np.asfortranarray(WEIGHTS["w"]))
    (place / "notes.txt").write_text("lr 0.1")
    assert main(["verify", str(place), "--manifest"]) == 0
    return place


def said(folder: Path, capsys: pytest.CaptureFixture[str], code: int) -> list[str]:
    capsys.readouterr()
    assert main(["verify", str(folder), "--manifest"]) == code
    return capsys.readouterr().out.splitlines()


def test_the_first_time_digests_are_written_and_then_held_against(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / FOLDER_MANIFEST).unlink()
    assert said(folder, capsys, 0) == [
        f"{folder}: 5 files, 10 tensors; digests written to {FOLDER_MANIFEST}"
    ]
    assert said(folder, capsys, 0) == [f"{folder}: 5 files, 10 tensors, as in {FOLDER_MANIFEST}"]
    written = json.loads((folder / FOLDER_MANIFEST).read_text())
    shapes = {
        name: tensor["shape"]
        for name, tensor in written["files"]["deep/state.npz"]["tensors"].items()
    }
    assert (
        shapes
        == {"w": [2, 3], "b": [3], "n": []}
        == {n: t["shape"] for n, t in written["files"]["model.safetensors"]["tensors"].items()}
    )
    digests = [
        [tensor["digest"] for tensor in written["files"][file]["tensors"].values()]
        for file in ("deep/state.npz", "packed.npz")
    ]
    assert digests[0] == digests[1], "of the values, not of how they are packed"


def changed(**tensors: Any) -> Callable[[Path], object]:
    return lambda place: save_file(WEIGHTS | tensors, place / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            changed(w=WEIGHTS["w"] + 1),
            "model.safetensors: changed: other values in 'w'; 2 tensors are the same",
        ),
        (changed(b=np.zeros(4)), "another dtype or shape: 'b'"),
        (changed(extra=np.ones(1)), "has new 'extra'; 3 tensors are the same"),
        (
            changed(w=WEIGHTS["w"] * np.float32("nan")),
            "other values in 'w'; NaN or infinity in 'w'",
        ),
        (
            lambda place: np.savez(place / "packed.npz", **WEIGHTS),
            "packed.npz: changed: every tensor is the same (3), the bytes around them are not",
        ),
        (
            lambda place: (place / "notes.txt").write_text("lr 0.2"),
            "notes.txt: changed: other bytes of the same number",
        ),
        (lambda place: (place / "one.npy").unlink(), "one.npy: missing: is gone"),
        (
            lambda place: os.truncate(place / "deep" / "state.npz", 300),
            "deep/state.npz: damaged: cannot be loaded any more (BadZipFile",
        ),
        (
            lambda place: os.truncate(place / "model.safetensors", 200),
            "model.safetensors: damaged: cannot be loaded any more (ValueError: tensors end at",
        ),
    ],
)
def test_what_changed_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], object], line: str
) -> None:
    change(folder)
    lines = said(folder, capsys, 1)
    assert (
        lines[0] == f"{folder}: 4 of 5 files as in {FOLDER_MANIFEST}"
        and line in lines[1]
        and len(lines) == 3
    )


def test_a_new_file_is_unknown_not_invalid(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "new.bin").write_bytes(b"1")
    assert "  new.bin: new, not in the manifest" in said(folder, capsys, 3)


def test_a_damaged_manifest_vouches_for_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / FOLDER_MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"bytes":6', b'"bytes":7', 1))
    assert said(folder, capsys, 3) == []
    assert main(["verify", str(folder), "--manifest"]) == 3
    assert "cannot vouch for anything (its own digest does not match)" in capsys.readouterr().err


def test_json_says_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "one.npy").unlink()
    capsys.readouterr()
    assert main(["verify", str(folder), "--manifest", "--json"]) == 1
    (document,) = json.loads(capsys.readouterr().out).values()
    assert document == {
        "status": "invalid",
        "files": 4,
        "changes": [{"path": "one.npy", "status": "missing", "said": "is gone"}],
    }


def test_hostile_files_are_digested_and_never_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "hostile"
    place.mkdir()
    np.save(place / "pickled.npy", np.array([os.getcwd], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(place / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "big.npy",
            b"\x93NUMPY\x01\x00v\x00"
            + b"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999,), }".ljust(117)
            + b"\n"
            + bytes(2**20),
        )
    header = json.dumps(
        {"a\x1b[2J": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}
    ).encode()
    (place / "lies.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    (place / "link.npz").symlink_to("/etc/passwd")
    os.mkfifo(place / "pipe.npy")
    found = folder_manifest(place, 2**30).files
    assert {
        path: file.problem.partition(":")[0]
        for path, file in found.items()
        if path.endswith((".npy", "s.safetensors"))
    } == {
        "lies.safetensors": "ValueError",
        "pickled.npy": "ValueError",
        "pipe.npy": "pipe.npy is not a regular file",
    }
    assert (
        "Python objects" in found["pickled.npy"].problem
        and "at most 1073741824 are read" in found["bomb.npz"].problem
    )
    assert found["link.npz"].digest == "" and "ELOOP" in found["link.npz"].problem
    assert main(["verify", str(place), "--manifest"]) == 0 and "\x1b" not in capsys.readouterr().out
    assert main(["verify", str(place), "--manifest"]) == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere", "--manifest"], "does not exist"),
        (["empty", "--manifest"], "holds no file"),
        (["full", "--manifest", "--deep"], "--deep is not"),
        (["full", "--manifest", "--max-bytes", "-1"], "must not be negative"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("a")
    assert main(["verify", *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert (
        len(lines) == 1 and line in lines[0] and not (tmp_path / "full" / FOLDER_MANIFEST).exists()
    )
