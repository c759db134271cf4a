"""`ecrl audit --state A B`: compares two saved states, value by value: torch.save files
(weights_only), safetensors files, DCP folders.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from ecrl_cli.audit.dcp_folder import chunk_bytes, entries_of, path_text, tensor_bytes
from ecrl_cli.errors import ConfigError

SHOWN = 40
_REFUSED = re.compile(r"GLOBAL ([\w.]+) (?:was not an allowed global|whose module)")


def compare_states(one: Path, other: Path) -> tuple[list[str], bool]:
    """A line for each value that differs, and whether all are equal. ConfigError for what is
    missing or cannot be read.
    """
    states, loose = [_load(path) for path in (one, other)], one.is_dir() or other.is_dir()
    left, right = (_flat(state, loose=loose) for state in states)
    notes = _dcp_notes(left, right, states) if one.is_dir() != other.is_dir() else []
    lines = [f"only in {one}: {name}" for name in sorted(left.keys() - right.keys())]
    lines += [f"only in {other}: {name}" for name in sorted(right.keys() - left.keys())]
    lines += [
        f"{name}: {difference}"
        for name in sorted(left.keys() & right.keys())
        if (difference := _difference(left[name], right[name]))
    ]
    same = len(left.keys() & right.keys())
    if not lines:
        return [f"equal: {same} values, bit for bit", *notes], True
    rest = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return [
        f"different: {len(lines)} of {max(len(left), len(right))} values",
        *lines[:SHOWN],
        *rest,
        *notes,
    ], False


def _dcp_notes(left: dict[str, Any], right: dict[str, Any], states: list[Any]) -> list[str]:
    """Changes by DCP in one of two states that are no difference; empty dictionaries are removed
    from `left` and `right`.
    """
    empty = {
        name
        for flat in (left, right)
        for name, value in flat.items()
        if value == {} and isinstance(value, dict)
    }
    for name in empty:
        left.pop(name, None)
        right.pop(name, None)
    changed = ["turns number keys into text"] if any(map(_has_number_keys, states)) else []
    changed += ["drops empty dictionaries"] if empty else []
    return [f"note: DCP {' and '.join(changed)}: no difference"] if changed else []


def _has_number_keys(value: Any) -> bool:
    if isinstance(value, dict):
        return any(
            not isinstance(key, str) or _has_number_keys(item) for key, item in value.items()
        )
    return isinstance(value, list | tuple) and any(map(_has_number_keys, value))


def _load(path: Path) -> Any:
    import torch

    if not path.exists():
        raise ConfigError("--state", f"{path} does not exist", "name two states")
    try:
        if path.is_dir():
            return _load_dcp(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ConfigError(
            "--state",
            f"{path} cannot be read ({_reason(error)})",
            "states of tensors and plain values are read, code is not",
        ) from error


def _reason(error: Exception) -> str:
    """The first line of the error; of torch's refusal of a pickle what it refuses, not its advice
    to load it all the same.
    """
    refused = _REFUSED.search(str(error))
    if refused:
        return f"it needs {refused[1]}, which is code"
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def _load_dcp(folder: Path) -> Any:
    """Every entry of a DCP folder: tensors whole, byte entries as plain values. Its metadata, a
    pickle, is not executed.
    """
    import torch

    state: dict[Any, Any] = {}
    for entry in entries_of(folder):
        if entry.dtype:
            data = bytearray(b"".join(tensor_bytes(folder, entry)))
            dtype = getattr(torch, entry.dtype)
            value = (
                torch.frombuffer(data, dtype=dtype).reshape(entry.shape)
                if data
                else torch.empty(entry.shape, dtype=dtype)
            )
        else:
            data = bytearray(chunk_bytes(folder, entry.chunks[0]))
            value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        state[path_text(entry.path)] = value
    return state


def _flat(value: Any, name: str = "", *, loose: bool) -> dict[str, Any]:
    """The values by the path that leads to each. `loose`: number keys and the same as text are one,
    as DCP has them.
    """
    if isinstance(value, dict) and value:
        keys = (
            (str(key) if loose or not (isinstance(key, str) and key.isdigit()) else repr(key), item)
            for key, item in value.items()
        )
        parts = [(f"{name}.{key}" if name else key, item) for key, item in keys]
    elif isinstance(value, list | tuple) and value:
        parts = [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    else:
        return {name: value}
    flat: dict[str, Any] = {}
    for key, item in parts:
        flat |= _flat(item, key, loose=loose)
    return flat


def _difference(one: Any, other: Any) -> str:
    """A description of the difference; empty if they are equal bit for bit."""
    import torch

    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return (
            ""
            if type(one) is type(other) and repr(one) == repr(other)
            else f"{one!r} and {other!r}"[:200]
        )
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{one.dtype} {tuple(one.shape)} and {other.dtype} {tuple(other.shape)}"
    one, other = _plain(one), _plain(other)
    left, right = _bytes(one), _bytes(other)
    if one.numel() == 0 or torch.equal(left, right):
        return ""
    unequal = int((left.reshape(one.numel(), -1) != right.reshape(one.numel(), -1)).any(1).sum())
    wide = torch.complex128 if one.is_complex() else torch.float64
    distance = float((one.to(wide) - other.to(wide)).abs().max())
    return f"{unequal} of {one.numel()} elements differ, by at most {distance:.3g}"


def _plain(tensor: Any) -> Any:
    """The tensor as its memory would be: conjugation and sign are bits beside it until they are
    resolved.
    """
    import torch

    dense = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    # `contiguous` leaves the stride of a single element, which then cannot be viewed as bytes
    return dense.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.reshape(-1).view(torch.uint8)
