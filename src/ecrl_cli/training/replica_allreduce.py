"""All-reduce for fixed replicas: ranks exchange the sums of their complete tree nodes; afterwards every rank has the root.

Every rank receives its slice of each node from every other rank (all-to-all), completes the tree for that slice, and the slices of the result are
gathered on all ranks (all-gather). Adding slices does the same element-wise additions as adding whole vectors, so the bits do not depend on the
number of ranks. A rank sends its nodes once and a slice of the result once: with one node per rank twice the model, as a ring all-reduce does.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist

from ecrl_cli.config.elastic import owned
from ecrl_cli.training.tree_reduce import TreeReduce, whole_nodes


class Exchange(Protocol):
    def __call__(self, tree: TreeReduce[torch.Tensor]) -> torch.Tensor:
        """The sum of all leaves, on every rank, from this rank's `tree` of vectors of equal length and dtype. Collective."""


def alone(tree: TreeReduce[torch.Tensor]) -> torch.Tensor:
    """The exchange for a world size of 1: one process holds all leaves."""
    return tree.root


class ReplicaAllreduce:
    """The exchange of `rank` with all ranks of the default process group."""

    def __init__(self, replicas: int, rank: int, world_size: int) -> None:
        self._replicas, self._rank, self._world_size = replicas, rank, world_size
        self._nodes = [whole_nodes(owned(replicas, each, world_size), replicas) for each in range(world_size)]

    def __call__(self, tree: TreeReduce[torch.Tensor]) -> torch.Tensor:
        vectors = [vector for _, vector in tree.sums]
        length = vectors[0].numel()
        piece = -(-length // self._world_size)
        root = vectors[0].new_empty(self._world_size * piece)
        dist.all_gather_into_tensor(root, self._completed(self._received(vectors, piece), piece))
        return root[:length]

    def _received(self, vectors: list[torch.Tensor], piece: int) -> torch.Tensor:
        """This rank's slice (`piece` elements) of every rank's nodes, concatenated."""
        send = vectors[0].new_zeros(self._world_size, len(vectors), piece)
        for number, vector in enumerate(vectors):
            for rank, part in enumerate(torch.split(vector, piece)):
                send[rank, number, : len(part)] = part
        counts = [len(nodes) * piece for nodes in self._nodes]
        received = send.new_empty(sum(counts))
        dist.all_to_all_single(received, send.view(-1), counts, [counts[self._rank]] * self._world_size)
        return received

    def _completed(self, received: torch.Tensor, piece: int) -> torch.Tensor:
        tree: TreeReduce[torch.Tensor] = TreeReduce(self._replicas, torch.Tensor.add_)
        nodes = (node for each in self._nodes for node in each)
        for node, part in zip(nodes, torch.split(received, piece), strict=True):
            tree.push(node, part)
        return tree.root
