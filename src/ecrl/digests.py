"""Digests of tensors, batches and generators: equal for equal bits, in order; they draw no random
number and change nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import operator
import os
import random
import re
import struct
import sys
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, cast

try:  # the fastest that the job's environment has
    import xxhash  # type: ignore[import-not-found,unused-ignore]

    NAME = "xxh3_128/v6"

    def _new() -> Any:
        return xxhash.xxh3_128()

except ImportError:
    try:
        import blake3

        NAME = "blake3/v6"

        def _new() -> Any:
            return blake3.blake3()

    except ImportError:
        NAME = "blake2b_128/v6"

        def _new() -> Any:
            return hashlib.blake2b(digest_size=16)


# of a function or an object without a repr: another in each process
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
PIECE = 4 * 2**20  # bytes of a tensor that are hashed as one; smaller tensors are hashed in a row
MOST_FORWARDS = 64  # of one step that are on record one by one
BATCH = 64 * 2**20  # bytes of pieces at once: what comes from a GPU is copied
WORTH_THREADS = 8 * 2**20  # bytes; below that, starting threads costs more than it saves


def of_named(pairs: Iterable[Tuple[str, Any]]) -> str:
    """Hex digest of named values: tensors by dtype, shape and bytes, everything else by its repr.
    Tensors of a piece and more go in by the digests of their pieces, which the cores that are this
    process's share; the digest does not depend on how many those are.
    """
    digest = _new()
    pieces: List[Any] = []
    for name, value in pairs:
        digest.update(name.encode())
        data = _feed(digest, value)
        if data:
            pieces += [data[start : start + PIECE] for start in range(0, len(data), PIECE)]
        if len(pieces) * PIECE >= BATCH:
            digest.update(b"".join(_each(pieces)))
            pieces = []
    if pieces:
        digest.update(b"".join(_each(pieces)))
    return str(digest.hexdigest())


def _feed(digest: Any, value: Any) -> Any:
    """Add a value to `digest`; the bytes of one that is hashed in pieces are given back instead."""
    if _is_tensor(value):
        digest.update(("%s%s" % (value.dtype, tuple(value.shape))).encode())
        data = tensor_bytes(value)
        if len(data) >= PIECE:
            return data
        digest.update(data)
        return b""
    numpy = sys.modules.get("numpy")
    # repr abridges an array
    if (
        numpy is not None
        and isinstance(value, (numpy.ndarray, numpy.generic))
        and not value.dtype.hasobject
    ):
        digest.update(("%s%s" % (value.dtype, value.shape)).encode())
        digest.update(value.tobytes())
    else:
        digest.update(_ADDRESS.sub("", repr(value)).encode())
    return b""


def _each(pieces: List[Any]) -> List[bytes]:
    """The digest of each. The threads live only here: a job that forks its loader's workers then
    has no more than before.
    """
    found: List[bytes] = [b""] * len(pieces)
    count = min(_cores(), len(pieces)) if sum(map(len, pieces)) >= WORTH_THREADS else 1

    def work(first: int) -> None:
        for number in range(first, len(pieces), count):
            digest = _new()
            digest.update(pieces[number])
            found[number] = digest.digest()

    helpers = [
        threading.Thread(target=work, args=(first,), daemon=True) for first in range(1, count)
    ]
    for helper in helpers:
        helper.start()
    work(0)
    for helper in helpers:
        helper.join()
    return found


def _cores() -> int:
    """How many cores are this process's: those that it may use, among the ranks of this machine; at
    most 4.
    """
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, min(4, usable // max(1, int(ranks) if ranks.isdigit() else 1)))


def tensor_bytes(value: Any) -> Any:
    """The bytes of a tensor in C order; of a sharded one those of this rank's shard."""
    torch = sys.modules["torch"]
    if (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.dtype in (torch.float32, torch.int64, torch.uint8)
        and value.is_cpu
    ):
        plain = value.detach() if value.requires_grad else value
        if plain.is_contiguous() and not plain.is_neg():
            return plain.numpy().data.cast("B") if plain.numel() else b""  # most tensors: no copy
    if without_values(value):
        return b""
    if hasattr(value, "__tensor_flatten__") and not hasattr(value, "to_local"):
        # a wrapper has no elements of its own: state of an 8-bit optimizer, quantized weights
        inner, _ = value.__tensor_flatten__()
        return b"".join(bytes(tensor_bytes(getattr(value, name))) for name in inner)
    local = value.to_local() if hasattr(value, "to_local") else value
    with torch.no_grad():
        # both are marks on a tensor, and its bytes are others
        local = local.detach().resolve_conj().resolve_neg()
        flat = local.to("cpu").contiguous().reshape(-1)
        if flat.numel() == 0:
            return b""
        # of a single element any stride is contiguous, and only 1 can be viewed as bytes
        if flat.stride() != (1,):
            flat = flat.new_empty(flat.shape).copy_(flat)
        return flat.view(torch.uint8).numpy().data


def without_values(value: Any) -> bool:
    """Whether a tensor has a shape and no elements: on the meta device, or a stand-in of a dry run
    (FakeTensorMode). Operations and memory are counted with such.
    """
    return getattr(value, "is_meta", False) or type(value).__name__ == "FakeTensor"


