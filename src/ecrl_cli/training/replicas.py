"""World-size-invariant training: the window is V fixed micro-shards (replicas), and no result
depends on which rank computes which of them.

A rank computes its replicas one after another: each starts from the buffers at the beginning of the
step and has its own RNG streams. Its result (gradients, buffers after the forward pass, loss) is
one vector; the mean of the V vectors is summed in the order of one binary tree (`TreeReduce`),
whatever the number of ranks (`ReplicaAllreduce`), and every rank then does the same update.

The tree's node at level k with index i covers the leaves from i * 2^k up to (not including) (i + 1)
* 2^k, as far as there are any. Its sum is left child plus right child; a node without a right child
equals its left child. A rank with neighbouring leaves sums only within complete nodes; merging the
nodes of all ranks in order then does exactly the additions that a single rank with all leaves would
do.

To merge them, every rank receives its slice of each node from every other rank (all-to-all),
completes the tree for that slice, and the slices of the result are gathered on all ranks
(all-gather). Adding slices does the same element-wise additions as adding whole vectors. A rank
sends its nodes once and a slice of the result once: with one node per rank twice the model, as a
ring all-reduce does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.distributed as dist

from ecrl_cli.checkpoint.capture.rng import seed_replica
from ecrl_cli.config.elastic import owned
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.tasks import TASKS
from ecrl_cli.data.loading import SampleBatch
from ecrl_cli.models.optimization import autocast, begin_update, build_scaler, build_scheduler
from ecrl_cli.training.control_client import HeartbeatWriter
from ecrl_cli.training.losses import classification
from ecrl_cli.training.train_step import Loss, StepResult, TaskUpdate

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
    """Takes values of neighbouring nodes from left to right and merges them as far as possible; at
    most two per level stay unmerged.

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
        """Merge once at the right end: two siblings into their parent, or a left child without a
        sibling into its parent. False if nothing merges.
        """
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
    """The largest complete nodes over the neighbouring leaves `owned`, from left to right: what
    their rank sends to others.
    """
    tree: TreeReduce[None] = TreeReduce(leaves, lambda left, right: None)
    for index in owned:
        tree.push_leaf(index, None)
    return [node for node, _ in tree.sums]


class ReplicaPeers(Protocol):
    """The collectives of an exchange."""

    def all_to_all(
        self,
        received: torch.Tensor,
        send: torch.Tensor,
        received_counts: list[int],
        sent_counts: list[int],
    ) -> None:
        """Fill `received` with the elements that each rank sends to this one, in rank order.
        Counts: elements by rank.
        """

    def all_gather_into(self, whole: torch.Tensor, own: torch.Tensor) -> None:
        """Fill `whole` with `own` of every rank, in rank order."""


class DefaultReplicaPeers:
    """The peers of the default process group."""

    def all_to_all(
        self,
        received: torch.Tensor,
        send: torch.Tensor,
        received_counts: list[int],
        sent_counts: list[int],
    ) -> None:
        dist.all_to_all_single(received, send, received_counts, sent_counts)

    def all_gather_into(self, whole: torch.Tensor, own: torch.Tensor) -> None:
        dist.all_gather_into_tensor(whole, own)


class Exchange(Protocol):
    def __call__(self, tree: TreeReduce[torch.Tensor]) -> torch.Tensor:
        """The sum of all leaves, on every rank, from this rank's `tree` of vectors of equal length
        and dtype. Collective.
        """


def alone(tree: TreeReduce[torch.Tensor]) -> torch.Tensor:
    """The exchange for a world size of 1: one process holds all leaves."""
    return tree.root


