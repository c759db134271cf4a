"""File trees as numbers: equal contents have equal numbers, so a state of a whole disk is one integer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ecrl_cli.storage.memory_fs import Link, Tree

Names = tuple[tuple[str, int], ...]  # sorted by name


class Forest:
    """`bytes`, `Link` or `Names` by number, each stored once."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._things: list[bytes | Link | Names] = []

    def number(self, thing: bytes | Link | Names) -> int:
        found = self._numbers.get(thing)
        if found is None:
            found = self._numbers[thing] = len(self._things)
            self._things.append(thing)
        return found

    def __getitem__(self, number: int) -> bytes | Link | Names:
        return self._things[number]

    def names(self, number: int) -> Names:
        """The entries of folder `number`; empty if it is not a folder."""
        thing = self._things[number]
        return thing if isinstance(thing, tuple) else ()

    def child(self, number: int, name: str) -> int | None:
        return next((below for entry, below in self.names(number) if entry == name), None)

    def tree(self, number: int) -> Tree:
        """The tree in the form that ModelFs takes."""
        thing = self._things[number]
        return {name: self.tree(below) for name, below in thing} if isinstance(thing, tuple) else thing

    def plant(self, tree: Tree) -> int:
        if isinstance(tree, Mapping):
            return self.number(tuple(sorted((name, self.plant(below)) for name, below in tree.items())))
        return self.number(tree)
