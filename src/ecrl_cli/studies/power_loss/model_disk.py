"""Models which states of a disk a power loss may leave after each call, under three fault
models.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from math import prod
from typing import Any

from ecrl_cli.storage.memory_fs import ROOT, File, FsOp, Link, Node, Tree

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
        return (
            {name: self.tree(below) for name, below in thing} if isinstance(thing, tuple) else thing
        )

    def plant(self, tree: Tree) -> int:
        if isinstance(tree, Mapping):
            return self.number(
                tuple(sorted((name, self.plant(below)) for name, below in tree.items()))
            )
        return self.number(tree)


MODELS = ("P", "O", "X")
BLOCK, SECTOR = 4096, 512
MARK = re.compile(r"\.[0-9a-f]{8}(?=\.|$)")
_SUBSETS = 4096  # pending changes of one folder up to which all subsets are tried


@dataclass(frozen=True)
class Variants:
    """Possible states of a node after the loss. `numbers`: the first is what the process saw, the
    second the least that may be left.

    `total`: how many there are; if `whole` is False a lower bound, larger than `numbers`.
    """

    numbers: tuple[int, ...]
    total: int
    whole: bool = True


@dataclass
class _Data:
    """A file: its durable bytes, and as the process saw them."""

    synced: bytes = b""
    seen: bytes = b""
    version: int = 0


@dataclass
class _Folder:
    """A folder: its initial names, and every change since; those before `durable` have survived."""

    first: Names
    changes: list[tuple[int, FsOp]] = field(default_factory=list)
    durable: int = 0


class ModelDisk:
    """A disk and the calls made on it. `limit`: states tried per node; beyond it a sample with
    `rng`.
    """

    def __init__(
        self, forest: Forest, nodes: dict[int, Node], model: str, limit: int, rng: random.Random
    ) -> None:
        self.forest, self.model, self.limit, self.rng = forest, model, limit, rng
        self._marks: dict[str, str] = {}
        self._nodes: dict[int, _Data | _Folder | Link] = {
            number: self._begin(node) for number, node in nodes.items()
        }
        self._taken = 0
        # calls up to the last sync of anything: under O all names before it have survived
        self._synced = 0
        self._cut = 0  # under O and P: the calls whose names survive
        self._room = limit  # under O shared by all prefixes
        self._known: dict[object, Variants] = {}

    def take(self, op: FsOp) -> None:
        self._taken += 1
        if op.kind in ("write", "truncate", "fsync", "drop"):
            self._take_data(op)
        elif op.kind == "fsyncdir":
            folder = self._folder(op.node)
            folder.durable = len(folder.changes)
        else:
            if op.kind == "rename" and op.target[0] != op.folder:
                raise ValueError("a rename from one folder into another is not modelled")
            if op.node not in self._nodes:
                self._nodes[op.node] = (
                    Link(op.data.decode())
                    if op.kind == "symlink"
                    else _Folder(())
                    if op.kind == "mkdir"
                    else _Data()
                )
            named = replace(
                op, name=self._plain(op.name), target=(op.target[0], self._plain(op.target[1]))
            )
            self._folder(op.folder).changes.append((self._taken, named))
        if op.kind in ("fsync", "fsyncdir"):
            self._synced = self._taken

    def states(self) -> Variants:
        """The trees that the loss may leave now."""
        if self.model != "O":
            self._cut = self._taken
            return self._variants(ROOT)
        found, cuts = [], range(self._taken, self._synced - 1, -1)
        self._room = max(64, self.limit >> (len(cuts) - 1).bit_length())
        for cut in cuts:
            self._cut = cut
            found.append(self._variants(ROOT))
        numbers = tuple(dict.fromkeys(number for each in found for number in each.numbers))
        different = {each.numbers: each for each in found}.values()
        return Variants(
            numbers, sum(each.total for each in different), all(each.whole for each in found)
        )

    def _begin(self, node: Node) -> _Data | _Folder | Link:
        if isinstance(node, File):
            return _Data(bytes(node.data), bytes(node.data))
        return (
            node
            if isinstance(node, Link)
            else _Folder(
                tuple(sorted((self._plain(name), number) for name, number in node.names.items()))
            )
        )

    def _plain(self, name: str) -> str:
        """`name` with its random suffix replaced by a running number, so that it is the same in
        every run of a trial.
        """
        return MARK.sub(
            lambda match: self._marks.setdefault(match[0], f".{len(self._marks):08x}"), name
        )

    def _take_data(self, op: FsOp) -> None:
        data = self._nodes[op.node]
        assert isinstance(data, _Data)
        data.version += 1
        if op.kind == "write":
            data.seen = (
                data.seen[: op.offset].ljust(op.offset, b"\0")
                + op.data
                + data.seen[op.offset + len(op.data) :]
            )
        elif op.kind == "truncate":
            data.seen = b""
        elif op.kind == "drop":
            data.seen = data.synced
        else:
            data.synced = data.seen

    def _folder(self, number: int) -> _Folder:
        folder = self._nodes[number]
        assert isinstance(folder, _Folder)
        return folder

    def _key(self, number: int) -> object:
        """Changes whenever the node's variants may change."""
        node = self._nodes[number]
        if isinstance(node, _Data):
            return number, node.version
        if isinstance(node, Link):
            return number
        changes = sum(index <= self._cut for index, _ in node.changes)
        below = {each for _, each in node.first} | {op.node for _, op in node.changes}
        return number, changes, node.durable, tuple(self._key(each) for each in sorted(below))

    def _variants(self, number: int) -> Variants:
        key = self._room, self._key(number)
        if key not in self._known:
            node = self._nodes[number]
            if isinstance(node, _Folder):
                self._known[key] = self._folder_variants(node)
            else:
                pieces = (
                    [node]
                    if isinstance(node, Link)
                    else [node.seen]
                    if self.model == "P"
                    else torn(node.synced, node.seen)
                )
                numbers = tuple(dict.fromkeys(self.forest.number(piece) for piece in pieces))
                self._known[key] = Variants(numbers, len(numbers))
        return self._known[key]

    def _folder_variants(self, folder: _Folder) -> Variants:
        maps, whole = self._maps(folder)
        below = [[self._variants(number) for _, number in each] for each in maps]
        total = sum(prod(child.total for child in children) for children in below)
        whole = whole and all(child.whole for children in below for child in children)
        tried = sum(prod(len(child.numbers) for child in children) for children in below)
        picks = self._all(maps, below) if tried <= self._room else self._some(maps, below)
        return Variants(tuple(dict.fromkeys(picks)), total, whole and tried <= self._room)

    def _all(self, maps: Sequence[Names], below: Sequence[Sequence[Variants]]) -> Iterator[int]:
        number = self.forest.number
        for each, children in zip(maps, below, strict=True):
            names = [name for name, _ in each]
            for picked in product(*(child.numbers for child in children)):
                yield number(tuple(zip(names, picked, strict=True)))

    def _some(self, maps: Sequence[Names], below: Sequence[Sequence[Variants]]) -> Iterator[int]:
        """Every set of names with all bytes there, and with all lost; one child at a time in each
        of its states; the rest at random.
        """
        found: dict[int, None] = {}
        names = [[name for name, _ in each] for each in maps]

        def add(which: int, picked: Sequence[int]) -> None:
            found[self.forest.number(tuple(zip(names[which], picked, strict=True)))] = None

        chance = self.rng.random
        share = max(2, self._room // 4)
        for which, children in enumerate(below[:share]):
            add(which, [child.numbers[0] for child in children])
            add(
                which,
                [
                    child.numbers[-1] if len(child.numbers) == 1 else child.numbers[1]
                    for child in children
                ],
            )
        for which, children in enumerate(below[:2]):
            best = [child.numbers[0] for child in children]
            for place, child in enumerate(children):
                for number in child.numbers[: share // len(children) + 1]:
                    add(which, [*best[:place], number, *best[place + 1 :]])
        for _ in range(4 * self._room):
            if len(found) >= self._room:
                break
            which = int(chance() * len(maps))
            add(
                which, [child.numbers[int(chance() * len(child.numbers))] for child in below[which]]
            )
        yield from list(found)[: self._room]

    def _maps(self, folder: _Folder) -> tuple[list[Names], bool]:
        """The names that `folder` may have, and whether these are all: first what the process saw,
        then the durable ones.
        """
        if self.model != "X":
            return [
                _applied(folder.first, [op for index, op in folder.changes if index <= self._cut])
            ], True
        operations = [op for _, op in folder.changes]
        durable, pending = (
            _applied(folder.first, operations[: folder.durable]),
            operations[folder.durable :],
        )
        found: dict[Names, None] = {_applied(durable, pending): None, durable: None}
        subsets: dict[Names, None] = {durable: None}
        for op in pending:
            subsets.update(dict.fromkeys([_applied(names, [op]) for names in subsets]))
            if len(subsets) > _SUBSETS:
                found.update(
                    dict.fromkeys(_applied(durable, chosen) for chosen in self._chosen(pending))
                )
                return list(found), False
        return list(found | subsets), True

    def _chosen(self, pending: Sequence[FsOp]) -> Iterator[Sequence[FsOp]]:
        """Prefixes, all but one, all but two, single changes, and random subsets up to the
        limit.
        """
        count = len(pending)
        yield from (pending[:end] for end in range(count + 1))
        for left_out in (1, 2):
            yield from (
                [op for place, op in enumerate(pending) if place not in out]
                for out in combinations(range(count), left_out)
            )
        yield from ([op] for op in pending)
        for _ in range(_SUBSETS):
            bits = self.rng.getrandbits(count)
            yield [op for place, op in enumerate(pending) if bits >> place & 1]


def _applied(names: Names, operations: Sequence[FsOp]) -> Names:
    """`names` after these changes, each with its whole effect, whichever others have survived."""
    if not operations:
        return names
    found = dict(names)
    for op in operations:
        if op.kind == "rename":
            for name in [name for name, number in found.items() if number == op.node]:
                del found[name]  # wherever it is, if an earlier rename was lost
            found[op.target[1]] = op.node
        elif op.kind in ("unlink", "rmdir"):
            found.pop(op.name, None)
        else:
            found[op.name] = op.node
    return tuple(sorted(found.items()))


def torn(synced: bytes, seen: bytes) -> list[bytes]:
    """The contents that may be left of a file that was `seen` by the process with `synced` of it
    durable; first all, then the least.
    """
    if synced == seen:
        return [seen]
    cuts = {*range(0, len(seen), BLOCK), (len(seen) - 1) // SECTOR * SECTOR}
    if seen.startswith(synced):
        cuts = {cut for cut in cuts if cut > len(synced)}
    zeroed = [
        _zeroed(seen, start) for start in range(len(synced) // BLOCK * BLOCK, len(seen), BLOCK)
    ]
    return [
        seen,
        synced,
        *(seen[:cut] for cut in sorted(cuts)),
        synced.ljust(len(seen), b"\0"),
        *zeroed,
    ]


def _zeroed(data: bytes, start: int) -> bytes:
    end = min(start + BLOCK, len(data))
    return data[:start] + bytes(end - start) + data[end:]