class ReplicaAllreduce:
    """The exchange of `rank` with all ranks, by the collectives of `peers`: those of the default
    process group, unless others are given.
    """

    def __init__(
        self, replicas: int, rank: int, world_size: int, peers: ReplicaPeers | None = None
    ) -> None:
        self._replicas, self._rank, self._world_size = replicas, rank, world_size
        self._peers = peers or DefaultReplicaPeers()
        self._nodes = [
            whole_nodes(owned(replicas, each, world_size), replicas) for each in range(world_size)
        ]

    def __call__(self, tree: TreeReduce[torch.Tensor]) -> torch.Tensor:
        vectors = [vector for _, vector in tree.sums]
        length = vectors[0].numel()
        piece = -(-length // self._world_size)
        root = vectors[0].new_empty(self._world_size * piece)
        self._peers.all_gather_into(root, self._completed(self._received(vectors, piece), piece))
        return root[:length]

    def _received(self, vectors: list[torch.Tensor], piece: int) -> torch.Tensor:
        """This rank's slice (`piece` elements) of every rank's nodes, concatenated."""
        send = vectors[0].new_zeros(self._world_size, len(vectors), piece)
        for number, vector in enumerate(vectors):
            for rank, part in enumerate(torch.split(vector, piece)):
                send[rank, number, : len(part)] = part
        counts = [len(nodes) * piece for nodes in self._nodes]
        received = send.new_empty(sum(counts))
        self._peers.all_to_all(
            received, send.view(-1), counts, [counts[self._rank]] * self._world_size
        )
        return received

    def _completed(self, received: torch.Tensor, piece: int) -> torch.Tensor:
        tree: TreeReduce[torch.Tensor] = TreeReduce(self._replicas, torch.Tensor.add_)
        nodes = (node for each in self._nodes for node in each)
        for node, part in zip(nodes, torch.split(received, piece), strict=True):
            tree.push(node, part)
        return tree.root


class ReplicaGradient:
    """Packs a replica's result into one vector: loss, which parameters have a gradient, gradients,
    float buffers, which of their elements changed.

    Its dtype is float32, or wider where the model's is. Buffers of other dtypes (BatchNorm's
    counter) are not averaged: each rank keeps the values of its last replica.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._places = [
            (module._buffers, key) for module in model.modules() for key in module._buffers
        ]
        self._before = [buffer.clone() for buffer in self._buffers()]
        floats = [
            tensor for tensor in (*self.parameters, *self._before) if tensor.is_floating_point()
        ]
        self._dtype = reduce(
            torch.promote_types, (tensor.dtype for tensor in floats), torch.float32
        )

    def _buffers(self) -> list[torch.Tensor]:
        """Looked up each time: a forward pass may replace a buffer's tensor."""
        found = {
            id(buffer): buffer
            for holder, key in self._places
            if (buffer := holder[key]) is not None
        }
        return list(found.values())

    def _floats(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The float buffers, which are averaged, each with its value at the beginning of the
        step.
        """
        return [
            (buffer, before)
            for buffer, before in zip(self._buffers(), self._before, strict=True)
            if buffer.is_floating_point()
        ]

    def begin(self) -> None:
        """Store the buffers from which each replica of this step starts."""
        self._before = [buffer.clone() for buffer in self._buffers()]

    def rewind(self) -> None:
        """Restore the buffers to the beginning of the step, before each replica."""
        for buffer, before in zip(self._buffers(), self._before, strict=True):
            buffer.copy_(before)

    def vector(self, loss: torch.Tensor) -> torch.Tensor:
        """The result of the replica that was just computed, as one vector."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        present = torch.tensor([p.grad is not None for p in self.parameters], device=loss.device)
        floats = self._floats()
        pieces = [
            loss,
            present,
            *gradients,
            *(buffer for buffer, _ in floats),
            *(buffer != before for buffer, before in floats),
        ]
        return torch.cat([piece.reshape(-1).to(self._dtype) for piece in pieces])

    def take(self, mean: torch.Tensor) -> torch.Tensor:
        """Set gradients and buffers from the mean of all vectors; returns the mean loss. A gradient
        that no replica has stays None.
        """
        floats, count = self._floats(), len(self.parameters)
        sizes = [buffer.numel() for buffer, _ in floats]
        loss, present, *rest = torch.split(
            mean, [1, count, *(p.numel() for p in self.parameters), *sizes, *sizes]
        )
        for parameter, gradient, there in zip(
            self.parameters, rest[:count], present.tolist(), strict=True
        ):
            parameter.grad = gradient.to(parameter.dtype).view_as(parameter) if there else None
        values, moved = rest[count : count + len(floats)], rest[count + len(floats) :]
        for (buffer, before), value, share in zip(floats, values, moved, strict=True):
            buffer.copy_(
                torch.where(share > 0, value.to(buffer.dtype), before.reshape(-1)).view_as(buffer)
            )
        return loss


@dataclass(frozen=True)
class ReplicaTrainStep:
    """`owned`: the replicas of this rank, out of `replicas`. `model` is not wrapped in DDP: only
    `exchange` communicates with other ranks.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    scaler: Any
    device: torch.device
    autocast: AbstractContextManager[Any]
    heartbeat: HeartbeatWriter
    seed: int
    replicas: int
    owned: range
    exchange: Exchange
    contribution: ReplicaGradient
    loss: Loss = classification
    own_update: TaskUpdate | None = None

    @classmethod
    def of(
        cls,
        config: RunConfig,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        heartbeat: HeartbeatWriter,
    ) -> ReplicaTrainStep:
        """The train step of `config` for one process with all replicas."""
        count = config.elastic.replicas
        return cls(
            model=model,
            optimizer=optimizer,
            scheduler=build_scheduler(
                config.optimizer, optimizer, config.target_steps, config.continued_at
            ),
            scaler=build_scaler(config.precision, device),
            device=device,
            autocast=autocast(config.precision, device),
            heartbeat=heartbeat,
            seed=config.seed,
            replicas=count,
            owned=range(count),
            exchange=alone,
            contribution=ReplicaGradient(model),
            loss=TASKS.of(config.task.name).load(),
            own_update=TaskUpdate.of(config, model, optimizer),
        )

    def shared(
        self, rank: int, world_size: int, peers: ReplicaPeers | None = None
    ) -> ReplicaTrainStep:
        """The same, with the replicas of `rank` out of `world_size`, and the collectives of `peers`
        (see ReplicaAllreduce).
        """
        exchange = (
            ReplicaAllreduce(self.replicas, rank, world_size, peers) if world_size > 1 else alone
        )
        return replace(self, owned=owned(self.replicas, rank, world_size), exchange=exchange)

    def run(self, batch: SampleBatch, global_step: int) -> StepResult:
        """Compute every owned replica, exchange, update. Afterwards the RNG state is the same on
        every rank.
        """
        tree: TreeReduce[torch.Tensor] = TreeReduce(self.replicas, torch.Tensor.add_)
        size = len(batch.ids) // len(self.owned)
        self.contribution.begin()
        losses = []
        for number, replica in enumerate(self.owned):
            seed_replica(self.seed, global_step, replica)
            losses.append(self._compute(batch, slice(number * size, (number + 1) * size)))
            tree.push_leaf(replica, self.contribution.vector(losses[-1]))
        self.heartbeat.phase("backward")
        loss = self.contribution.take(self.exchange(tree).div_(self.replicas))
        seed_replica(self.seed, global_step, self.replicas)
        self.heartbeat.phase("update")
        begin_update(self.scheduler, global_step - 1)
        self.scaler.step(self.own_update or self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        return StepResult(float(loss.item()), tuple(torch.stack(losses).tolist()))

    def undo(self, global_step: int) -> None:
        """Restore buffers and RNG to what they were before `global_step`, whose exchange was not
        completed: nothing else has changed.
        """
        self.contribution.rewind()
        seed_replica(self.seed, global_step - 1, self.replicas)
        self.optimizer.zero_grad(set_to_none=True)

    def _compute(self, batch: SampleBatch, part: slice) -> torch.Tensor:
        """One replica's forward and backward pass; returns its mean loss. The samples are copied,
        so that their memory alignment cannot matter.
        """
        x, y = batch.x[part].to(self.device, copy=True), batch.y[part].to(self.device, copy=True)
        self.contribution.rewind()
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast:
            loss = self.loss(self.model, x, y)
        self.scaler.scale(loss).backward()
        return loss.detach()
