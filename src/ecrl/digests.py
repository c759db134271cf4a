"""Digests of tensors, batches and generators: equal for equal bits, in order; they draw no random number and change nothing."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

try:
    import xxhash  # type: ignore[import-not-found,unused-ignore]

    NAME = "xxh3_128/v2"

    def _new() -> Any:
        return xxhash.xxh3_128()
except ImportError:  # the job's environment need not have it
    NAME = "blake2b_128/v2"

    def _new() -> Any:
        return hashlib.blake2b(digest_size=16)


def of_named(pairs: Iterable[Tuple[str, Any]]) -> str:
    """Hex digest of named values: tensors by dtype, shape and bytes, everything else by its repr."""
    digest = _new()
    for name, value in pairs:
        digest.update(name.encode())
        _feed(digest, value)
    return str(digest.hexdigest())


def _feed(digest: Any, value: Any) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        digest.update(("%s%s" % (value.dtype, tuple(value.shape))).encode())
        digest.update(tensor_bytes(value))
    else:
        digest.update(repr(value).encode())


def tensor_bytes(value: Any) -> Any:
    """The bytes of a tensor in C order; of a sharded one those of this rank's shard."""
    import torch

    if value.device.type == "cpu" and value.dtype in (torch.float32, torch.uint8, torch.int64) and type(value) in (torch.Tensor, torch.nn.Parameter):
        plain = value.detach()
        if plain.is_contiguous() and not plain.is_neg():
            return plain.numpy().reshape(-1).view("B").data if plain.numel() else b""  # most tensors: no copy
    local = value.to_local() if hasattr(value, "to_local") else value
    with torch.no_grad():
        flat = local.detach().to("cpu").contiguous().reshape(-1)
        if flat.numel() == 0:
            return b""
        return flat.view(torch.uint8).numpy().data


def tensors_in(value: Any, path: str = "") -> Iterator[Tuple[str, Any]]:
    """Every leaf of a batch with its path: dictionaries by sorted key, lists, tuples and objects with attributes (`__dict__`) in order."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from tensors_in(value[key], "%s.%s" % (path, key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from tensors_in(item, "%s[%d]" % (path, index))
    elif hasattr(value, "items") and callable(value.items):  # a BatchEncoding and its like
        for key, item in sorted(value.items(), key=lambda pair: str(pair[0])):
            yield from tensors_in(item, "%s.%s" % (path, key))
    else:
        yield path, value


def batch(value: Any) -> str:
    return of_named(tensors_in(value))


def rows(value: Any) -> Optional[List[str]]:
    """A short digest of each sample of a batch, where all its tensors have the same first dimension; else None."""
    import torch

    leaves = [(path, leaf) for path, leaf in tensors_in(value) if isinstance(leaf, torch.Tensor)]
    counts = {leaf.shape[0] if leaf.dim() else -1 for _, leaf in leaves}
    if len(counts) != 1 or -1 in counts:
        return None
    return [of_named((path, leaf[row]) for path, leaf in leaves)[:16] for row in range(counts.pop())]


class _Generators:
    """The digest of Python's generator and what it is of: its state is large as text, and few jobs draw from it in every step."""

    state: Any = None
    digest = ""


def generators() -> Dict[str, str]:
    """Of this process's generators: `rng`: torch's on the CPU and on each CUDA device in use; `rng_python`; `rng_numpy`."""
    import torch

    parts: List[Tuple[str, Any]] = [("torch", torch.get_rng_state())]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        parts += [("cuda%d" % index, state) for index, state in enumerate(torch.cuda.get_rng_state_all())]
    state = random.getstate()
    if state != _Generators.state:
        _Generators.state, _Generators.digest = state, of_named([("python", state)])
    found = {"rng": of_named(parts), "rng_python": _Generators.digest}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        digest = _new()
        digest.update(("%s%r" % (name, rest)).encode())
        digest.update(keys.data)
        found["rng_numpy"] = str(digest.hexdigest())
    return found


def parameters(optimizers: Iterable[Any]) -> str:
    """Of all parameters that `optimizers` update, in the order of their groups."""
    return of_named(("%d.%d.%d" % place, parameter) for place, parameter in _numbered(optimizers))


def buffers(models: Iterable[Any]) -> str:
    return of_named(("%d.%s" % (index, name), value) for index, model in enumerate(models) for name, value in model.named_buffers())


def optimizer_state(optimizers: Iterable[Any]) -> Tuple[str, int]:
    """The digest of moments, counters and the like, and how many parameters have any."""
    optimizers = list(optimizers)
    found: List[Tuple[str, Any]] = []
    count = 0
    for place, parameter in _numbered(optimizers):
        state = optimizers[place[0]].state.get(parameter) or {}
        count += bool(state)
        found += [("%d.%d.%d.%s" % (*place, key), state[key]) for key in sorted(state, key=str)]
    return of_named(found), count


def watched(named: Dict[str, Any]) -> Dict[str, str]:
    """Of each thing that the job watches by name, besides its model and its optimizer: what has a state_dict, else its tensors."""
    found = {}
    for name in sorted(named):
        if name not in ("model", "optimizer"):
            value = named[name]
            found[name] = of_named(tensors_in(value.state_dict() if callable(getattr(value, "state_dict", None)) else value))
    return found


def settings(optimizers: Iterable[Any]) -> str:
    """Of what the groups hold besides parameters: lr, betas, weight decay, ..."""
    return of_named(
        ("%d.%d.%s" % (index, number, key), group[key])
        for index, optimizer in enumerate(optimizers)
        for number, group in enumerate(optimizer.param_groups)
        for key in sorted(group)
        if key != "params"
    )


def _numbered(optimizers: Iterable[Any]) -> Iterator[Tuple[Tuple[int, int, int], Any]]:
    for index, optimizer in enumerate(optimizers):
        for number, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                yield (index, number, position), parameter
