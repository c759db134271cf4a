"""The optimizers of a job and the state of each: parameters, moments and counters, settings.

An optimizer is known from its construction on, whether it has stepped or not, so that a restarted
process has the same ones on record as one that has trained for a while. Its name is made of its
class and of the tensors that it was constructed with, and is the same in every run of the job.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import itertools
import weakref
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ecrl import digests
from ecrl.recording import Recording

MANY = 8  # optimizers of one kind: more are on record as one (an optimizer for each parameter)
CHECKED, CHECK_EVERY = 3, 16  # see OptimizerSet.state
SAMPLED_BYTES = 8  # of a tensor's first, middle and last elements
# by optimizer: digests of params, optimizer (its state), settings
State = Dict[str, Dict[str, str]]


class KnownOptimizer:
    """One optimizer of the job, held weakly: its state is the job's as long as the job holds it."""

    def __init__(self, optimizer: Any, kind: str) -> None:
        self.reference = weakref.ref(optimizer)
        self.kind = kind
        # of the tensors when they were digested last: see `fingerprint` and `samples`
        self.marks: Optional[List[Any]] = None
        self.sampled: List[bytes] = []
        self._memory: List[Tuple[int, int, int]] = []
        self._places: List[Tuple[int, int]] = []  # (address, number of bytes) of what is sampled
        self.digest: Dict[str, str] = {}
        self.unversioned = False  # the job writes to its tensors behind the version counters

    def samples(self, optimizer: Any) -> List[bytes]:
        """A few elements of each parameter in main memory, as bytes: what writes behind the version
        counters (an average over ranks, a pull to slow weights, a norm) nearly always changes them.
        """
        try:
            memory = [
                (parameter.data_ptr(), parameter.numel(), parameter.element_size())
                for parameter in parameters_of(optimizer)
            ]
            if memory != self._memory:
                self._places = [
                    place
                    for parameter in parameters_of(optimizer)
                    for place in sampled_places(parameter)
                ]
                self._memory = memory
        except Exception:  # a tensor without memory of its own, or one in the making
            self._memory, self._places = [], []
        return [ctypes.string_at(address, count) for address, count in self._places]


class OptimizerSet:
    """All optimizers that the job has constructed and still holds, in the order of construction."""

    def __init__(self) -> None:
        self._known: List[KnownOptimizer] = []
        self._rests = 0  # how often a state was asked for that no step has just changed
        self._next = itertools.count()
        # by id of a parameter: a reference, and its number
        self._serials: Dict[int, Tuple[Any, int]] = {}

    def add(self, optimizer: Any, collect: bool) -> bool:
        """Whether it was new. An optimizer is added when it is constructed, or, where that was not
        seen (a copy), when it steps first. `collect`: one that it replaces and that lies in a cycle
        would stay for as long as chance has it: garbage is collected."""
        for known in self._known:
            if known.reference() is optimizer:
                return False
        if collect:
            gc.collect()
        self._known = [known for known in self._known if known.reference() is not None]
        self._known.append(KnownOptimizer(optimizer, kind_of(optimizer)))
        return True

    @property
    def alive(self) -> List[Any]:
        """The optimizers themselves."""
        return [optimizer for _, _, optimizer in self._named()]

    def names(self, optimizers: List[Any]) -> List[str]:
        """The names of `optimizers`, each once, in order."""
        mine = {id(optimizer) for optimizer in optimizers}
        return list(
            dict.fromkeys(name for name, _, optimizer in self._named() if id(optimizer) in mine)
        )

    def _named(self) -> Iterator[Tuple[str, KnownOptimizer, Any]]:
        """Name, record and optimizer of those that the job still holds and that have parameters."""
        if len(self._known) == 1:
            known = self._known[0]
            optimizer = known.reference()
            if optimizer is not None and optimizer.param_groups:
                yield known.kind, known, optimizer
            return
        held = [(known, known.reference()) for known in self._known]
        held = [
            (known, optimizer)
            for known, optimizer in held
            if optimizer is not None and optimizer.param_groups
        ]
        classes: Dict[str, int] = {}
        for known, _ in held:
            name = known.kind.partition("[")[0]
            classes[name] = classes.get(name, 0) + 1
        numbers: Dict[str, int] = {}
        for known, optimizer in held:
            name = known.kind.partition("[")[0]
            if classes[name] > MANY:
                yield "%s x%d" % (name, classes[name]), known, optimizer
                continue
            number = numbers[known.kind] = numbers.get(known.kind, 0) + 1
            yield known.kind + (".%d" % number if number > 1 else ""), known, optimizer

    def state(self, stepped: Any = ()) -> State:
        """By name, the digests of each optimizer's parameters, state and settings.

        Tensors are digested again only if they may have changed: those of optimizers in `stepped`
        (ids), and those whose version counters, addresses or sampled elements are others than at
        the last digest. A write through `.data` moves no counter: before the first steps, and now
        and then after, everything is digested anyway, and always once such a write has been seen.
        """
        self._rests += not stepped
        always = not stepped and (self._rests <= CHECKED or self._rests % CHECK_EVERY == 0)
        grouped: Dict[str, List[Dict[str, str]]] = {}
        for name, known, optimizer in self._named():
            marks, sampled = fingerprint(optimizer), known.samples(optimizer)
            counted = known.marks == marks and id(optimizer) not in stepped
            if not counted or always or known.unversioned or known.sampled != sampled:
                taken = {
                    "params": digests.parameters([optimizer]),
                    "optimizer": digests.optimizer_state([optimizer])[0],
                }
                known.unversioned = known.unversioned or (
                    counted and taken["params"] != known.digest["params"]
                )
                known.marks, known.sampled, known.digest = marks, sampled, taken
            grouped.setdefault(name, []).append(
                {**known.digest, "settings": digests.settings([optimizer])}
            )
        return {name: joined(parts) for name, parts in grouped.items()}

    def settings(self) -> Dict[str, str]:
        """By name, the digest of learning rate, weight decay and the like; no tensor is read."""
        grouped: Dict[str, List[Dict[str, str]]] = {}
        for name, _, optimizer in self._named():
            grouped.setdefault(name, []).append({"settings": digests.settings([optimizer])})
        return {name: joined(parts)["settings"] for name, parts in grouped.items()}

    def entries(self) -> Dict[str, int]:
        """By name, how many parameters have any optimizer state."""
        counts: Dict[str, int] = {}
        for name, _, optimizer in self._named():
            counts[name] = counts.get(name, 0) + sum(
                bool(optimizer.state.get(p)) for p in parameters_of(optimizer)
            )
        return counts

    def trainable(self) -> Dict[str, int]:
        """By name, how many parameters require a gradient."""
        counts: Dict[str, int] = {}
        for name, _, optimizer in self._named():
            counts[name] = counts.get(name, 0) + sum(
                bool(p.requires_grad) for p in parameters_of(optimizer)
            )
        return counts

    def identity(self) -> int:
        """Tells whether the tensors that are trained are the same objects as before."""
        serials = set()
        for _, _, optimizer in self._named():
            for parameter in parameters_of(optimizer):
                held = self._serials.get(id(parameter))
                if held is None or held[0]() is not parameter:
                    held = self._serials[id(parameter)] = (weakref.ref(parameter), next(self._next))
                serials.add(held[1])
        return hash(frozenset(serials))


