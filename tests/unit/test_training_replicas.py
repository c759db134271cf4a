"""One process with all replicas: gradients, buffers, streams and updates; and the exchange between
ranks, with threads for ranks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from threading import Barrier, Thread, current_thread
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ecrl_cli.checkpoint.capture.rng import seed_replica
from ecrl_cli.config.elastic import owned
from ecrl_cli.config.schema import OptimizerConfig
from ecrl_cli.data.loading import SampleBatch
from ecrl_cli.models.optimization import autocast, build_scaler, build_scheduler
from ecrl_cli.training import replicas
from ecrl_cli.training.control_client import HeartbeatWriter
from ecrl_cli.training.replicas import (
    ReplicaAllreduce,
    ReplicaGradient,
    ReplicaTrainStep,
    TreeReduce,
    alone,
)

V, MICRO = 4, 3
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def streams_put_back() -> Iterator[None]:
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


class Odd(nn.Module):
    """BatchNorm and dropout, a frozen layer, one that is never used, one that only some samples
    use, a constant buffer.
    """

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.inner, self.norm, self.drop, self.out = (
            nn.Linear(5, 6),
            nn.BatchNorm1d(6),
            nn.Dropout(dropout),
            nn.Linear(6, 2),
        )
        self.frozen, self.unused, self.rare = nn.Linear(5, 5), nn.Linear(2, 2), nn.Linear(6, 2)
        self.frozen.requires_grad_(False)
        self.register_buffer("mask", torch.tensor([float("-inf"), 1 / 3]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.norm(self.inner(self.frozen(x))))
        logits: torch.Tensor = self.out(hidden)
        return logits + self.rare(hidden) if x[0, 0] > 100 else logits


def model_of(dropout: float = 0.5) -> Odd:
    torch.manual_seed(1)
    return Odd(dropout)


def batch_of(size: int = V * MICRO) -> SampleBatch:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(size, 5, generator=generator)
    return SampleBatch(x, torch.randint(0, 2, (size,), generator=generator), np.arange(size), "")


def learner_of(
    model: nn.Module, precision: str = "fp32", part: range = range(V), **changes: Any
) -> ReplicaTrainStep:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    parts: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": build_scheduler(OptimizerConfig(lr=0.1), optimizer, 1000),
        "scaler": build_scaler(precision, CPU),
        "device": CPU,
        "autocast": autocast(precision, CPU),
        "heartbeat": HeartbeatWriter(None, 0),
        "seed": 7,
        "replicas": V,
        "owned": part,
        "exchange": alone,
        "contribution": ReplicaGradient(model),
    }
    return ReplicaTrainStep(**parts | changes)


def by_hand(
    model: Odd, batch: SampleBatch, step: int
) -> list[tuple[float, list[torch.Tensor | None], torch.Tensor]]:
    """Loss, gradients and running mean of each replica, from the same beginning, with its own
    streams.

    Its samples are a copy: where a slice lies in memory may choose another kernel, and so other
    bits.
    """
    found, before = [], {name: value.clone() for name, value in model.state_dict().items()}
    for replica in range(V):
        model.load_state_dict(before)
        model.zero_grad(set_to_none=True)
        seed_replica(7, step, replica)
        part = slice(replica * MICRO, (replica + 1) * MICRO)
        loss = F.cross_entropy(model(batch.x[part].clone()), batch.y[part].clone())
        loss.backward()
        found.append(
            (loss.item(), [p.grad for p in model.parameters()], model.norm.running_mean.clone())
        )
    model.load_state_dict(before)
    return found


def tree_mean(values: list[torch.Tensor]) -> torch.Tensor:
    return ((values[0] + values[1]) + (values[2] + values[3])) / V


def test_a_step_is_the_tree_mean_of_what_its_replicas_give() -> None:
    model, batch = model_of(), batch_of()
    each = by_hand(model, batch, 3)
    learned = learner_of(model).run(batch, 3)
    assert learned.logged == tuple(loss for loss, _, _ in each)
    assert learned.loss == tree_mean([torch.tensor(loss) for loss, _, _ in each]).item()
    assert len(set(learned.logged)) == V
    for number, (name, parameter) in enumerate(model.named_parameters()):
        gradients = [gradients[number] for _, gradients, _ in each]
        if name.startswith(("unused", "rare", "frozen")):
            assert parameter.grad is None, name
        else:
            assert torch.equal(
                parameter.grad, tree_mean([g for g in gradients if g is not None])
            ), name
    assert torch.equal(model.norm.running_mean, tree_mean([mean for _, _, mean in each]))
    assert model.norm.num_batches_tracked.item() == 1


def test_a_buffer_that_nothing_moves_keeps_its_bits() -> None:
    """The mean of three thirds is none, and a sum of infinities has no difference."""
    model = model_of()
    learner_of(model, replicas=3, part=range(3)).run(batch_of(9), 1)
    assert torch.equal(model.mask, torch.tensor([float("-inf"), 1 / 3]))


def test_a_gradient_that_one_replica_has_counts_for_all() -> None:
    model, batch = model_of(dropout=0.0), batch_of()
    batch.x[MICRO, 0] = 101.0  # the first sample of replica 1
    alone_1 = by_hand(model, batch, 1)[1][1]
    learner_of(model).run(batch, 1)
    index = [name for name, _ in model.named_parameters()].index("rare.bias")
    assert torch.equal(model.rare.bias.grad, alone_1[index] / V)


def test_what_a_replica_gives_does_not_depend_on_what_was_computed_before() -> None:
    given = []
    for part in (range(V), range(2, V)):
        model = model_of()
        kept: list[tuple[float, ...]] = []
        whole = batch_of()
        batch = SampleBatch(
            whole.x[part.start * MICRO :],
            whole.y[part.start * MICRO :],
            whole.ids[part.start * MICRO :],
            "",
        )
        vectors = []
        learner = learner_of(
            model,
            part=part,
            exchange=lambda tree, vectors=vectors: vectors.extend(tree.sums) or tree.sums[-1][1],
        )
        kept.append(learner.run(batch, 5).logged[-2:])
        given.append(
            (kept, torch.get_rng_state().tolist(), random.random(), float(np.random.random()))
        )
    assert given[0] == given[1]


def test_every_replica_and_step_draws_its_own() -> None:
    def drawn(step: int, replica: int) -> tuple[float, float, float]:
        seed_replica(5, step, replica)
        return random.random(), float(np.random.random()), float(torch.rand(()))

    streams = [drawn(step, replica) for step in (1, 2) for replica in range(3)]
    assert drawn(2, 2) == streams[-1]
    assert all(len(set(each)) == len(streams) for each in zip(*streams, strict=True))


def test_an_overflow_in_one_replica_leaves_the_step_out_everywhere() -> None:
    model, batch = model_of(), batch_of()
    batch.x[0] = float("inf")
    learner = learner_of(model, "fp16", scaler=torch.amp.GradScaler("cpu", init_scale=2.0))
    before, scale = model.out.weight.clone(), learner.scaler.get_scale()
    learned = learner.run(batch, 1)
    assert torch.equal(model.out.weight, before)
    assert learner.scaler.get_scale() < scale
    assert not np.isfinite(learned.loss) and np.isfinite(learned.logged[1:]).all()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_it_learns_in_every_precision(precision: str) -> None:
    model, batch = model_of(dropout=0.0), batch_of()
    learner = learner_of(model, precision)
    told = [learner.run(batch, step).loss for step in range(1, 7)]
    assert told[-1] < told[0] and all(
        parameter.dtype == torch.float32 for parameter in model.parameters()
    )


class Threads:
    """torch.distributed's two calls, between threads that stand for ranks."""

    def __init__(self, world_size: int) -> None:
        self.world_size, self.barrier = world_size, Barrier(world_size)
        self.sent: dict[int, Any] = {}

    def of(self, rank: int) -> Any:
        class Dist:
            @staticmethod
            def all_to_all_single(
                output: torch.Tensor, send: torch.Tensor, out_sizes: list[int], in_sizes: list[int]
            ) -> None:
                self.sent[rank] = torch.split(send, in_sizes)
                self.barrier.wait(120)
                parts = [self.sent[other][rank] for other in range(self.world_size)]
                assert [len(part) for part in parts] == out_sizes
                output.copy_(torch.cat(parts))
                self.barrier.wait(120)

            @staticmethod
            def all_gather_into_tensor(output: torch.Tensor, part: torch.Tensor) -> None:
                self.sent[rank] = part.clone()
                self.barrier.wait(120)
                output.copy_(torch.cat([self.sent[other] for other in range(self.world_size)]))
                self.barrier.wait(120)

        return Dist


