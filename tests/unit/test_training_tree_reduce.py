"""The tree: the same additions, whoever holds which leaves; and they are the sum."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecrl_cli.config.elastic import owned
from ecrl_cli.training.replicas import Node, TreeReduce, whole_nodes

LEAVES = st.integers(1, 40)


def joined(left: str, right: str) -> str:
    """An addition that remembers how it was made."""
    return f"({left}+{right})"


def held(leaves: int, part: range) -> list[tuple[Node, str]]:
    tree = TreeReduce(leaves, joined)
    for leaf in part:
        tree.push_leaf(leaf, str(leaf))
    return tree.sums


def completed(leaves: int, parts: list[range]) -> str:
    tree = TreeReduce(leaves, joined)
    for part in parts:
        for node, value in held(leaves, part):
            tree.push(node, value)
    return tree.root


@pytest.mark.parametrize(
    ("leaves", "said"),
    [
        (1, "0"),
        (2, "(0+1)"),
        (3, "((0+1)+2)"),
        (6, "(((0+1)+(2+3))+(4+5))"),
        (8, "(((0+1)+(2+3))+((4+5)+(6+7)))"),
    ],
)
def test_the_tree_is_the_contract(leaves: int, said: str) -> None:
    assert completed(leaves, [range(leaves)]) == said


@given(leaves=LEAVES, data=st.data())
def test_any_partition_into_neighbours_makes_the_same_additions(
    leaves: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, leaves - 1)))) if leaves > 1 else []
    ends = [0, *cuts, leaves]
    parts = [range(a, b) for a, b in pairwise(ends)]
    assert completed(leaves, parts) == completed(leaves, [range(leaves)])


@given(leaves=LEAVES, data=st.data())
def test_any_number_of_ranks_gives_the_same_bits_and_they_are_the_sum(
    leaves: int, data: st.DataObject
) -> None:
    ranks = data.draw(st.integers(1, leaves))
    values = np.random.default_rng(leaves).standard_normal((leaves, 5)).astype(
        np.float32
    ) * 10.0 ** np.arange(5, dtype=np.float32)
    whole, shared = TreeReduce(leaves, np.add), TreeReduce(leaves, np.add)
    for leaf in range(leaves):
        whole.push_leaf(leaf, values[leaf])
    for rank in range(ranks):
        part = TreeReduce(leaves, np.add)
        for leaf in owned(leaves, rank, ranks):
            part.push_leaf(leaf, values[leaf])
        for node, value in part.sums:
            shared.push(node, value)
    assert shared.root.tobytes() == whole.root.tobytes()
    exact = [float(sum(Fraction(float(value)) for value in column)) for column in values.T]
    assert np.abs(whole.root - exact).max() <= 1e-5 * np.abs(values).sum()


@given(leaves=LEAVES, data=st.data())
def test_the_ranks_own_every_leaf_once_and_give_few_nodes(leaves: int, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, leaves))
    parts = [owned(leaves, rank, ranks) for rank in range(ranks)]
    assert [leaf for part in parts for leaf in part] == list(range(leaves))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for part in parts:
        assert [node for node, _ in held(leaves, part)] == whole_nodes(part, leaves)
        assert 1 <= len(whole_nodes(part, leaves)) <= 2 * max(1, leaves.bit_length())


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_an_aligned_block_is_one_node(ranks: int) -> None:
    assert {len(whole_nodes(owned(8, rank, ranks), 8)) for rank in range(ranks)} == {1}


@pytest.mark.parametrize("part", [range(1), range(1, 4)])
def test_a_part_has_no_root(part: range) -> None:
    tree = TreeReduce(4, joined)
    for leaf in part:
        tree.push_leaf(leaf, str(leaf))
    with pytest.raises(ValueError, match="not the root"):
        _ = tree.root
