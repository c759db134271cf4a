"""Canonical JSON, written and read strictly: one value has one spelling, and what another hand wrote is bounded before it is believed."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, NoReturn

MAX_DEPTH = 16
MAX_INTEGER = 2**63 - 1  # a seed may be as large

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def canonical(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8. ValueError for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    """SHA-256 hex of the canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()


def parse(data: bytes) -> Any:
    """The JSON value of `data`; ValueError unless it is strict UTF-8, not deeper than MAX_DEPTH, without duplicate keys, NaN or huge integers."""
    text = bytes(data).decode("utf-8", "strict")
    if _depth(text) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_int=_integer, parse_float=_finite)


def parse_canonical(data: bytes) -> Any:
    """As `parse`, and `data` must be the canonical form of what it says."""
    value = parse(data)
    if canonical(value) != data:
        raise ValueError("not in canonical form")
    return value


def _depth(text: str) -> int:
    """The deepest nesting of brackets outside strings; found by scanning, so that no parser has to recurse first."""
    deepest = depth = 0
    for token in _TOKEN.findall(text):
        if token in ("[", "{"):
            depth += 1
            deepest = max(deepest, depth)
        elif token in ("]", "}"):
            depth -= 1
    return deepest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("duplicate keys")
    return made


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number here")


def _integer(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) > MAX_INTEGER:
        raise ValueError("integer beyond 2^63")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("number beyond a double")
    return value
