"""Closed registries: a name stands for a builder of ours or of an installed entry point, and for nothing else.

Torch-free: names can be checked and listed without importing what they stand for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ecrl_cli.config.keys import did_you_mean
from ecrl_cli.errors import ConfigError


def unknown(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a `name` that no `kind` has: the nearest one, then all."""
    names = list(known)
    return ConfigError(kind, f"unknown {kind} {name!r}", f"{did_you_mean(name, names)} known: {', '.join(names)}".strip())


@dataclass(frozen=True)
class Registry:
    """`builtin`: name -> "module:attribute", imported on demand only; `group`: the entry-point group that installed packages extend it by.

    A built-in name cannot be taken over by an installed package.
    """

    kind: str
    group: str
    builtin: Mapping[str, str]

    def names(self) -> tuple[str, ...]:
        """All names: ours in their order, then the installed ones."""
        installed = sorted({point.name for point in entry_points(group=self.group)} - set(self.builtin))
        return (*self.builtin, *installed)

    def load(self, name: str) -> Any:
        """What `name` stands for. ConfigError where nothing does, or where its package cannot be imported."""
        point = self._find(name)
        try:
            return point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(self.kind, f"{self.kind} {name!r} ({point.value}) cannot be imported ({error})", "reinstall its package") from error

    def _find(self, name: str) -> EntryPoint:
        if name in self.builtin:
            return EntryPoint(name=name, value=self.builtin[name], group=self.group)
        for point in entry_points(group=self.group, name=name):
            return point
        raise unknown(self.kind, name, self.names())
