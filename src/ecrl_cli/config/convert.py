"""Converts plain values to the schema's dataclasses, field by field, with an error message for each
kind of mistake.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from ecrl_cli.config.codec import hints_of
from ecrl_cli.config.keys import unknown_key
from ecrl_cli.config.limits import LIMITS, RANKS, STEPS, out_of_range
from ecrl_cli.config.registry import did_you_mean
from ecrl_cli.errors import ConfigError, shown

T = TypeVar("T")

_REMEDIES = {
    "checkpoint.every": "0 would never save: use checkpoint=none",
    "checkpoint.keep": (
        "one to use and one to fall back to: with 1, a corrupt newest checkpoint leaves nothing"
    ),
    "checkpoint.max_inflight": "checkpoint=blocking writes without any in flight",
}


def convert(kind: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """`values` as a `kind`: every key known, every value of the field's type and in its range, else
    ConfigError. Missing keys keep their default.
    """
    hints = hints_of(typing.cast(Any, kind))
    for name in values:
        if name not in hints:
            raise unknown_key(f"{prefix}{name}")
    given = {
        field.name: _field(field, hints[field.name], values[field.name], prefix)
        for field in dataclasses.fields(typing.cast(Any, kind))
        if field.name in values
    }
    return kind(**given)


def _field(field: dataclasses.Field[Any], hint: Any, value: Any, prefix: str) -> Any:
    key = prefix + field.name
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(
                key, f"must be a mapping of keys, got {shown(value)}", f"write {key}.NAME=VALUE"
            )
        return convert(typing.cast(Any, hint), value, f"{key}.")
    if value is None:
        raise ConfigError(key, "has no value", f"give one: {key}=VALUE")
    converted = _converter(hint)(key, value)
    for item in converted if isinstance(converted, tuple) else (converted,):
        _check_range(key, item, field.metadata)
        if isinstance(item, int) and (wrong := out_of_range(field.name, item)):
            raise ConfigError(
                key,
                (
                    f"must be at most {LIMITS[field.name][1]}, got {shown(item)}"
                    if field.name in LIMITS
                    else f"{shown(item)} is {wrong}"
                ),
            )
    return converted


def _converter(hint: Any) -> Callable[[str, Any], Any]:
    if typing.get_args(hint)[:1] == (str,):
        return _texts
    if typing.get_args(hint)[:1] == (float,):
        return _numbers
    return _CONVERTERS[typing.get_origin(hint) or hint]


def _integer(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(key, f"must be an integer, got {shown(value)}")
    return value


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(key, f"must be a number, got {shown(value)}")
    return float(value)


def _boolean(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(key, f"must be true or false, got {shown(value)}")
    return value


def _switch(key: str, value: Any) -> str:
    """One of the field's choices; YAML's true and false are accepted."""
    return str(value).lower() if isinstance(value, bool) else _text(key, value)


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool | list | dict):
        raise ConfigError(key, f"must be text, got {shown(value)}")
    text = str(value)
    if any(ord(letter) < 32 for letter in text):
        raise ConfigError(key, f"must be one line of plain text, got {shown(text)}")
    return text


def _integers(key: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(
            key, f"must be a list of integers, got {shown(value)}", f"write {key}=[{value}]"
        )
    return tuple(_integer(key, item) for item in value)


def _numbers(key: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(
            key, f"must be a list of numbers, got {shown(value)}", f"write {key}=[{value}]"
        )
    return tuple(_number(key, item) for item in value)


def _texts(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(
            key, f"must be a list of names, got {shown(value)}", f"write {key}=[{value}]"
        )
    return tuple(_text(key, item) for item in value)


def _schedule(key: str, value: Any) -> dict[int, int]:
    if not isinstance(value, Mapping):
        raise ConfigError(
            key,
            f"must be a mapping of steps to world sizes, got {shown(value)}",
            f"write {key}={{100: 2}}",
        )
    found = {_integer(key, step): _integer(key, size) for step, size in value.items()}
    if wrong := [f"{step}: {size}" for step, size in found.items() if step > STEPS or size > RANKS]:
        raise ConfigError(
            key, f"steps are at most {STEPS} and world sizes at most {RANKS}, got {wrong[0]}"
        )
    return found


_CONVERTERS: dict[Any, Callable[[str, Any], Any]] = {
    int: _integer,
    float: _number,
    bool: _boolean,
    str: _text,
    tuple: _integers,
    dict: _schedule,
    types.UnionType: _switch,
}


def _check_range(key: str, value: Any, rule: Mapping[str, Any]) -> None:
    if "choices" in rule and value not in rule["choices"]:
        installed = (
            sorted(point.name for point in entry_points(group=rule["group"]))
            if rule.get("group")
            else []
        )
        if value not in installed:
            names = (*rule["choices"], *installed)
            own = (
                "one of your own joins by --plugin FILE.py or by an entry point in"
                f" {rule['group']}: see docs/extend.md"
                if rule.get("group")
                else ""
            )
            raise ConfigError(
                key,
                f"must be one of {', '.join(names)}, got {shown(value)}",
                did_you_mean(str(value), names) or own,
            )
    bounds = _bounds(rule, isinstance(value, float))
    if bounds and not _inside(value, rule):
        raise ConfigError(key, f"must be {bounds}, got {value}", _REMEDIES.get(key, ""))


def _bounds(rule: Mapping[str, Any], is_float: bool) -> str:
    if "maximum" in rule:
        return (
            f"in {rule['minimum']:g} .."
            f" {'2^63-1' if rule['maximum'] == 2**63 - 1 else format(rule['maximum'], 'g')}"
        )
    lower = (
        "> 0" if rule.get("positive") else f">= {rule['minimum']:g}" if "minimum" in rule else ""
    )
    upper = f" and < {rule['below']:g}" if "below" in rule else ""
    return ("a finite number " if is_float and lower else "") + lower + upper


def _inside(value: float, rule: Mapping[str, Any]) -> bool:
    low = value > 0 if rule.get("positive") else value >= rule.get("minimum", value)
    return (
        math.isfinite(value)
        and low
        and value < rule.get("below", math.inf)
        and value <= rule.get("maximum", value)
    )
