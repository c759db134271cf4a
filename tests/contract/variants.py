"""What every variant keeps, of whatever family: a sentence that says what it is, and a YAML file by which it is chosen."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.conf_paths import conf_dir, summary
from ecrl_cli.config.registry import VariantRegistry
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError


def check_description(registry: VariantRegistry[Any], name: str, group: str, key: str) -> None:
    """One sentence, the same in the YAML of configuration group `group`, which sets `key` to the name."""
    kind, folder = registry.of(name), _conf(registry, name)
    assert kind.name == name and kind.description and "\n" not in kind.description and not kind.description.endswith(".")
    assert summary(folder, group, name) == kind.description
    assert f"\n{key}: {name}\n" in (folder / group / f"{name}.yaml").read_text()


def _conf(registry: VariantRegistry[Any], name: str) -> Path:
    """A package keeps its YAML in conf/ beside the module that its entry point names."""
    if name in registry.builtin:
        return conf_dir()
    point = next(iter(entry_points(group=registry.group, name=name)))
    return Path(import_module(point.module).__file__ or "").parent / "conf"


def refused(kind: Any, config: RunConfig) -> str:
    """The one line in which `kind` refuses `config`; empty where it does not."""
    try:
        kind.refuse(config)
    except ConfigError as error:
        assert "\n" not in error.line() and error.fact and error.remedy
        return error.line()
    return ""


def check_registration(registry: VariantRegistry[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered under a name must be one of the family, of that name."""
    for wrong in (object(), registry.of(registry.builtin[0])):
        monkeypatch.setattr(registry._installed.__class__, "load", lambda self, name, wrong=wrong: wrong)
        with pytest.raises(ConfigError, match="of that name"):
            registry.of("another")
