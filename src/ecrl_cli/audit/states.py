"""`ecrl audit --state A B`: compares two saved states, tensor by tensor: torch.save files (weights_only), safetensors files, DCP folders."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

from ecrl_cli.errors import ConfigError

SHOWN = 40
_REFUSED = re.compile(r"GLOBAL ([\w.]+) (?:was not an allowed global|whose module)")


def compare_states(one: Path, other: Path) -> tuple[list[str], bool]:
    """A line for each value that differs, and whether all are equal. ConfigError for what cannot be read."""
    left, right = _flat(_load(one)), _flat(_load(other))
    lines = [f"only in {one}: {name}" for name in sorted(left.keys() - right.keys())]
    lines += [f"only in {other}: {name}" for name in sorted(right.keys() - left.keys())]
    lines += [f"{name}: {difference}" for name in sorted(left.keys() & right.keys()) if (difference := _difference(left[name], right[name]))]
    same = len(left.keys() & right.keys())
    if not lines:
        return [f"equal: {same} values, bit for bit"], True
    rest = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return [f"different: {len(lines)} of {max(len(left), len(right))} values", *lines[:SHOWN], *rest], False


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
            "--state", f"{path} cannot be read ({_reason(error)})", "states of tensors and plain values are read, code is not"
        ) from error


def _reason(error: Exception) -> str:
    """The first line of the error; of torch's refusal of a pickle what it refuses, not its advice to load it all the same."""
    refused = _REFUSED.search(str(error))
    if refused:
        return f"it needs {refused[1]}, which is code"
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def _load_dcp(folder: Path) -> Any:
    """Every tensor of a DCP folder, unsharded, loaded in this process."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    metadata = FileSystemReader(folder).read_metadata()
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that no process group is there: this process reads all of it
        load(state, checkpoint_id=str(folder), no_dist=True)
    return state


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        parts = ((f"{name}.{key}" if name else str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        parts = ((f"{name}[{index}]", item) for index, item in enumerate(value))
    else:
        return {name: value}
    found: dict[str, Any] = {}
    for key, item in parts:
        found |= _flat(item, key)
    return found


def _difference(one: Any, other: Any) -> str:
    """A description of the difference; empty if they are equal bit for bit."""
    import torch

    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return "" if type(one) is type(other) and repr(one) == repr(other) else f"{one!r} and {other!r}"[:200]
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{one.dtype} {tuple(one.shape)} and {other.dtype} {tuple(other.shape)}"
    if one.numel() == 0 or torch.equal(_bytes(one), _bytes(other)):
        return ""
    unequal = int((_bytes(one).reshape(one.numel(), -1) != _bytes(other).reshape(one.numel(), -1)).any(1).sum())
    distance = float((one.double() - other.double()).abs().max()) if not one.is_complex() else float("nan")
    return f"{unequal} of {one.numel()} elements differ, by at most {distance:.3g}"


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
