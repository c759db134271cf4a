"""What every variant keeps, of whatever family: a sentence that says what it is, and a YAML file by
which it is chosen.
"""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.conf_paths import conf_dir, summary
from ecrl_cli.config.registry import VariantRegistry
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError

# The package of docs/extend.md: its files by name.
TEXT = (Path(__file__).parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
FILES = dict(
    re.findall(r'^```\w+ title="(mylab/[^"]+)"\n(.*?)^```$', TEXT, re.MULTILINE | re.DOTALL)
)


def install(folder: Path) -> Path:
    """`folder`, with `mylab` installed in it: its files, and its entry points as an installer
    writes them.
    """
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    groups = tomllib.loads(FILES["mylab/pyproject.toml"])["project"]["entry-points"]
    points = "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {path}\n" for name, path in names.items())
        for group, names in groups.items()
    )
    (folder / "mylab-1.dist-info").mkdir()
    (folder / "mylab-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: mylab\nVersion: 1\n"
    )
    (folder / "mylab-1.dist-info" / "entry_points.txt").write_text(points)
    return folder


def check_description(registry: VariantRegistry[Any], name: str, group: str, key: str) -> None:
    """One sentence, the same in the YAML of configuration group `group`, which sets `key` to the
    name.
    """
    kind, folder = registry.of(name), _conf(registry, name)
    assert (
        kind.name == name
        and kind.description
        and "\n" not in kind.description
        and not kind.description.endswith(".")
    )
    assert summary([folder], group, name) == kind.description
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
        monkeypatch.setattr(
            registry._installed.__class__, "load", lambda self, name, wrong=wrong: wrong
        )
        with pytest.raises(ConfigError, match="of that name"):
            registry.of("another")
