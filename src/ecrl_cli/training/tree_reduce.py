"""One binary tree over V leaves, in which sums are formed the same way whoever holds which leaves. Without torch, without processes.

A node of level k and index i covers the leaves i * 2^k up to (i + 1) * 2^k, as far as there are leaves. The sum of a node is the sum of its two
children, left plus right; a node that has no right child is its left child. A holder of neighbouring leaves adds up what lies in whole nodes
and no more; whoever then has the nodes of all holders, in order, completes the tree with the very additions that one holder of all would make.
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
        """Whether no node of its level lies to the right of it."""
        return (self.index + 1) << self.level >= leaves


class TreeReduce(Generic[T]):
    """Takes values of neighbouring nodes from left to right and holds the fewest sums that they make. At most two per level of the tree wait.

    `add(left, right)` may change and give back its left argument: a value that was pushed is the tree's.
    """

    def __init__(self, leaves: int, add: Callable[[T, T], T]) -> None:
        self._leaves, self._add = leaves, add
        self._waiting: list[tuple[Node, T]] = []

    def push(self, node: Node, value: T) -> None:
        """Take the sum of `node`, which lies right behind the one before."""
        self._waiting.append((node, value))
        while self._rise():
            pass

    def push_leaf(self, index: int, value: T) -> None:
        self.push(Node(0, index), value)

    @property
    def sums(self) -> list[tuple[Node, T]]:
        """The largest whole nodes of what was pushed, from left to right."""
        return list(self._waiting)

    @property
    def root(self) -> T:
        """The sum of all leaves, once all are there."""
        node, value = self._waiting[0]
        if len(self._waiting) > 1 or node.index or not node.is_last(self._leaves):
            raise ValueError(f"{node} is not the root of {self._leaves} leaves")
        return value

    def _rise(self) -> bool:
        """One step up at the right end: two siblings become their parent, or a left child without a sibling takes its place."""
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
    """The largest nodes that the neighbouring leaves `owned` fill, from left to right: what their holder has to give to others."""
    tree: TreeReduce[None] = TreeReduce(leaves, lambda left, right: None)
    for index in owned:
        tree.push_leaf(index, None)
    return [node for node, _ in tree.sums]
