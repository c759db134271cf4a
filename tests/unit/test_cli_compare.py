"""Two runs' states side by side: distances that were worked out by hand, both layouts, and what
cannot be compared.
"""

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
from ecrl_cli.metrics.distance import Distance, distances
from ecrl_cli.studies.frame.store_fixture import image_from
from tests.unit.checkpoint_support import flip, store_at

WEIGHT, MOMENTUM, SEEN, RNG = (
    "parameters.weight",
    "optimizer.weight.momentum_buffer",
    "buffers.seen",
    "rng.rank0.torch",
)
SPECS = {
    "model.safetensors": [
        TensorSpec(WEIGHT, "torch.float32", (2, 2)),
        TensorSpec(SEEN, "torch.int64", ()),
    ],
    "optimizer.safetensors": [TensorSpec(MOMENTUM, "torch.bfloat16", (2,))],
    "rng.safetensors": [TensorSpec(RNG, "torch.uint8", (4,))],
}
EQUAL = {
    WEIGHT: struct.pack("<4f", 3, 4, 0.0, 1),
    SEEN: struct.pack("<q", 7),
    MOMENTUM: bytes(4),
    RNG: b"abcd",
}


def saved(folder: Path, step: int = 40, *, single: bool = False, **changed: bytes) -> Path:
    """A run directory `folder` with a checkpoint of `step`: of EQUAL, with other bytes in the
    tensors whose last word is named.
    """
    content = {name: changed.get(name.rpartition(".")[2], data) for name, data in EQUAL.items()}

    def fill(place: TensorPlace) -> bytes:
        return content[place.spec.name]

    parts = {"all": [spec for specs in SPECS.values() for spec in specs]} if single else SPECS
    folder.mkdir(exist_ok=True)
    store = store_at(folder, StoreConfig(keep=9))
    store.save(
        image_from(
            parts,
            fill,
            CheckpointMeta(RUN_ID, step, 0, step, 1, 1),
            {"global_step": step, "line_chain": [""]},
        ),
        0,
    )
    store.close()
    return folder


def step_of(run: Path, step: int = 40) -> Path:
    return next((run / "checkpoints").glob(f"step_{step:08d}*"))


@pytest.mark.parametrize("single", [False, True])
def test_the_distance_is_the_one_worked_out_by_hand(tmp_path: Path, single: bool) -> None:
    one = saved(
        tmp_path / "a",
        single=single,
        weight=struct.pack("<4f", 3, np.nextafter(np.float32(4), np.float32(5)), -0.0, 3),
        seen=struct.pack("<q", 9),
    )
    found = distances(step_of(one), step_of(saved(tmp_path / "b")))
    weight, seen = found["parameters"], found["buffers"]
    assert weight.l2 == pytest.approx(2.0) and weight.relative_l2 == pytest.approx(
        2 / math.sqrt(26)
    )
    assert (weight.max_ulp, weight.furthest, weight.not_finite) == (
        12582912,
        WEIGHT,
        0,
    ), "from 1 to 3: one and a half times 2**23 numbers"
    assert (seen.l2, seen.max_ulp, seen.differing) == (2.0, None, 1)
    assert found["optimizer"].equal and found["rng"].equal


def test_one_step_of_a_float_is_one_ulp_and_zeros_are_none_apart(tmp_path: Path) -> None:
    other = step_of(saved(tmp_path / "b"))
    near = saved(
        tmp_path / "near",
        weight=struct.pack("<4f", 3, np.nextafter(np.float32(4), np.float32(0)), 0.0, 1),
    )
    zero = saved(tmp_path / "zero", weight=struct.pack("<4f", 3, 4, -0.0, 1))
    across = saved(tmp_path / "across", weight=struct.pack("<4f", 3, 4, -1e-45, 1))
    assert distances(step_of(near), other)["parameters"].max_ulp == 1
    assert (
        distances(step_of(zero), other)["parameters"].max_ulp,
        distances(step_of(zero), other)["parameters"].differing,
    ) == (None, 1)
    assert distances(step_of(across), other)["parameters"].max_ulp == 1
    half = saved(tmp_path / "half", momentum_buffer=b"\x01\x00\x00\x80")
    assert distances(step_of(half), other)["optimizer"].max_ulp == 1, "bfloat16 by its own places"


def test_a_diverged_run_is_compared_where_it_is_finite(tmp_path: Path) -> None:
    diverged = saved(tmp_path / "a", weight=struct.pack("<4f", math.nan, math.inf, 0.0, 2))
    found = distances(step_of(diverged), step_of(saved(tmp_path / "b")))["parameters"]
    assert (found.l2, found.not_finite, found.max_ulp) == (1.0, 2, 2**23)
    again = distances(
        step_of(diverged),
        step_of(saved(tmp_path / "c", weight=struct.pack("<4f", math.nan, math.inf, 0.0, 2))),
    )["parameters"]
    assert again.equal and again.not_finite == 0