def joined(parts: List[Dict[str, str]]) -> Dict[str, str]:
    """One optimizer's digests as they are; those of several that are on record as one, digested."""
    if len(parts) == 1:
        return parts[0]
    return {
        key: digests.of_named((str(index), part[key]) for index, part in enumerate(parts))
        for key in parts[0]
    }


def overall(state: State, key: str) -> str:
    """One digest over all optimizers, for those who compare a job as a whole."""
    values = [parts[key] for parts in state.values()]
    return (
        values[0]
        if len(values) == 1
        else digests.of_named((str(number), value) for number, value in enumerate(values))
    )


def kind_of(optimizer: Any) -> str:
    """Class, number of tensors and a short digest of their shapes: `AdamW[12]3f2a`."""
    shapes = [tuple(parameter.shape) for parameter in parameters_of(optimizer)]
    short = hashlib.blake2b(repr(shapes).encode(), digest_size=2).hexdigest()
    return "%s[%d]%s" % (type(optimizer).__name__, len(shapes), short)


def parameters_of(optimizer: Any) -> Iterator[Any]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def fingerprint(optimizer: Any) -> List[Any]:
    """Changes with any write that torch counts, and with any tensor that is replaced; equal to
    nothing where the tensors do not tell (they are digested each time then).
    """
    marks: List[Any] = []
    try:
        for parameter in parameters_of(optimizer):
            marks += (id(parameter), parameter._version, parameter.data_ptr())
            for value in (optimizer.state.get(parameter) or {}).values():
                if hasattr(value, "_version"):
                    marks += (id(value), value._version, value.data_ptr())
                elif value is None or isinstance(value, (int, float, str)):
                    marks.append(value)
                else:
                    return [object()]
    except Exception:  # a sharded tensor, one in the making, a state of another form
        return [object()]
    return marks


def sampled_places(tensor: Any) -> List[Tuple[int, int]]:
    """(address, number of bytes) of the first, the middle and the last elements of a tensor."""
    start, size = _memory(tensor)
    count = min(size, SAMPLED_BYTES)
    places = (0, max(0, size // 2 - count), size - count) if size else ()
    return [(start + place, count) for place in places]


def _memory(tensor: Any) -> Tuple[int, int]:
    """Address and number of the bytes of a plain tensor in main memory; 0, 0 for any other, whose
    address may be none.
    """
    plain = type(tensor).__name__ in ("Tensor", "Parameter") and tensor.device.type == "cpu"
    if not plain or not tensor.is_contiguous():
        return 0, 0
    size, storage = tensor.numel() * tensor.element_size(), tensor.untyped_storage()
    offset = tensor.storage_offset() * tensor.element_size()
    if not storage.data_ptr() or storage.nbytes() < offset + size:
        return 0, 0
    return tensor.data_ptr(), size


def alive(references: List["weakref.ref[Any]"]) -> List[Any]:
    """The objects that the references still lead to, in their order."""
    return [thing for thing in (reference() for reference in references) if thing is not None]


def rates(optimizers: List[Any]) -> List[float]:
    return [
        float(group["lr"])
        for optimizer in optimizers
        for group in optimizer.param_groups
        if "lr" in group
    ]


def found_models(recording: Recording, optimizers: List[Any]) -> List[Any]:
    """The outermost modules that own the parameters: those that the job named, else those that are
    found in memory.
    """
    import torch

    named = [
        value
        for key, value in sorted(recording.watched().items())
        if isinstance(value, torch.nn.Module)
    ]
    if named:
        return named
    owned = {id(parameter) for optimizer in optimizers for parameter in parameters_of(optimizer)}
    candidates = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    holders = [
        module
        for module in candidates
        if any(id(parameter) in owned for parameter in module.parameters())
    ]
    inner = {id(child) for module in holders for child in module.modules() if child is not module}
    return sorted(
        (module for module in holders if id(module) not in inner),
        key=lambda module: type(module).__name__,
    )