def tensors_in(value: Any, path: str = "") -> Iterator[Tuple[str, Any]]:
    """Every leaf of a batch with its path: dictionaries by sorted key, lists and tuples in order,
    sets sorted, objects whose repr is that of `object` (it holds an address, another in each
    process) or of a dataclass (it abridges its tensors) by their attributes.
    """
    if _is_tensor(value):
        yield path, value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from tensors_in(value[key], "%s.%s" % (path, key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from tensors_in(item, "%s[%d]" % (path, index))
    elif hasattr(value, "items") and callable(value.items):  # a BatchEncoding and its like
        for key, item in sorted(value.items(), key=lambda pair: str(pair[0])):
            yield from tensors_in(item, "%s.%s" % (path, key))
    elif isinstance(value, (set, frozenset)):
        yield path, sorted(map(repr, value))
    elif (
        hasattr(value, "__dict__")
        and not isinstance(value, type)
        and (_addressed(value) or hasattr(value, "__dataclass_fields__"))
    ):
        yield path, type(value).__qualname__
        yield from tensors_in(vars(value), path)
    else:
        yield path, value


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _addressed(value: Any) -> bool:
    return cast(Any, type(value).__repr__) is object.__repr__


def rows(leaves: List[Tuple[str, Any]]) -> Optional[List[str]]:
    """A short digest of each sample of a batch (`tensors_in`), where all its tensors have the same
    first dimension; else None.
    """
    import torch

    tensors = [(path, leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
    counts = {leaf.shape[0] if leaf.dim() else -1 for _, leaf in tensors}
    if len(counts) != 1 or -1 in counts:
        return None
    return [
        of_named((path, leaf[row]) for path, leaf in tensors)[:16] for row in range(counts.pop())
    ]


GENERATORS = ("rng", "rng_python", "rng_numpy")
# the last state of each generator, and its digest: few change in every step
_known: Dict[str, Tuple[bytes, str]] = {}
_last: Tuple[List[bytes], Dict[str, str]] = ([], {})  # of all of them
_python_state: Optional[Callable[[], bytes]] = None
_numpy_state: Optional[Callable[[], bytes]] = None


def generators() -> Dict[str, str]:
    """Digests of this process's generators: `rng`: torch's on the CPU and on each CUDA device in
    use; `rng_python`; `rng_numpy`.
    """
    global _last, _python_state, _numpy_state
    torch = sys.modules["torch"]
    torch_state = torch.default_generator.get_state().numpy().tobytes()
    if torch.cuda.is_initialized():
        torch_state = b"".join(
            [torch_state, *(state.numpy().tobytes() for state in torch.cuda.get_rng_state_all())]
        )
    if _python_state is None:
        _python_state = _reader_of_python()
    states = [torch_state, _python_state()]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if _numpy_state is None:
            _numpy_state = _reader_of_numpy(numpy)
        states.append(_numpy_state())
    if states != _last[0]:
        _last = states, dict(_of_state(*each) for each in enumerate(states))
    return _last[1]


def _of_state(place: int, state: bytes) -> Tuple[str, str]:
    """The name of the generator at `place` of GENERATORS, and the digest of its state."""
    name = GENERATORS[place]
    known = _known.get(name)
    if known is None or known[0] != state:
        digest = _new()
        digest.update(state)
        known = _known[name] = (state, str(digest.hexdigest()))
    return name, known[1]


# Python and numpy take 10 to 40 us to hand out the state of their Mersenne twister, which is 2.5 KB
# in memory. Where it is found as they hand it out, it is read there.


def _reader_of_python() -> Callable[[], bytes]:
    layout, generator = struct.Struct("i624I"), cast(Any, random)._inst
    address = id(generator) + object.__basicsize__
    state = random.getstate()[1]
    whole = (
        sys.implementation.name == "cpython"
        and type(generator).__basicsize__ >= object.__basicsize__ + layout.size
    )
    if whole:
        there = (ctypes.c_char * layout.size).from_address(address)
        if there.raw == layout.pack(state[624], *state[:624]):
            return lambda: (
                there.raw
                if generator.gauss_next is None
                else there.raw + repr(generator.gauss_next).encode()
            )
    return lambda: repr(random.getstate()).encode()


def _reader_of_numpy(numpy: Any) -> Callable[[], bytes]:
    """A normal number that numpy keeps for the next call does not lie there; it is left out."""
    layout, generator = struct.Struct("624Ii"), numpy.random.mtrand._rand
    name, key, position = numpy.random.get_state()[:3]
    address = generator._bit_generator.ctypes.state_address
    if name == "MT19937":
        there = (ctypes.c_char * layout.size).from_address(address)
        if there.raw == layout.pack(*key.tolist(), position):
            return lambda: there.raw
    return lambda: repr(numpy.random.get_state(legacy=False)).encode()


def parameters(optimizers: Iterable[Any]) -> str:
    """Digest of all parameters that `optimizers` update, in the order of their groups."""
    return of_named(("%d.%d.%d" % place, parameter) for place, parameter in _numbered(optimizers))


def buffers(models: Iterable[Any]) -> str:
    """Empty where no model has any."""
    named = [
        ("%d.%s" % (index, name), value)
        for index, model in enumerate(models)
        for name, value in model.named_buffers()
    ]
    return of_named(named) if named else ""


def optimizer_state(optimizers: Iterable[Any]) -> Tuple[str, int]:
    """The digest of moments, counters and the like, and how many parameters have any."""
    optimizers = list(optimizers)
    found: List[Tuple[str, Any]] = []
    count = 0
    for place, parameter in _numbered(optimizers):
        state = optimizers[place[0]].state.get(parameter) or {}
        count += bool(state)
        for key in sorted(state, key=str):
            found += tensors_in(state[key], "%d.%d.%d.%s" % (*place, key))
    return of_named(found), count


def watched(named: Dict[str, Any]) -> Dict[str, str]:
    """Digests of the objects that the job watches by name, besides its model and its optimizer: of
    those with a state_dict, else of their tensors.
    """
    found = {}
    for name in sorted(named):
        if name not in ("model", "optimizer"):
            value = named[name]
            found[name] = of_named(
                tensors_in(
                    value.state_dict() if callable(getattr(value, "state_dict", None)) else value
                )
            )
    return found


# By optimizers (ids), the last names and values, where none of them can change in place, and their
# digest.
_settings: Dict[Tuple[int, ...], Tuple[List[Any], str]] = {}


def settings(optimizers: Iterable[Any]) -> str:
    """Digest of the groups' entries besides parameters: lr, betas, weight decay, ..."""
    optimizers = list(optimizers)
    key_of = tuple(map(id, optimizers))
    last = _settings.get(key_of, ([], ""))
    values: List[Any] = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            held = dict(group)
            held.pop("params", None)  # which must not be kept alive from here
            values += held
            values += held.values()
    if last[1] and len(values) == len(last[0]) and all(map(operator.is_, values, last[0])):
        return last[1]
    digest = of_named(
        ("%d.%d.%s" % (index, number, key), _setting(group[key]))
        for index, optimizer in enumerate(optimizers)
        for number, group in enumerate(optimizer.param_groups)
        for key in sorted(group)
        if key != "params"
    )
    constant = all(
        _constant(group[key])
        for optimizer in optimizers
        for group in optimizer.param_groups
        for key in group
        if key != "params"
    )
    if len(_settings) > 4096:
        _settings.clear()
    _settings[key_of] = (values, digest) if constant else ([], "")
    return digest


def _setting(value: Any) -> Any:
    """The value whatever file it came through: JSON has lists for tuples, YAML 0 for 0.0."""
    if isinstance(value, (list, tuple)):
        return tuple(_setting(item) for item in value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    return value


def _constant(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, (bool, int, float, str))
        or (isinstance(value, tuple) and all(_constant(item) for item in value))
    )


def _numbered(optimizers: Iterable[Any]) -> Iterator[Tuple[Tuple[int, int, int], Any]]:
    for index, optimizer in enumerate(optimizers):
        for number, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                yield (index, number, position), parameter


def entering(args: Any, kwargs: Any) -> Optional[str]:
    """The digest of the tensors that enter, but for what a gradient flows through: that is no input
    but the model's own work (logits on their way into a loss). None where nothing enters.
    """
    torch = sys.modules["torch"]
    if not torch.is_grad_enabled():
        return None
    try:
        leaves = [pair for pair in _tensors_at([args, kwargs], "", 6) if _is_data(pair[1])]
        return of_named(leaves) if leaves else None
    except Exception:
        # tensors without elements of their own: inside torch.func, while tracing, sparse ones
        return None


def _is_data(value: Any) -> bool:
    """Whether no parameters lead to the tensor, though its gradient may be asked for (points at
    which an equation is to hold).
    """
    parameter = sys.modules["torch"].nn.Parameter
    return not value.requires_grad or (value.is_leaf and not isinstance(value, parameter))


def _tensors_at(value: Any, path: str, depth: int) -> Iterator[Tuple[str, Any]]:
    """The tensors of arguments, up to `depth` containers deep: they may lead to the whole job."""
    if _is_tensor(value):
        yield path, value
    elif depth and isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _tensors_at(item, "%s[%d]" % (path, index), depth - 1)
    elif depth and isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _tensors_at(value[key], "%s.%s" % (path, key), depth - 1)
    elif (
        depth
        and hasattr(value, "__dict__")
        and not isinstance(value, type)
        and not hasattr(value, "_modules")
        and not callable(value)
    ):
        yield from _tensors_at(vars(value), path, depth - 1)


def shortened(entered: List[str]) -> List[str]:
    """At most MOST_FORWARDS digests: the earlier ones as one."""
    if len(entered) <= MOST_FORWARDS:
        return entered
    earlier = entered[: -MOST_FORWARDS + 1]
    return [
        of_named((str(number), text) for number, text in enumerate(earlier)),
        *entered[-MOST_FORWARDS + 1 :],
    ]
