"""Dataclasses to JSON values and back, strictly: an unknown or missing key, a value of another
type, or a number out of range, is an error.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, partial
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
    return (
        tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None
    )


def decode(kind: type[T], value: Any) -> T:
    """`value` (from JSON) as a `kind`. Raises TypeError or KeyError, naming the key. See
    `config.limits` for the range of numbers.
    """
    decoded: T = _decoder(kind)(value, kind.__name__)  # type: ignore[arg-type]  # a type is hashable
    return decoded


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """By field of a dataclass, its type. Kept: resolving the annotations of a configuration costs
    more than reading it.
    """
    return typing.get_type_hints(kind)


Decoder = Callable[[Any, str], Any]  # a value from JSON, and where it stands, for messages


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union; of any other hint, itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


@cache
def _decoder(kind: Any) -> Decoder:
    """The decoder for a `kind`. Made once for each type: a long run has hundreds of thousands of
    lines.
    """
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _union_decoder(arguments)
    if origin is tuple:
        return _tuple_decoder(arguments[0])
    if origin is dict:
        return _dict_decoder(*arguments)
    return _any if kind is Any else partial(_scalar, kind)


def _any(value: Any, where: str) -> Any:
    return value


def _tuple_decoder(kind: Any) -> Decoder:
    item_of = _decoder(kind)

    def decoded(value: Any, where: str) -> Any:
        items = _expect(list, value, where)
        return (
            tuple(items)
            if _all_plain(kind, items)
            else tuple([item_of(item, where) for item in items])
        )

    return decoded


def _dict_decoder(key_kind: Any, kind: Any) -> Decoder:
    item_of = _decoder(kind)

    def decoded(value: Any, where: str) -> Any:
        given = _expect(dict, value, where)
        if key_kind is str and _all_plain(kind, given.values()):
            return dict(given)
        return {
            _key(key_kind, key, where): item_of(item, f"{where}.{key}")
            for key, item in given.items()
        }

    return decoded


def _all_plain(kind: Any, items: Collection[Any]) -> bool:
    """Whether every item is a `kind` that needs neither conversion nor a further check: a manifest
    has a sum for every chunk.
    """
    if kind is int:
        return all(type(item) is int and -WHOLE <= item <= WHOLE for item in items)
    return kind in (str, float, bool) and all(type(item) is kind for item in items)


def _key(kind: Any, key: str, where: str) -> Any:
    """Converts a mapping's key from JSON text; an integer has exactly one accepted spelling."""
    if kind is int and not _WHOLE.fullmatch(key):
        raise TypeError(f"{where} has the key {shown(key)}, not a whole number")
    return kind(key)


def _union_decoder(arguments: tuple[Any, ...]) -> Decoder:
    """None if allowed; a list as the first list type; anything else as the first other type."""
    others = [a for a in arguments if a is not type(None)]
    lists = [a for a in others if typing.get_origin(a) is tuple]
    optional, of_list, of_other = (
        len(others) < len(arguments),
        _decoder((lists or others)[0]),
        _decoder(others[0]),
    )

    def decoded(value: Any, where: str) -> Any:
        if value is None and optional:
            return None
        return (of_list if isinstance(value, list) else of_other)(value, where)

    return decoded


def _dataclass_decoder(kind: Any) -> Decoder:
    hints, missing = hints_of(kind), dataclasses.MISSING
    required = tuple(
        f.name
        for f in dataclasses.fields(kind)
        if f.default is missing and f.default_factory is missing
    )
    # By field: the types whose values are accepted as they are, and for those that may be integers
    # the minimum and maximum.
    plain = {
        name: tuple(t for t in alternatives(hint) if t in _PLAIN) for name, hint in hints.items()
    }
    bounded = tuple(
        (name, *LIMITS.get(name, (-WHOLE, WHOLE)))
        for name, accepted in plain.items()
        if int in accepted
    )

    def decoded(value: Any, where: str) -> Any:
        given = _expect(dict, value, where)
        if not given.keys() <= hints.keys():
            raise KeyError(f"{where} has no field {shown(sorted(given.keys() - hints.keys())[0])}")
        for name in required:
            if name not in given:
                raise KeyError(f"{where} lacks {name!r}")
        for name, low, high in bounded:
            item = given.get(name)
            if type(item) is int and not low <= item <= high:
                raise TypeError(f"{where}.{name} is {shown(item)}, {out_of_range(name, item)}")
        return kind(
            **{
                name: (
                    item
                    if type(item) in plain[name]
                    else _decoder(hints[name])(item, f"{where}.{name}")
                )
                for name, item in given.items()
            }
        )

    return decoded


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
