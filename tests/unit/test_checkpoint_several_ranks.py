"""The state of several ranks without other processes: what is gathered is in the order of the
ranks, and what each restores is its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from ecrl_cli.checkpoint.capture.rng import (
    capture_rng,
    packed,
    restore_rng,
    seed_rank,
    seed_replica,
    unpacked,
)
from ecrl_cli.checkpoint.format.canonical_json import parse
from ecrl_cli.checkpoint.format.train_document import NOWHERE, TrainPosition
from tests.unit.test_checkpoint_train_state import Run

CPU = torch.device("cpu")


@dataclass
class Peers:
    """Ranks of which one is real: another one's row is what `other` makes of its own."""

    rank: int
    world_size: int
    rows: list[torch.Tensor] = field(default_factory=list)
    barriers: int = 0

    def barrier(self) -> None:
        self.barriers += 1

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        self.rows = [
            own if rank == self.rank else own.roll(7 * (rank + 1))
            for rank in range(self.world_size)
        ]
        return self.rows


def run_of(rank: int, world_size: int = 3, *, shared: bool = False) -> tuple[Run, Peers]:
    run, peers = Run(), Peers(rank, world_size)
    run.train(2)
    (
        run.train_state.rank,
        run.train_state.world_size,
        run.train_state.peers,
        run.train_state.shared_rng,
    ) = (rank, world_size, peers, shared)
    return run, peers


def position(run: Run, chain: str) -> TrainPosition:
    return TrainPosition(run.global_step, run.sampler.epoch, run.sampler.cursor_step, 1337, chain)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_generators_and_chains_are_gathered_in_the_order_of_the_ranks(rank: int) -> None:
    run, peers = run_of(rank)
    own = capture_rng(CPU)
    gathered = run.train_state.gather(position(run, f"{rank}" * 64))
    assert list(gathered.rng) == [f"rng.rank{each}.{name}" for each in range(3) for name in own]
    for each, row in enumerate(peers.rows):
        states = [gathered.rng[f"rng.rank{each}.{name}"] for name in own]
        assert torch.equal(torch.cat(states), row[:-64]) and [len(state) for state in states] == [
            len(state) for state in own.values()
        ]
    assert gathered.line_chain[rank] == f"{rank}" * 64 and len(gathered.line_chain) == 3
    assert all(
        torch.equal(gathered.rng[f"rng.rank{rank}.{name}"], state) for name, state in own.items()
    )


def test_a_chain_that_has_not_begun_is_empty_and_generators_that_are_alike_are_saved_once() -> None:
    run, peers = run_of(1, 2, shared=True)
    own = capture_rng(CPU)
    gathered = run.train_state.gather(NOWHERE)
    assert (
        list(gathered.rng) == [f"rng.shared.{name}" for name in own]
        and gathered.line_chain[1] == ""
    )
    assert all(
        torch.equal(gathered.rng[f"rng.shared.{name}"], state) for name, state in own.items()
    )
    assert len(peers.rows) == 2


def test_a_lone_rank_asks_nobody() -> None:
    run, peers = run_of(0, 1)
    assert run.train_state.gather(NOWHERE).line_chain == [""]
    run.train_state.barrier()
    assert [each.rank for each in run.train_state.rank_states(NOWHERE)] == [0]
    assert (peers.rows, peers.barriers) == ([], 0)
    run.train_state.world_size = 2
    run.train_state.barrier()
    assert peers.barriers == 1


@pytest.mark.parametrize("rank", [0, 2])
def test_the_digests_of_every_rank_are_those_of_its_row(rank: int) -> None:
    run, peers = run_of(rank)
    where = position(run, "")
    own = run.train_state.rank_digests(where).rank
    found = run.train_state.rank_states(where)
    assert [each.rank for each in found] == [0, 1, 2] and found[rank] == own
    for each, row in zip(found, peers.rows, strict=True):
        assert (
            "".join((each.parameters, each.buffers, each.optimizer, each.rng, each.train))
            == bytes(row.tolist()).hex()
        )
        assert len({each.parameters, each.buffers, each.optimizer, each.rng, each.train}) == 5


