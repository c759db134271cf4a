"""Two runs' states side by side: distances that were worked out by hand, every layout and format, and what cannot be compared."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest

from ecrl_cli.checkpoint.format.image import CheckpointMeta, TensorPlace, TensorSpec
from ecrl_cli.checkpoint.store.store import StoreConfig
from ecrl_cli.checkpoint.store.synthetic import RUN_ID
from ecrl_cli.cli.main import main
from ecrl_cli.metrics.distance import distances
from ecrl_cli.studies.frame.store_fixture import image_from
from tests.unit.checkpoint_support import flip, store_at

WEIGHT, MOMENTUM, SEEN, RNG = "parameters.weight", "optimizer.weight.momentum_buffer", "buffers.seen", "rng.rank0.torch"
SPECS = {
    "model.safetensors": [TensorSpec(WEIGHT, "torch.float32", (2, 2)), TensorSpec(SEEN, "torch.int64", ())],
    "optimizer.safetensors": [TensorSpec(MOMENTUM, "torch.bfloat16", (2,))],
    "rng.safetensors": [TensorSpec(RNG, "torch.uint8", (4,))],
}
EQUAL = {WEIGHT: struct.pack("<4f", 3, 4, 0.0, 1), SEEN: struct.pack("<q", 7), MOMENTUM: bytes(4), RNG: b"abcd"}


def saved(folder: Path, step: int = 40, *, single: bool = False, **changed: bytes) -> Path:
    """A run directory `folder` with a checkpoint of `step`: of EQUAL, with other bytes in the tensors whose last word is named."""
    content = {name: changed.get(name.rpartition(".")[2], data) for name, data in EQUAL.items()}

    def fill(place: TensorPlace) -> bytes:
        return content[place.spec.name]

    parts = {"all": [spec for specs in SPECS.values() for spec in specs]} if single else SPECS
    folder.mkdir(exist_ok=True)
    store = store_at(folder, StoreConfig(keep=9))
    store.save(image_from(parts, fill, CheckpointMeta(RUN_ID, step, 0, step, 1, 1), {"global_step": step, "line_chain": [""]}), 0)
    store.close()
    return folder


def step_of(run: Path, step: int = 40) -> Path:
    return next((run / "checkpoints").glob(f"step_{step:08d}*"))


@pytest.mark.parametrize("single", [False, True])
def test_the_distance_is_the_one_worked_out_by_hand(tmp_path: Path, single: bool) -> None:
    one = saved(
        tmp_path / "a", single=single, weight=struct.pack("<4f", 3, np.nextafter(np.float32(4), np.float32(5)), -0.0, 3), seen=struct.pack("<q", 9)
    )
    found = distances(step_of(one), step_of(saved(tmp_path / "b")))
    weight, seen = found["parameters"], found["buffers"]
    assert weight.l2 == pytest.approx(2.0) and weight.relative_l2 == pytest.approx(2 / math.sqrt(26))
    assert (weight.max_ulp, weight.furthest, weight.not_finite) == (12582912, WEIGHT, 0), "from 1 to 3: one and a half times 2**23 numbers"
    assert (seen.l2, seen.max_ulp, seen.differing) == (2.0, None, 1)
    assert found["optimizer"].equal and found["rng"].equal


def test_one_step_of_a_float_is_one_ulp_and_zeros_are_none_apart(tmp_path: Path) -> None:
    other = step_of(saved(tmp_path / "b"))
    near = saved(tmp_path / "near", weight=struct.pack("<4f", 3, np.nextafter(np.float32(4), np.float32(0)), 0.0, 1))
    zero = saved(tmp_path / "zero", weight=struct.pack("<4f", 3, 4, -0.0, 1))
    across = saved(tmp_path / "across", weight=struct.pack("<4f", 3, 4, -1e-45, 1))
    assert distances(step_of(near), other)["parameters"].max_ulp == 1
    assert (distances(step_of(zero), other)["parameters"].max_ulp, distances(step_of(zero), other)["parameters"].differing) == (None, 1)
    assert distances(step_of(across), other)["parameters"].max_ulp == 1
    half = saved(tmp_path / "half", momentum_buffer=b"\x01\x00\x00\x80")
    assert distances(step_of(half), other)["optimizer"].max_ulp == 1, "bfloat16 by its own places"


def test_a_diverged_run_is_compared_where_it_is_finite(tmp_path: Path) -> None:
    diverged = saved(tmp_path / "a", weight=struct.pack("<4f", math.nan, math.inf, 0.0, 2))
    found = distances(step_of(diverged), step_of(saved(tmp_path / "b")))["parameters"]
    assert (found.l2, found.not_finite, found.max_ulp) == (1.0, 2, 2**23)
    again = distances(step_of(diverged), step_of(saved(tmp_path / "c", weight=struct.pack("<4f", math.nan, math.inf, 0.0, 2))))["parameters"]
    assert again.equal and again.not_finite == 0


def test_the_command_says_it_at_named_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (tmp_path / name for name in "ab")
    for step in (20, 40):
        saved(one, step, weight=struct.pack("<4f", 3, 4, 0.0, 1 + (step == 40)))
        saved(other, step)
    saved(one, 60)
    assert main(["compare", str(one), str(other)]) == 1
    said = capsys.readouterr().out
    assert (
        "step 20  parameters  equal, bit for bit (1 tensors)" in said
        and "step 40  parameters  L2 1 (0.196 of its length), at most 8,388,608 ulp" in said
    )
    assert "step 60" not in said
    assert main(["compare", str(one), str(other), "--steps", "20"]) == 0
    assert main(["compare", str(step_of(one, 60)), str(step_of(other, 20)), "--json"]) == 0, "two checkpoints of different steps"
    capsys.readouterr()
    assert main(["compare", str(one), str(other), "--steps", "40,60", "--json"]) == 3
    answer = capsys.readouterr()
    (first, second) = json.loads(answer.out)["steps"]
    assert (first["global_step"], first["components"]["parameters"]["l2"], first["error"]) == (40, 1.0, "")
    assert second["components"] == {} and answer.err == f"ecrl: {other} has no checkpoint of step 60\n" == f"ecrl: {second['error']}\n"


def test_what_the_integrity_check_refuses_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = saved(tmp_path / "a"), saved(tmp_path / "b")
    part = step_of(one) / "model.safetensors"
    flip(part, part.stat().st_size - 1)
    assert main(["compare", str(one), str(other)]) == 3
    said = capsys.readouterr()
    assert "step 40: not compared" in said.out and "failed at hash: model.safetensors does not match its BLAKE3" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "nowhere"], "does not exist"),
        (["a", "empty"], "has no checkpoint"),
        (["a", "b", "--steps", "4x"], "'4x' is no step"),
        (["a", "later"], "no step has a checkpoint in both: steps 40 and steps 60"),
        (["a", "checkpoints/step_00000099"], "does not exist"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "a")
    saved(tmp_path / "b")
    saved(tmp_path / "later", 60)
    (tmp_path / "empty").mkdir()
    assert main(["compare", *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and said in lines[0]