def of_parts(folder: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    """The path of a checkpoint that holds these tensors: name -> (dtype, shape, bytes)."""
    specs = [TensorSpec(name, dtype, shape) for name, (dtype, shape, _) in tensors.items()]
    store = store_at(folder, StoreConfig(keep=9))
    image = image_from(
        {"all": specs},
        lambda place: tensors[place.spec.name][2],
        CheckpointMeta(RUN_ID, 1, 0, 1, 1, 1),
        {"line_chain": [""]},
    )
    path = store.save(image, 0).path
    store.close()
    return path


def between(
    tmp_path: Path,
    one: dict[str, tuple[str, tuple[int, ...], bytes]],
    other: dict[str, tuple[str, tuple[int, ...], bytes]],
) -> Distance:
    for name in "ab":
        (tmp_path / name).mkdir()
    return distances(of_parts(tmp_path / "a", one), of_parts(tmp_path / "b", other))["parameters"]


def floats(*values: float) -> tuple[str, tuple[int, ...], bytes]:
    return "torch.float32", (len(values),), struct.pack(f"<{len(values)}f", *values)


def places_on(count: int) -> float:
    return float(np.array([np.float32(1).view(np.int32) + count], np.int32).view(np.float32)[0])


@pytest.mark.parametrize(("first", "second", "furthest"), [(3, 7, "b"), (7, 3, "a"), (5, 5, "a")])
def test_the_furthest_tensor_is_named_and_squares_add_up(
    tmp_path: Path, first: int, second: int, furthest: str
) -> None:
    found = between(
        tmp_path,
        {"parameters.a": floats(places_on(first)), "parameters.b": floats(places_on(second))},
        {"parameters.a": floats(1.0), "parameters.b": floats(1.0)},
    )
    apart = math.hypot(places_on(first) - 1, places_on(second) - 1)
    assert (found.tensors, found.differing, found.max_ulp, found.furthest) == (
        2,
        2,
        max(first, second),
        f"parameters.{furthest}",
    )
    assert found.l2 == pytest.approx(apart, rel=1e-12) and found.relative_l2 == pytest.approx(
        apart / math.sqrt(2), rel=1e-12
    )


def test_relative_to_all_of_the_other_state_also_where_most_of_it_is_equal(tmp_path: Path) -> None:
    one = {"parameters.a": floats(3.0), "parameters.b": floats(4.5)}
    found = between(tmp_path, one, one | {"parameters.b": floats(4.0)})
    assert (found.l2, found.relative_l2) == (0.5, pytest.approx(0.1))


def test_tensors_without_a_counterpart_differ_and_have_no_distance(tmp_path: Path) -> None:
    """One that only one side has, one of another shape, one of another dtype, and two that are
    alike.
    """
    found = between(
        tmp_path,
        {
            "parameters.a": floats(1.0),
            "parameters.b": floats(1.0, 1.0),
            "parameters.c": floats(2.0),
            "parameters.e": floats(3.0),
        },
        {
            "parameters.b": ("torch.float32", (2, 1), struct.pack("<2f", 5, 5)),
            "parameters.c": ("torch.float64", (1,), struct.pack("<d", 2)),
            "parameters.d": floats(9.0),
            "parameters.e": floats(3.0),
        },
    )
    assert (found.tensors, found.differing, found.l2, found.max_ulp, found.furthest) == (
        5,
        4,
        0.0,
        None,
        "",
    )
    assert not found.equal and found.relative_l2 == 0.0 and found.not_finite == 0


@pytest.mark.parametrize(
    ("one", "other", "relative"), [(0.0, -0.0, 0.0), (1.0, 0.0, None), (0.0, 2.0, 1.0)]
)
def test_relative_to_nothing_there_is_no_distance(
    tmp_path: Path, one: float, other: float, relative: float | None
) -> None:
    found = between(tmp_path, {"parameters.a": floats(one)}, {"parameters.a": floats(other)})
    assert (found.relative_l2, found.differing) == (relative, 1)


def test_infinities_are_alike_by_sign_and_complex_numbers_are_pairs(tmp_path: Path) -> None:
    strange = between(
        tmp_path,
        {"parameters.a": floats(math.inf, -math.inf, math.nan, 1)},
        {"parameters.a": floats(math.inf, math.inf, math.nan, 2)},
    )
    assert (strange.not_finite, strange.l2, strange.max_ulp) == (1, 1.0, 2**23)
    (tmp_path / "complex").mkdir()
    pairs = [
        ("torch.complex64", (1,), struct.pack("<2f", 1, imaginary))
        for imaginary in (places_on(4), 1.0)
    ]
    found = between(tmp_path / "complex", {"parameters.a": pairs[0]}, {"parameters.a": pairs[1]})
    assert (found.max_ulp, found.l2) == (4, pytest.approx(places_on(4) - 1))


@pytest.mark.parametrize(
    ("dtype", "one", "other", "l2", "ulp"),
    [
        (
            "torch.float64",
            struct.pack("<d", 1.0),
            struct.pack("<d", np.nextafter(1.0, 2.0)),
            2.0**-52,
            1,
        ),
        ("torch.float32", struct.pack("<f", 2.0), struct.pack("<f", 1.0), 1.0, 2**23),
        ("torch.float16", struct.pack("<e", 2.0), struct.pack("<e", 1.0), 1.0, 2**10),
        ("torch.bfloat16", b"\x00\x40", b"\x80\x3f", 1.0, 2**7),
        ("torch.complex64", struct.pack("<2f", 2, 0), struct.pack("<2f", 1, 0), 1.0, 2**23),
        *(
            (f"torch.{name}", struct.pack(code, -3), struct.pack(code, 1), 4.0, None)
            for name, code in zip(("int64", "int32", "int16"), ("<q", "<i", "<h"), strict=True)
        ),
        ("torch.int8", struct.pack("<b", -3), struct.pack("<b", 1), 4.0, None),
        ("torch.uint8", b"\xc8", b"\x01", 199.0, None),
        ("torch.bool", b"\x01", b"\x00", 1.0, None),
    ],
)
def test_a_number_of_every_dtype_is_read_as_it_is(
    tmp_path: Path, dtype: str, one: bytes, other: bytes, l2: float, ulp: int | None
) -> None:
    found = between(
        tmp_path, {"parameters.a": (dtype, (1,), one)}, {"parameters.a": (dtype, (1,), other)}
    )
    assert (found.l2, found.max_ulp, found.differing, found.not_finite) == (l2, ulp, 1, 0)


def test_the_same_bytes_of_another_dtype_differ(tmp_path: Path) -> None:
    found = between(
        tmp_path, {"parameters.a": ("torch.int32", (1,), bytes(4))}, {"parameters.a": floats(0.0)}
    )
    assert (found.differing, found.max_ulp, found.l2) == (1, None, 0.0)


def test_generators_are_compared_byte_for_byte_alone(tmp_path: Path) -> None:
    found = distances(step_of(saved(tmp_path / "a", torch=b"abce")), step_of(saved(tmp_path / "b")))
    assert found["rng"] == Distance(1, 1, None, None, None, "", 0)


@pytest.mark.parametrize(
    ("one", "other", "strange"),
    [((math.nan, 1), (1, math.nan), 2), ((math.inf, 1), (1, 1), 1), ((1, 1), (math.nan, 2), 1)],
)
def test_what_is_not_finite_on_either_side_is_counted(
    tmp_path: Path, one: tuple[float, float], other: tuple[float, float], strange: int
) -> None:
    assert (
        between(
            tmp_path, {"parameters.a": floats(*one)}, {"parameters.a": floats(*other)}
        ).not_finite
        == strange
    )


def test_the_command_says_it_at_named_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert main(["compare", str(step_of(one, 60)), str(step_of(other, 20)), "--json"]) == 0, (
        "two checkpoints of different steps"
    )
    capsys.readouterr()
    assert main(["compare", str(one), str(other), "--steps", "40,60", "--json"]) == 3
    answer = capsys.readouterr()
    first, second = json.loads(answer.out)["steps"]
    assert (first["global_step"], first["components"]["parameters"]["l2"], first["error"]) == (
        40,
        1.0,
        "",
    )
    assert (
        second["components"] == {}
        and answer.err
        == f"ecrl: {other} has no checkpoint of step 60\n"
        == f"ecrl: {second['error']}\n"
    )


def test_what_the_integrity_check_refuses_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = saved(tmp_path / "a"), saved(tmp_path / "b")
    part = step_of(one) / "model.safetensors"
    flip(part, part.stat().st_size - 1)
    assert main(["compare", str(one), str(other)]) == 3
    said = capsys.readouterr()
    assert (
        "step 40: not compared" in said.out
        and "failed at hash: model.safetensors does not match its BLAKE3" in said.err
    )


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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "a")
    saved(tmp_path / "b")
    saved(tmp_path / "later", 60)
    (tmp_path / "empty").mkdir()
    assert main(["compare", *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and said in lines[0]
