"""Closed registries: a name maps to a builder in ECRL or an installed entry point, and to nothing
else.

Torch-free: names can be checked and listed without importing what they map to.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ecrl_cli.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or "" if no known word is close."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for an unknown `name`: the closest match, then all names."""
    names = list(known)
    return ConfigError(
        kind,
        f"unknown {kind} {name!r}",
        f"{did_you_mean(name, names)} known: {', '.join(names)}".strip(),
    )


def import_attribute(kind: str, name: str, path: str) -> Any:
    """Imports `path` ("module:attribute") for the `kind` called `name`. ConfigError if that
    fails.
    """
    module, _, attribute = path.partition(":")
    try:
        return reduce(getattr, filter(None, attribute.split(".")), import_module(module))
    except (ImportError, AttributeError, ValueError) as error:  # ValueError: no name of a module
        raise ConfigError(
            kind, f"{kind} {name!r} ({path}) cannot be imported ({error})", "reinstall its package"
        ) from error


@dataclass(frozen=True)
class Registry:
    """`builtin`: name -> "module:attribute", imported on demand; `group`: the entry-point group by
    which installed packages extend it.

    An installed package cannot override a built-in name.
    """

    kind: str
    group: str
    builtin: Mapping[str, str]

    def names(self) -> tuple[str, ...]:
        """All names: built-in ones in their order, then the installed ones."""
        installed = sorted({point.name for point in _installed(self.group)} - set(self.builtin))
        return (*self.builtin, *installed)

    def load(self, name: str) -> Any:
        """Imports what `name` maps to. ConfigError if the name is unknown or its package cannot be
        imported.
        """
        return import_attribute(self.kind, name, self.path(name))

    def path(self, name: str) -> str:
        """The code that `name` stands for, "module:attribute". ConfigError if it is unknown."""
        if name in self.builtin:
            return self.builtin[name]
        for point in _installed(self.group):
            if point.name == name:
                return point.value
        raise unknown(self.kind, name, self.names())


def _installed(group: str) -> Iterable[EntryPoint]:
    """The entry points of installed packages in `group`."""
    from importlib.metadata import entry_points  # takes a twentieth of the start of `ecrl verify`

    return entry_points(group=group)


class Variant(Protocol):
    """A choice of a configuration, by `name`; `description`: one sentence, for the help."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...


V = TypeVar("V", bound=Variant)


class VariantRegistry(Generic[V]):
    """The variants of one family as objects of class `kind`: built-in ones, then those that
    installed packages register as `group`.

    Torch-free, as the objects are: they name the code that imports torch and import it on demand.
    """

    def __init__(self, what: str, group: str, kind: type[V], builtin: tuple[V, ...]) -> None:
        self.what, self.group, self._kind = what, group, kind
        self._known = {variant.name: variant for variant in builtin}
        self.builtin = tuple(self._known)
        self._installed = Registry(what, group, dict.fromkeys(self.builtin, ""))

    def names(self) -> tuple[str, ...]:
        """All names: built-in ones in their order, then the installed ones."""
        return self._installed.names()

    def of(self, name: str) -> V:
        """The variant called `name`. ConfigError if there is none, or its package registers another
        type or name.
        """
        if name not in self._known:
            found = self._installed.load(name)
            if not isinstance(found, self._kind) or found.name != name:
                fact = (
                    f"the entry point {name!r} in {self.group} is no {self._kind.__name__} of that"
                    " name"
                )
                raise ConfigError(self.what, fact, "mend its package, or remove it")
            self._known[name] = found
        return self._known[name]