def saved_by(
    run: Run, chains: list[str], ranks: int, *, shared: bool = False
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and train.json of a run of `ranks` ranks, whose generators differ."""
    tensors = {source.name: source.find().detach().clone() for source in run.train_state.sources()}
    for rank in range(ranks):
        seed_rank(5, rank, 2)
        owner = "shared" if shared else f"rank{rank}"
        tensors |= {
            f"rng.{owner}.{name}": state.clone() for name, state in capture_rng(CPU).items()
        }
    return tensors, parse(run.train_state.train_document(position(run, ""), chains))


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


@pytest.mark.parametrize(
    ("rank", "world_size", "own", "departed"),
    [(0, 2, "a", ["c"]), (1, 2, "b", ["c"]), (2, 3, "c", []), (3, 4, "", [])],
)
def test_each_rank_restores_its_own_generators_and_chain_and_keeps_those_that_have_left(
    rank: int, world_size: int, own: str, departed: list[str]
) -> None:
    """Three ranks were saved; a fourth, which did not exist then, keeps its own seed."""
    run, _ = run_of(0)
    tensors, train = saved_by(run, ["a", "b", "c"], 3)
    other, _ = run_of(rank, world_size)
    seed_rank(99, rank, 2)
    assert other.train_state.become(tensors, train).line_chain == own
    found = drawn()
    seed_rank(5 if rank < 3 else 99, rank, 2)
    assert found == drawn()
    chains = [str(number) for number in range(world_size)]
    assert parse(other.train_state.train_document(position(other, ""), chains))["line_chain"] == [
        *chains,
        *departed,
    ]


def test_generators_that_were_saved_once_are_everybodys() -> None:
    run, _ = run_of(0)
    tensors, train = saved_by(run, ["a", "b"], 1, shared=True)
    other, _ = run_of(1, 2, shared=True)
    seed_rank(99, 1, 2)
    other.train_state.become(tensors, train)
    found = drawn()
    seed_rank(5, 0, 2)
    assert found == drawn()


def test_what_is_restored_says_where_training_stands() -> None:
    run, _ = run_of(0, 1)
    tensors, train = saved_by(run, ["a"], 1)
    train |= {
        "loss": 0.5,
        "global_step": 41,
        "sampler": {"epoch": 1, "cursor_step": 3, "seed": 1337},
    }
    found = run.train_state.become(tensors, train)
    assert found == TrainPosition(41, 1, 3, 1337, "a", 0.5)
    del train["loss"]
    assert run.train_state.become(tensors, train).loss is None


def test_every_stream_depends_on_all_that_it_belongs_to() -> None:
    def after(seed: Any, *given: int) -> tuple[float, float, float]:
        seed(*given)
        return drawn()

    of_rank = [
        after(seed_rank, *given)
        for given in ((1, 2, 3), (1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3))
    ]
    of_replica = [
        after(seed_replica, *given)
        for given in ((1, 2, 3), (1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3))
    ]
    assert of_rank[0] == of_rank[1] and of_replica[0] == of_replica[1]
    for which in range(3):
        assert len({each[which] for each in (*of_rank[1:], *of_replica[1:])}) == 10


def test_generators_travel_as_bytes_with_a_second_gaussian() -> None:
    random.gauss(0, 1), np.random.normal()
    before = capture_rng(CPU)
    data = packed(before)
    expected = (random.gauss(0, 1), float(np.random.normal()), *drawn())
    found = unpacked(data, CPU)
    assert found.keys() == before.keys() and all(
        torch.equal(found[name], before[name]) for name in before
    )
    restore_rng(found, CPU)
    assert (random.gauss(0, 1), float(np.random.normal()), *drawn()) == expected
