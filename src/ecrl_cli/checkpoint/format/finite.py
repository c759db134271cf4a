"""Checks raw tensor bytes for NaN and infinity. Torch-free."""

from __future__ import annotations

import numpy as np

from ecrl_cli.storage.fs import Buffer

_EXPONENT_BFLOAT16 = 0x7F80  # all ones: NaN or an infinity
_NUMPY = {"torch.float64": "<f8", "torch.float32": "<f4", "torch.float16": "<f2", "torch.complex64": "<f4"}


def all_finite(dtype: str, data: Buffer) -> bool:
    """False if a floating-point `dtype` holds a NaN or an infinity; `data` is a whole number of little-endian elements."""
    if dtype == "torch.bfloat16":
        words = np.frombuffer(data, dtype="<u2")
        return not bool(((words & _EXPONENT_BFLOAT16) == _EXPONENT_BFLOAT16).any())
    if dtype not in _NUMPY:
        return True
    return bool(np.isfinite(np.frombuffer(data, dtype=_NUMPY[dtype])).all())
