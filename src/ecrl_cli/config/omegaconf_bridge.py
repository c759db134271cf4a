"""Converts what Hydra composed to plain values: the only module with OmegaConf objects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ecrl_cli.config.keys import RESERVED, reserved
from ecrl_cli.errors import ConfigError, shown

_RESOLVER = re.compile(r"\$\{[^}]*:")


def raw(node: Any) -> Any:
    """`node` as plain lists, dicts and scalars, interpolations unresolved."""
    return OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node


def resolved(node: Any) -> dict[str, Any]:
    """A composed mapping as plain values, interpolations resolved against the whole. Raises
    OmegaConf's errors.
    """
    values = OmegaConf.to_container(node, resolve=True)
    return {str(key): value for key, value in values.items()} if isinstance(values, dict) else {}


def yaml_text(node: Any) -> str:
    """`node`, composed or `raw`, as YAML: keys in order, interpolations unresolved."""
    return OmegaConf.to_yaml(node if OmegaConf.is_config(node) else OmegaConf.create(node))


def plain(composed: Mapping[str, Any]) -> dict[str, Any]:
    """The composed configuration without Hydra's node, interpolations resolved.

    ConfigError for what could run code or reach outside the configuration: `_target_` and its like,
    and every resolver (`${oc.env:X}`).
    """
    whole = composed if isinstance(composed, DictConfig) else OmegaConf.create(dict(composed))
    run = OmegaConf.masked_copy(whole, [str(key) for key in whole if key != "hydra"])
    for key, value in _walk(raw(run), ""):
        _refuse_active(key, value)
    try:
        values = OmegaConf.to_container(run, resolve=True, throw_on_missing=True)
    except (OmegaConfBaseException, RecursionError) as error:
        raise _unresolved(error) from error
    return {str(key): value for key, value in values.items()} if isinstance(values, dict) else {}


def _walk(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    yield key, value
    for name, item in items:
        yield from _walk(item, f"{key}.{name}" if key else str(name))


def _refuse_active(key: str, value: Any) -> None:
    if key.rsplit(".", 1)[-1] in RESERVED:
        raise reserved(key)
    if isinstance(value, str) and _RESOLVER.search(value):
        raise ConfigError(
            key, f"resolvers are not accepted, got {shown(value)}", "write the value itself"
        )
    if value == "???":
        raise ConfigError(key, "has no value", f"give one: {key}=VALUE")


def _unresolved(error: BaseException) -> ConfigError:
    """The error for an interpolation that is dangling or refers to itself."""
    key = str(getattr(error, "full_key", None) or "configuration")
    fact = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, RecursionError) or "ecursi" in fact:
        fact = "refers to itself through ${...}"
    return ConfigError(key, fact, "write the value itself")
