"""Canonical JSON, written and read strictly: each value has one encoding, and untrusted input is
checked against limits before it is parsed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, NoReturn

MAX_DEPTH = 16
MAX_INTEGER = 2**63 - 1  # a seed may be as large

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r'\\.|["\[\]{}]', re.DOTALL)


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8. ValueError for NaN and infinities."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest(value: Any) -> str:
    """SHA-256 hex of the canonical form."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def is_digest(text: str) -> bool:
    """Whether `text` is a SHA-256 or BLAKE3 in hex."""
    return _DIGEST.fullmatch(text) is not None


def parse(data: bytes) -> Any:
    """The JSON value of `data`; ValueError unless it is strict UTF-8, at most MAX_DEPTH deep,
    without duplicate keys, NaN or huge integers.
    """
    text = bytes(data).decode("utf-8", "strict")
    _refuse_depth(text)
    return json.loads(
        text,
        object_pairs_hook=_unique,
        parse_constant=_refuse,
        parse_int=_integer,
        parse_float=_finite,
    )


def parse_canonical(data: bytes) -> Any:
    """Like `parse`; ValueError also if `data` is not in canonical form."""
    value = parse(data)
    if canonical_json(value) != data:
        raise ValueError("not in canonical form")
    return value


def _refuse_depth(text: str) -> None:
    """ValueError if brackets outside strings nest too deeply; found by scanning, before the
    recursive parser runs.

    Scans token by token: one regular expression for a whole string would keep a state per
    character.
    """
    depth, in_string = 0, False
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == '"':
            in_string = not in_string
        elif in_string:
            continue
        elif token in ("[", "{"):
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH}")
        elif token in ("]", "}"):
            depth -= 1


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
