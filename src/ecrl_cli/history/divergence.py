"""The difference of two runs: losses by step, tensors by name, digests by component."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ecrl_cli.errors import RecordError

Array = npt.NDArray[Any]
# safetensors dtype -> numpy dtype; numpy has no bfloat16, which is widened to float32.
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "BOOL": "?",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
}
_MAX_HEADER = 100 * 2**20


@dataclass(frozen=True)
class LossDivergence:
    """The absolute difference of the mean loss over ranks, step by step.

    `auc`: area under it over the steps (trapezoids). `first_differing_step`: the first step at
    which any rank's loss differs in any bit.
    """

    steps: int
    maximum: float
    mean: float
    auc: float
    first_differing_step: int | None


@dataclass(frozen=True)
class StateDivergence:
    """Distance of two sets of tensors: L2, L2 relative to the reference's norm, names whose bytes
    differ or that only one has.
    """

    l2: float
    relative_l2: float
    differing: tuple[str, ...]


Losses = Mapping[int, Mapping[int, float]]


def loss_divergence(run: Losses, reference: Losses) -> LossDivergence:
    """Compare the steps that both have; losses by step and rank."""
    common = sorted(set(run) & set(reference))
    difference = np.array(
        [abs(_mean(run[s]) - _mean(reference[s])) for s in common], dtype=np.float64
    )
    if not common:
        return LossDivergence(0, 0.0, 0.0, 0.0, None)
    area = float(np.trapezoid(difference, np.array(common, dtype=np.float64)))
    return LossDivergence(
        len(common),
        float(difference.max()),
        float(difference.mean()),
        area,
        first_differing_step(run, reference),
    )


def first_differing_step(run: Losses, reference: Losses) -> int | None:
    """The first common step at which a rank that both have logged a different loss; exact, and NaN
    equals NaN.
    """
    for step in sorted(set(run) & set(reference)):
        ranks = set(run[step]) & set(reference[step])
        if any(not same_float(run[step][r], reference[step][r]) for r in ranks):
            return step
    return None


def same_float(a: float, b: float) -> bool:
    """Equal in every bit that JSON keeps: NaN equals NaN, 0.0 does not equal -0.0."""
    return repr(a) == repr(b)


def differing_names(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """Names whose digests differ, or that only one side has."""
    return sorted(name for name in set(a) | set(b) if a.get(name) != b.get(name))


def state_divergence(run: Mapping[str, Array], reference: Mapping[str, Array]) -> StateDivergence:
    """Distance over the tensors of the same name and shape; the others are only listed in
    `differing`.
    """
    common = [n for n in sorted(run) if n in reference and run[n].shape == reference[n].shape]
    square = sum(float(np.sum((_wide(run[n]) - _wide(reference[n])) ** 2)) for n in common)
    norm = sum(float(np.sum(_wide(reference[n]) ** 2)) for n in common)
    differing = [
        n
        for n in sorted(set(run) | set(reference))
        if n not in common or run[n].tobytes() != reference[n].tobytes()
    ]
    relative = float(np.sqrt(square / norm)) if norm else (0.0 if square == 0 else float("inf"))
    return StateDivergence(float(np.sqrt(square)), relative, tuple(differing))


def read_tensors(path: Path) -> dict[str, Array]:
    """Every tensor of a safetensors file as a numpy array; bfloat16 widened to float32. RecordError
    if it is not such a file.
    """
    data = (
        np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
    )
    try:
        length = int(np.frombuffer(data[:8].tobytes(), dtype="<u8")[0])
        if length > min(_MAX_HEADER, len(data) - 8):
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(data[8 : 8 + length].tobytes())
        body = data[8 + length :]
        return {
            name: _tensor(body, entry) for name, entry in header.items() if name != "__metadata__"
        }
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise RecordError(
            path.name, f"not a safetensors file ({error})", "restore the file"
        ) from error


def _tensor(body: Array, entry: dict[str, Any]) -> Array:
    start, end = entry["data_offsets"]
    values = np.frombuffer(body[start:end].tobytes(), dtype=_DTYPES[entry["dtype"]]).reshape(
        entry["shape"]
    )
    if entry["dtype"] == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


def _wide(values: Array) -> npt.NDArray[np.float64]:
    return values.astype(np.float64)


def _mean(by_rank: Mapping[int, float]) -> float:
    return sum(by_rank.values()) / len(by_rank)
