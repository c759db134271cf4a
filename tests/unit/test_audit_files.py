"""The inventory of what a job leaves: every file by its content, read without torch, and nothing
that it holds is executed.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import os
import pickle
import random
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from ecrl_cli.audit.files import FILES, inventory, read_inventory, write_inventory
from ecrl_cli.errors import RecordError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@dataclass
class Progress:
    """What a job may keep in a `.pt`."""

    step: int
    scores: list[float]


def _state() -> dict[Any, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    random.seed(1)
    np.random.seed(1)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "generator": np.random.default_rng(1),
        "args": argparse.Namespace(lr=0.1, resume=None),
        "progress": Progress(3, [0.5]),
        "strided": torch.arange(6.0).reshape(2, 3).t(),
        "conjugated": torch.tensor([1 + 2j]).conj(),
        "negated": torch.tensor([1 + 2j]).conj().imag,
        "set": {"c", "a", "b"},
        "bytes": b"ab\xff",
        "counts": collections.Counter("aab"),
        "dtype": torch.bfloat16,
        "small": torch.ones(2).to(torch.float8_e4m3fn),
        "score": torch.tensor(0.75),
        (1, "a"): None,
    }


def _entries(folder: Path, name: str) -> dict[str, str]:
    return dict(inventory(folder)["files"][name]["entries"])


def test_every_value_of_a_pt_has_its_place(tmp_path: Path) -> None:
    torch.save(_state(), tmp_path / "last.pt")
    entries = _entries(tmp_path, "last.pt")
    assert (
        entries["progress.step"] == "3"
        and entries["progress.scores[0]"] == "0.5"
        and entries["args.lr"] == "0.1"
    )
    assert (
        entries["score"].startswith("tensor(0.75) float32 ()")
        and entries["set"] == "{'a', 'b', 'c'}"
    )
    assert entries["optimizer.state.0.exp_avg"].startswith("float32 (3, 4) ") and entries[
        "python[1]"
    ].startswith("625 numbers ")
    assert entries["optimizer.param_groups[0].lr"] == "0.001" and entries["(1, 'a')"] == "None"


def test_a_value_is_the_same_however_it_is_laid_out(tmp_path: Path) -> None:
    """Strides, conjugation and sign bits, the format before zip, an object that was loaded and
    saved again.
    """
    state = _state()
    plain = state | {
        name: state[name].resolve_conj().resolve_neg().contiguous()
        for name in ("strided", "conjugated", "negated")
    }
    torch.save(state, tmp_path / "a.pt")
    torch.save(plain, tmp_path / "b.pt")
    torch.save(state, tmp_path / "c.pt", _use_new_zipfile_serialization=False)
    torch.save(torch.load(tmp_path / "a.pt", weights_only=False), tmp_path / "d.pt")
    first = _entries(tmp_path, "a.pt")
    assert len(first) > 60
    for other in ("b.pt", "c.pt", "d.pt"):
        assert _entries(tmp_path, other) == first, other


@pytest.mark.parametrize("name", ["strided", "conjugated", "negated", "score", "small", "torch"])
def test_another_element_is_another_entry(tmp_path: Path, name: str) -> None:
    state = _state()
    torch.save(state, tmp_path / "a.pt")
    changed = state[name].resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    changed.reshape(-1).view(torch.uint8)[-1] ^= 1
    torch.save(state | {name: changed}, tmp_path / "b.pt")
    one, other = _entries(tmp_path, "a.pt"), _entries(tmp_path, "b.pt")
    assert {key for key in one if one[key] != other[key]} == {name}


@pytest.mark.parametrize("protocol", [2, 4, pickle.DEFAULT_PROTOCOL])
def test_tensors_in_a_plain_pickle_are_compared_by_content(tmp_path: Path, protocol: int) -> None:
    state = _state()
    plain = {key: state[key] for key in ("strided", "conjugated", "negated", "small", "model")}
    for name, value in (("a.pkl", plain), ("b.pkl", copy.deepcopy(plain))):
        (tmp_path / name).write_bytes(pickle.dumps(value, protocol))
    first = _entries(tmp_path, "a.pkl")
    assert first == _entries(tmp_path, "b.pkl") and "float" in first["strided"]
    torch.save(plain, tmp_path / "c.pt")
    assert first == _entries(tmp_path, "c.pt")
    plain["small"].view(torch.uint8).reshape(-1)[-1] ^= 1
    (tmp_path / "d.pkl").write_bytes(pickle.dumps(plain, protocol))
    other = _entries(tmp_path, "d.pkl")
    assert {key for key in first if first[key] != other[key]} == {"small"}


def test_a_number_in_a_file_of_numpy_is_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", n=3, w=np.ones(2), name="x")
    np.save(tmp_path / "b.npy", np.float32(0.5))
    entries = _entries(tmp_path, "a.npz")
    assert entries["n"].startswith("tensor(3) ") and entries["w"].startswith("<f8 (2,) ")
    assert entries["name"].startswith("<U1 ()")
    assert _entries(tmp_path, "b.npy")[""].startswith("tensor(0.5) ")


def test_a_file_of_torch_inside_a_zip_is_compared_by_content(tmp_path: Path) -> None:
    """Its bytes differ after a load."""
    state = {"w": torch.ones(3), "names": ["a", "b"]}
    torch.save(state, tmp_path / "a.pt")
    torch.save(torch.load(tmp_path / "a.pt"), tmp_path / "b.pt")
    torch.save(state | {"names": ["a", "c"]}, tmp_path / "c.pt")
    for name in "abc":
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(tmp_path / f"{name}.pt", "state.pt")
            archive.writestr("vocab.json", "[1]")
    first = _entries(tmp_path, "a.zip")
    assert set(first) > {"state.pt: w", "vocab.json"} and first == _entries(tmp_path, "b.zip")
    other = _entries(tmp_path, "c.zip")
    assert {key for key in first if first[key] != other[key]} == {"state.pt: names[1]"}


def test_a_dcp_folder_is_one_file_of_values(tmp_path: Path) -> None:
    """Its byte entries too, and keys as in a `.pt` of the same state."""
    state = {
        "model": {"w": torch.arange(6.0)},
        "n": 3,
        "list": [1, torch.ones(2)],
        "opt": {0: {"step": 2}},
    }
    dcp.save(state, checkpoint_id=tmp_path / "step-3", no_dist=True)
    torch.save(state, tmp_path / "step-3.pt")
    (tmp_path / "step-3" / "extra.json").write_text("[1]")
    files = inventory(tmp_path)["files"]
    assert sorted(files) == ["step-3", "step-3.pt", "step-3/extra.json"]
    assert files["step-3"]["entries"] == files["step-3.pt"]["entries"]


def test_other_formats_by_content(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    np.save(tmp_path / "b.npy", np.eye(2))
    (tmp_path / "c.json").write_text(
        json.dumps({"a": [1, {"b": None}], "where": str(tmp_path / "last.pt")})
    )
    (tmp_path / "d.csv").write_text("step,loss\n1,0.5\n")
    (tmp_path / "e.onnx").write_bytes(b"\0\1\2")
    (tmp_path / "latest").symlink_to("step-3")
    with zipfile.ZipFile(tmp_path / "f.zip", "w") as archive:
        archive.writestr("inner.txt", "x")
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "g.pt"))  # type: ignore[no-untyped-call]
    files = inventory(tmp_path)["files"]
    kinds = {name: content["kind"] for name, content in files.items()}
    values = dict.fromkeys(
        ("model.safetensors", "a.npz", "b.npy", "c.json", "f.zip", "g.pt"), "values"
    )
    assert kinds == values | {"d.csv": "lines", "e.onnx": "bytes", "latest": "link"}
    assert files["c.json"]["entries"] == {"a[0]": "1", "a[1].b": "None", "where": "'{dir}/last.pt'"}
    assert (
        files["d.csv"]["lines"] == ["step,loss", "1,0.5"] and files["latest"]["digest"] == "step-3"
    )


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["ECRL_TEST_MARK"],)


def test_code_is_described_and_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECRL_TEST_MARK", str(tmp_path / "mark"))
    torch.save({"x": _Code()}, tmp_path / "a.pt")
    (tmp_path / "b.pkl").write_bytes(pickle.dumps(_Code()))
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / ".metadata").write_bytes(pickle.dumps(_Code()))
    (tmp_path / "step-1" / "__0_0.distcp").write_bytes(b"")
    files = inventory(tmp_path)["files"]
    assert not (tmp_path / "mark").exists()
    assert (
        files["a.pt"]["entries"]["x"].startswith("posix.mkdir")
        and files["step-1"]["kind"] == "unreadable"
    )


def _nested() -> bytes:
    """Sixty lists, each with the one before in it twice: 2**60 paths."""
    value: list[Any] = [1]
    for _ in range(60):
        value = [value, value]
    return pickle.dumps(value)


HOSTILE = {
    "many.pkl": _nested(),
    "torn.pt": b"PK\x03\x04 and no more",
    "cycle.pkl": b"\x80\x02]q\x00h\x00a.",
    "deep.pkl": b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".",
    "deep.json": b"[" * 100_000,
    "number.pkl": b"\x80\x02\x8b" + (2**20).to_bytes(4, "little") + b"\x7f" * 2**20 + b".",
    "empty.pt": b"",
    "empty.safetensors": b"",
    "persistent.pkl": b"\x80\x02Pabc\n.",
    "stack.pkl": b"\x80\x02.",
    "text.npz": b"PK no zip",
    "surrogate.json": b'{"\\ud800": "\\udfff"}',
    "one.gz": b"\x1f\x8b\x08",
}


def test_hostile_files_cost_neither_time_nor_memory(tmp_path: Path) -> None:
    """Each is read within seconds by a process with little memory, and what cannot be read says
    why.
    """
    for name, data in HOSTILE.items():
        (tmp_path / name).write_bytes(data)
    huge = torch.ones(1).expand(2**40)
    torch.save(huge, tmp_path / "huge.pt")
    with (tmp_path / "sparse.pt").open("wb") as file:
        file.truncate(2**31)
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "loop").symlink_to(tmp_path)
    code = (
        "import resource, sys, json; from pathlib import Path; from ecrl_cli.audit.files import"
        " inventory; "
    )
    code += (
        "resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30,) * 2);"
        " print(json.dumps(inventory(Path(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    files = json.loads(done.stdout)["files"]
    assert files.keys() == HOSTILE.keys() | {"huge.pt", "sparse.pt", "loop"}
    read = {"empty.pt", "number.pkl", "deep.json", "surrogate.json", "loop", "sparse.pt"}
    assert {name for name, content in files.items() if content["kind"] != "unreadable"} == read
    assert all(content["problem"] for name, content in files.items() if name not in read)


def test_an_inventory_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    torch.save(_state(), tmp_path / "work" / "last.pt")
    write_inventory(tmp_path)
    read = read_inventory(tmp_path)
    assert read is not None and dict(read.files["last.pt"].entries) == _entries(
        tmp_path / "work", "last.pt"
    )
    assert read_inventory(tmp_path / "work") is None


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"files": []},
        {"files": {"a": 1}},
        {"files": {"a": {"kind": "code", "bytes": 1, "digest": ""}}},
        {"files": {"a": {"kind": "bytes", "bytes": -1, "digest": ""}}},
        {"files": {"a": {"kind": "bytes", "bytes": True, "digest": ""}}},
        {"files": {"a": {"kind": "bytes", "bytes": 1, "digest": 3}}},
        {"files": {"a": {"kind": "bytes", "bytes": 1, "digest": "x" * 5000}}},
        {"files": {"a": {"kind": "values", "bytes": 1, "digest": "", "entries": {"k": 1}}}},
        {"files": {"a": {"kind": "lines", "bytes": 1, "digest": "", "lines": "text"}}},
        {"left_out": [1]},
    ],
)
def test_an_inventory_of_a_stranger_is_checked(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / FILES).write_text(
        json.dumps({"schema_version": 1, "digest": "blake3", "left_out": [], "files": {}} | change)
    )
    with pytest.raises(RecordError) as raised:
        read_inventory(tmp_path)
    assert "is no inventory of files" in raised.value.line()
