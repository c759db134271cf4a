"""Sums V leaves in the order of one binary tree, however the leaves are spread over ranks. Torch-free, no communication.

The node at level k with index i covers the leaves from i * 2^k up to (not including) (i + 1) * 2^k, as far as there are leaves. Its sum is left
child plus right child; a node without a right child equals its left child. A rank with neighbouring leaves sums only within complete nodes;
merging the nodes of all ranks in order then does exactly the additions that a single rank with all leaves would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class Node:
    level: int
    index: int

    @property
    def parent(self) -> Node:
        return Node(self.level + 1, self.index // 2)

    @property
    def is_left(self) -> bool:
        return self.index % 2 == 0

    def is_last(self, leaves: int) -> bool:
        """Whether it is the rightmost node of its level."""
        return (self.index + 1) << self.level >= leaves


class TreeReduce(Generic[T]):
    """Takes values of neighbouring nodes from left to right and merges them as far as possible; at most two per level stay unmerged.

    `add(left, right)` may modify and return its left argument: the tree owns pushed values.
    """

    def __init__(self, leaves: int, add: Callable[[T, T], T]) -> None:
        self._leaves, self._add = leaves, add
        self._waiting: list[tuple[Node, T]] = []

    def push(self, node: Node, value: T) -> None:
        """Add the sum of `node`, the right neighbour of the node pushed before."""
        self._waiting.append((node, value))
        while self._rise():
            pass

    def push_leaf(self, index: int, value: T) -> None:
        self.push(Node(0, index), value)

    @property
    def sums(self) -> list[tuple[Node, T]]:
        """The largest complete nodes of what was pushed, from left to right."""
        return list(self._waiting)

    @property
    def root(self) -> T:
        """The sum of all leaves; ValueError unless all were pushed."""
        node, value = self._waiting[0]
        if len(self._waiting) > 1 or node.index or not node.is_last(self._leaves):
            raise ValueError(f"{node} is not the root of {self._leaves} leaves")
        return value

    def _rise(self) -> bool:
        """Merge once at the right end: two siblings into their parent, or a left child without a sibling into its parent. False if nothing merges."""
        node, value = self._waiting[-1]
        if node.is_left:
            if node.is_last(self._leaves) and node.index:
                self._waiting[-1] = (node.parent, value)
                return True
            return False
        if len(self._waiting) < 2 or self._waiting[-2][0] != Node(node.level, node.index - 1):
            return False
        self._waiting.pop()
        self._waiting[-1] = (node.parent, self._add(self._waiting[-1][1], value))
        return True


def whole_nodes(owned: Iterable[int], leaves: int) -> list[Node]:
    """The largest complete nodes over the neighbouring leaves `owned`, from left to right: what their rank sends to others."""
    tree: TreeReduce[None] = TreeReduce(leaves, lambda left, right: None)
    for index in owned:
        tree.push_leaf(index, None)
    return [node for node, _ in tree.sums]
