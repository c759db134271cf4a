"""Dataclasses to JSON values and back, strictly: an unknown or missing key, a value of another type, or a number out of range, is an error."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, Union

from ecrl_cli.config.limits import LIMITS, WHOLE, out_of_range
from ecrl_cli.errors import shown

T = TypeVar("T")
_PLAIN = (str, int, float, bool, type(None))
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


def encode(value: Any) -> Any:
    """`value` as JSON-ready lists, dicts and scalars."""
    kind: type = type(value)
    if kind in _PLAIN:  # nearly every value: a run logs a line per rank and step
        return value
    names = _names(kind)
    if names is not None:
        return {name: encode(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    return value


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    """The field names of a dataclass; None for any other type."""
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def decode(kind: type[T], value: Any) -> T:
    """`value` (from JSON) as a `kind`. Raises TypeError or KeyError, naming the key. See `config.limits` for the range of numbers."""
    return typing.cast(T, _decode(kind, value, kind.__name__))


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """By field of a dataclass, its type. Kept: resolving the annotations of a configuration costs more than reading it."""
    return typing.get_type_hints(kind)


@cache
def _required(kind: type) -> tuple[str, ...]:
    """The fields without a default."""
    missing = dataclasses.MISSING
    return tuple(f.name for f in dataclasses.fields(kind) if f.default is missing and f.default_factory is missing)


@cache
def _plain(kind: type) -> dict[str, tuple[type, ...]]:
    """By field, the types whose values are accepted without conversion."""
    return {name: tuple(t for t in _alternatives(hint) if t in _PLAIN) for name, hint in hints_of(kind).items()}


@cache
def _bounded(kind: type) -> tuple[tuple[str, int, int], ...]:
    """The fields that may be integers, each with its minimum and maximum."""
    return tuple((name, *LIMITS.get(name, (-WHOLE, WHOLE))) for name, types_ in _plain(kind).items() if int in types_)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _decode(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, value, where)
    if origin is tuple:
        items = _expect(list, value, where)
        return tuple(items) if _all_plain(arguments[0], items) else tuple(_decode(arguments[0], item, where) for item in items)
    if origin is dict:
        return {_key(arguments[0], key, where): _decode(arguments[1], item, f"{where}.{key}") for key, item in _expect(dict, value, where).items()}
    return value if kind is Any else _scalar(kind, value, where)


def _all_plain(kind: Any, items: list[Any]) -> bool:
    """Whether every item is a `kind` that needs neither conversion nor a further check: a manifest has a sum for every chunk."""
    if kind is int:
        return all(type(item) is int and -WHOLE <= item <= WHOLE for item in items)
    return kind in (str, float, bool) and all(type(item) is kind for item in items)


def _key(kind: Any, key: str, where: str) -> Any:
    """Converts a mapping's key from JSON text; an integer has exactly one accepted spelling."""
    if kind is int and not _WHOLE.fullmatch(key):
        raise TypeError(f"{where} has the key {shown(key)}, not a whole number")
    return kind(key)


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    given, hints = _expect(dict, value, where), hints_of(kind)
    if not given.keys() <= hints.keys():
        raise KeyError(f"{where} has no field {shown(sorted(given.keys() - hints.keys())[0])}")
    for name in _required(kind):
        if name not in given:
            raise KeyError(f"{where} lacks {name!r}")
    # Inlined for speed: a long run has hundreds of thousands of lines.
    plain = _plain(kind)
    for name, low, high in _bounded(kind):
        item = given.get(name)
        if type(item) is int and not low <= item <= high:
            raise TypeError(f"{where}.{name} is {shown(item)}, {out_of_range(name, item)}")
    return kind(**{name: item if type(item) in plain[name] else _decode(hints[name], item, f"{where}.{name}") for name, item in given.items()})


def _decode_union(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    """None if allowed; a list as the first list type; anything else as the first other type."""
    if value is None and type(None) in arguments:
        return None
    lists = [a for a in arguments if typing.get_origin(a) is tuple and isinstance(value, list)]
    return _decode(next(a for a in (*lists, *arguments) if a is not type(None)), value, where)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if isinstance(value, bool) and kind is not bool:
        raise TypeError(f"{where} is {value!r}, not {kind.__name__}")
    if kind in (int, float) and isinstance(value, int) and abs(value) > WHOLE:
        raise TypeError(f"{where} is {shown(value)}, not a number of 64 bits")
    return float(value) if kind is float and isinstance(value, int) else _expect(kind, value, where)


def _expect(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{where} is {shown(value)}, not {kind.__name__}")
    return value


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings as (dotted key, value)."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from flat(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