def exchanged(
    values: torch.Tensor, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> list[torch.Tensor]:
    """The root as every one of `world_size` ranks has it; `values` (leaves, length)."""
    leaves, threads = len(values), Threads(world_size)
    roots: dict[int, torch.Tensor] = {}

    class PerThread:
        def __getattr__(self, name: str) -> Any:
            return getattr(threads.of(int(current_thread().name)), name)

    def rank_of(rank: int) -> None:
        tree: TreeReduce[torch.Tensor] = TreeReduce(leaves, torch.Tensor.add_)
        for leaf in owned(leaves, rank, world_size):
            tree.push_leaf(leaf, values[leaf].clone())
        roots[rank] = ReplicaAllreduce(leaves, rank, world_size)(tree)

    monkeypatch.setattr(replicas, "dist", PerThread())
    running = [Thread(target=rank_of, args=(rank,), name=str(rank)) for rank in range(world_size)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(150)
    return [roots[rank] for rank in range(world_size)]


@settings(deadline=None, max_examples=40)
@given(leaves=st.integers(1, 12), length=st.integers(1, 40), data=st.data())
def test_every_rank_has_the_root_that_one_process_has(
    leaves: int, length: int, data: st.DataObject
) -> None:
    world_size = data.draw(st.integers(1, min(leaves, 6)))
    values = (
        torch.randn(leaves, length, generator=torch.Generator().manual_seed(leaves * 100 + length))
        * 1e3
    )
    whole: TreeReduce[torch.Tensor] = TreeReduce(leaves, torch.Tensor.add_)
    for leaf in range(leaves):
        whole.push_leaf(leaf, values[leaf].clone())
    with pytest.MonkeyPatch.context() as monkeypatch:
        roots = exchanged(values, world_size, monkeypatch)
    assert all(torch.equal(root, whole.root) for root in roots)


def test_phases_tell_own_work_from_waiting() -> None:
    told: list[str] = []

    class Told(HeartbeatWriter):
        def phase(self, phase: str) -> None:
            told.append(phase)

    def noted(tree: TreeReduce[torch.Tensor]) -> torch.Tensor:
        told.append("exchange")
        return tree.root

    learner_of(model_of(), heartbeat=Told(None, 0), exchange=noted, autocast=nullcontext()).run(
        batch_of(), 1
    )
    assert [*pairwise(told)] == [("backward", "exchange"), ("exchange", "update")]
