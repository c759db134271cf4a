"""Reads a pickle as inert data: no class is looked up, no function is called, whatever the file
asks for.

Numbers, text, lists and tuples become themselves. A dictionary becomes `Pairs`, a set `Elements`, a
class or function `Named`, and what the pickle would make by a call `Instance`: the callee's name,
its arguments, the state set on it. Sizes, depth and work are limited.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

MAX_OPCODES = 5_000_000  # a few seconds


@dataclass(frozen=True)
class Named:
    """A class or function of the pickle, by its module and name; never resolved."""

    name: str


class Pairs(list[tuple[Any, Any]]):
    """The items of a dictionary in order; of two with one key the later counts."""


class Elements(list[Any]):
    """The elements of a set, in any order."""


@dataclass
class Instance:
    """An object that the pickle would make by calling `kind` with `arguments`; `state`: what
    `__setstate__` would get.
    """

    kind: str
    arguments: Any
    state: Any = None
    items: list[Any] = field(default_factory=list)  # of a subclass of list
    pairs: Pairs = field(default_factory=Pairs)  # of a subclass of dict


Persistent = Callable[[Any], Any]
Calls = Mapping[str, Callable[..., Any]]
_MARK = object()
_LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *(
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
    ),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_MADE: dict[str, Callable[[], Any]] = {
    "MARK": lambda: _MARK,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": Pairs,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": Elements,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_DICTIONARIES = ("collections OrderedDict", "collections defaultdict")
_SETS = tuple(
    f"{module} {name}" for module in ("builtins", "__builtin__") for name in ("set", "frozenset")
)


def read_pickle(
    file: IO[bytes] | bytes, persistent: Persistent | None = None, calls: Calls | None = None
) -> Any:
    """The value of the pickle at the file's position, which then stands behind it. ValueError for
    what is none, or too large.

    `persistent`: makes what a persistent id stands for. `calls`: by name, our own stand-ins for
    functions that the pickle calls.
    """
    try:
        return _Interpreter(persistent, calls or {}).run(file)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"no pickle that can be read ({str(error)[:120]})") from error


class _Interpreter:
    def __init__(self, persistent: Persistent | None, calls: Calls) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._persistent, self._calls = persistent, calls

    def run(self, data: IO[bytes] | bytes) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MAX_OPCODES:
                raise ValueError(f"more than {MAX_OPCODES} opcodes")
            if opcode.name == "STOP":
                (value,) = self._stack
                return value
            self._step(opcode.name, argument)
        raise ValueError("it has no end")

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _LITERALS:
            stack.append(argument)
        elif name in _MADE:
            stack.append(_MADE[name]())
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in _TUPLES:
            count = _TUPLES[name]
            if len(stack) < count:
                raise ValueError("an empty stack")
            stack[-count:] = [tuple(stack[-count:])]
        elif name not in ("PROTO", "FRAME"):
            getattr(self, f"_do_{name.lower()}", self._refuse)(argument, name)

    def _refuse(self, argument: Any, name: str) -> None:
        raise ValueError(f"opcode {name}")

    def _since_mark(self) -> list[Any]:
        taken: list[Any] = []
        while (value := self._stack.pop()) is not _MARK:
            taken.append(value)
        return taken[::-1]

    def _do_tuple(self, *_: Any) -> None:
        self._stack.append(tuple(self._since_mark()))

    def _do_list(self, *_: Any) -> None:
        self._stack.append(self._since_mark())

    def _do_dict(self, *_: Any) -> None:
        self._stack.append(_paired(self._since_mark()))

    def _do_frozenset(self, *_: Any) -> None:
        self._stack.append(Elements(self._since_mark()))

    def _do_pop(self, *_: Any) -> None:
        self._stack.pop()

    def _do_pop_mark(self, *_: Any) -> None:
        self._since_mark()

    def _do_dup(self, *_: Any) -> None:
        self._stack.append(self._stack[-1])

    def _do_append(self, *_: Any) -> None:
        value = self._stack.pop()
        _extend(self._stack[-1], [value])

    def _do_appends(self, *_: Any) -> None:
        values = self._since_mark()
        _extend(self._stack[-1], values)

    def _do_additems(self, *_: Any) -> None:
        values = self._since_mark()
        if not isinstance(self._stack[-1], Elements):
            raise ValueError("elements of what is no set")
        self._stack[-1].extend(values)

    def _do_setitem(self, *_: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        _set_items(self._stack[-1], Pairs([(key, value)]))

    def _do_setitems(self, *_: Any) -> None:
        pairs = _paired(self._since_mark())
        _set_items(self._stack[-1], pairs)

    def _do_global(self, argument: str, *_: Any) -> None:
        self._stack.append(Named(argument))

    def _do_stack_global(self, *_: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise ValueError("a class without a name")
        self._stack.append(Named(f"{module} {name}"))

    def _do_persid(self, argument: str, *_: Any) -> None:
        self._stack.append(self._resolved(argument))

    def _do_binpersid(self, *_: Any) -> None:
        self._stack.append(self._resolved(self._stack.pop()))

    def _resolved(self, identity: Any) -> Any:
        if self._persistent is None:
            raise ValueError("it refers to data outside")
        return self._persistent(identity)

    def _do_reduce(self, *_: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._stack.append(called(function, arguments, self._calls))

    def _do_newobj(self, *_: Any) -> None:
        self._do_reduce()

    def _do_newobj_ex(self, *_: Any) -> None:
        keywords, arguments, function = self._stack.pop(), self._stack.pop(), self._stack.pop()
        self._stack.append(
            called(function, (*arguments, keywords) if keywords else arguments, self._calls)
        )

    def _do_obj(self, *_: Any) -> None:
        function, *arguments = self._since_mark()
        self._stack.append(called(function, tuple(arguments), self._calls))

    def _do_inst(self, argument: str, *_: Any) -> None:
        self._stack.append(called(Named(argument), tuple(self._since_mark()), self._calls))

    def _do_build(self, *_: Any) -> None:
        state = self._stack.pop()
        if isinstance(self._stack[-1], Instance):
            # attributes of a dictionary (the versions of a state_dict) are left out
            self._stack[-1].state = state


def _paired(values: list[Any]) -> Pairs:
    return Pairs(zip(values[::2], values[1::2], strict=True))


def _extend(target: Any, values: list[Any]) -> None:
    if isinstance(target, Instance):
        target.items.extend(values)
    elif type(target) is list:
        target.extend(values)
    else:
        raise ValueError("items of what is no list")


def _set_items(target: Any, pairs: Pairs) -> None:
    if isinstance(target, Instance):
        target.pairs.extend(pairs)
    elif isinstance(target, Pairs):
        target.extend(pairs)
    else:
        raise ValueError("items of what is no dictionary")


def called(function: Any, arguments: Any, calls: Calls) -> Any:
    """A stand-in for the result of `function(*arguments)`."""
    if not isinstance(function, Named):
        return Instance("call", (function, arguments))
    if not isinstance(arguments, tuple):
        raise ValueError("arguments that are no tuple")
    if function.name in calls:
        return calls[function.name](*arguments)
    if function.name == _DICTIONARIES[0] and len(arguments) == 1 and isinstance(arguments[0], list):
        return Pairs((key, value) for key, value in arguments[0])  # protocol 0
    if function.name in _DICTIONARIES:
        return Pairs()
    if function.name in _SETS and len(arguments) <= 1:
        return Elements(arguments[0] if arguments else ())
    if (
        function.name == "copy_reg _reconstructor"
        and len(arguments) == 3
        and isinstance(arguments[0], Named)
    ):
        return Instance(arguments[0].name, ())
    return Instance(function.name, arguments)


def is_bytes(value: Any) -> bool:
    """Whether it is a byte string: protocol 2 has text instead, encoded by a call."""
    named = (
        isinstance(value, Instance) and value.kind == "_codecs encode" and len(value.arguments) == 2
    )
    return named and isinstance(value.arguments[0], str)


def bytes_of(value: Any) -> Any:
    """The bytes that protocol 2 has as text; any other value as it is."""
    return value.arguments[0].encode("latin1") if is_bytes(value) else value
