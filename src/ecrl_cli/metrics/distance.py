"""How far two checkpoints are apart, component by component: L2, in units in the last place, and
what differs at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ecrl_cli.checkpoint.format.names import COMPONENTS, STEP_NAME
from ecrl_cli.checkpoint.store.tensors import StoredTensors, stored_tensors

Array = npt.NDArray[Any]
_FLOATS = {
    "torch.float64": ("<i8", "<f8"),
    "torch.float32": ("<i4", "<f4"),
    "torch.float16": ("<i2", "<f2"),
    "torch.bfloat16": ("<i2", ""),
}
_COMPLEX = "torch.complex64"


@dataclass(frozen=True)
class Distance:
    """One component of two states. `tensors`: names on either side; `differing`: those whose bytes,
    dtype or shape differ, or that one side lacks.

    `l2`: of the difference, over tensors of one name and shape, where both are finite (None for the
    generators, whose states are no numbers);
    `relative_l2`: relative to the second state's norm (None if that is zero and `l2` is not).
    `max_ulp`: the largest distance of two floating-point numbers in units in the last place of
    their dtype (the numbers between them; 0.0 and -0.0 are 0 apart), in the tensor `furthest`; None
    if no two finite ones differ in a shared dtype.
    `not_finite`: elements that differ where either is NaN or infinite.
    """

    tensors: int
    differing: int
    l2: float | None
    relative_l2: float | None
    max_ulp: int | None
    furthest: str
    not_finite: int

    @property
    def equal(self) -> bool:
        return self.differing == 0


def by_step(folder: Path) -> dict[int, Path]:
    """The checkpoints in `folder` by their steps."""
    return {
        int(match[1]): path
        for path in sorted(folder.iterdir())
        if (match := STEP_NAME.match(path.name))
    }


def distances(one: Path, other: Path) -> dict[str, Distance]:
    """By component, of the checkpoints at two paths; StorageError if the integrity check refuses
    one.
    """
    with stored_tensors(one) as a, stored_tensors(other) as b:
        names = sorted(a.places.keys() | b.places.keys())
        by_component = {
            component: [name for name in names if name.partition(".")[0] == component]
            for component in COMPONENTS
        }
        return {
            component: _distance(component, a, b, members)
            for component, members in by_component.items()
            if members
        }


def document(found: dict[str, Distance]) -> dict[str, Any]:
    """The values as a JSON document."""
    return {component: asdict(each) for component, each in found.items()}


def _distance(component: str, a: StoredTensors, b: StoredTensors, names: Iterable[str]) -> Distance:
    square, norm, differing, strange, count = 0.0, 0.0, 0, 0, 0
    furthest: tuple[int, str] | None = None
    for name in names:
        count += 1
        if name not in a.places or name not in b.places or a.spec(name).shape != b.spec(name).shape:
            differing += 1
            continue
        x, y = a.read(name), b.read(name)
        dtypes = a.spec(name).dtype, b.spec(name).dtype
        wide = [_wide(values, dtype) for values, dtype in zip((x, y), dtypes, strict=True)]
        finite = np.isfinite(wide[0]) & np.isfinite(wide[1])
        norm += float(np.sum(np.square(wide[1][np.isfinite(wide[1])])))
        if dtypes[0] == dtypes[1] and x.tobytes() == y.tobytes():
            continue
        differing += 1
        square += float(np.sum(np.square(wide[0][finite] - wide[1][finite])))
        strange += int(
            np.sum(~finite & ~((wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))))
        )
        if (
            dtypes[0] == dtypes[1]
            and (ulp := _ulp(x, y, dtypes[0], finite)) is not None
            and (furthest is None or ulp > furthest[0])
        ):
            furthest = (ulp, name)
    l2 = float(np.sqrt(square))
    if component == "rng":
        return Distance(count, differing, None, None, None, "", 0)
    relative = float(np.sqrt(square / norm)) if norm else 0.0 if square == 0 else None
    return Distance(
        count,
        differing,
        l2,
        relative,
        furthest[0] if furthest else None,
        furthest[1] if furthest else "",
        strange,
    )


def _wide(values: Array, dtype: str) -> npt.NDArray[np.float64]:
    """The tensor as float64; complex numbers as pairs."""
    if dtype == "torch.bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    elif dtype == _COMPLEX:
        values = np.ascontiguousarray(values).reshape(-1).view(np.float32)
    return values.astype(np.float64).reshape(-1)


def _ulp(a: Array, b: Array, dtype: str, finite: npt.NDArray[np.bool_]) -> int | None:
    """The largest distance in units in the last place where both are finite; None for a dtype that
    has none, or if no such pair differs.
    """
    if dtype == _COMPLEX:
        a, b = (np.ascontiguousarray(each).reshape(-1).view("<f4") for each in (a, b))
        dtype = "torch.float32"
    if dtype not in _FLOATS:
        return None
    places = [_place(each, _FLOATS[dtype][0])[finite] for each in (a, b)]
    apart = np.maximum(*places) - np.minimum(*places)
    most = int(apart.max()) if apart.size else 0
    return most or None


def _place(values: Array, integer: str) -> npt.NDArray[np.uint64]:
    """The place of each number among all of its dtype: the next larger number has the next place,
    and both zeros the same.
    """
    bits = np.ascontiguousarray(values).reshape(-1).view(integer).astype(np.int64)
    lowest = np.int64(np.iinfo(integer).min)
    ordered = np.where(bits < 0, lowest - bits, bits)  # the sign bit alone, -0.0, becomes 0
    return ordered.astype(np.int64).view(np.uint64) + np.uint64(2**63)
