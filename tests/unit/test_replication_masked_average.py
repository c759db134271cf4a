"""Dormant workers: the average among the active ones, bit for bit, without a group of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore

from ecrl_cli.replication.mini_batch.dormant import RANKS, DormantAverage, dormant_arm

# Of magnitudes so far apart that another order of addition gives other bits.
VALUES = [
    torch.tensor([[1e8, 3.0], [-0.0, 1.0]]),
    torch.tensor([[1.0, 1e-8], [-0.0, 2.0]]),
    torch.tensor([[-1e8, 7.0], [-0.0, 4.0]]),
]


def averages(
    name: str, members: list[int], turns: list[list[bool]]
) -> list[list[tuple[torch.Tensor, int]]]:
    """What each of `members` (indices of VALUES) gets in each turn; `turns` say who of them counts.
    One thread for each.
    """
    store = PrefixStore(name, HashStore())

    def rank(place: int) -> list[tuple[torch.Tensor, int]]:
        group = dist.ProcessGroupGloo(store, place, len(members), timedelta(seconds=30))
        mine, found = DormantAverage(group), []
        for turn in turns:
            (mine.come_back if turn[place] else mine.leave)()
            tensor = VALUES[members[place]].clone()
            found.append((tensor, mine.average(tensor)))
        return found

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(rank, range(len(members))))


@pytest.mark.parametrize("away", [0, 1, 2])
def test_who_is_away_leaves_the_average_of_the_others_as_a_group_of_their_own_has_it(
    away: int,
) -> None:
    turns = [[True] * 3, [rank != away for rank in range(3)], [True] * 3]
    found = averages("one", [0, 1, 2], turns)
    others = [rank for rank in range(3) if rank != away]
    alone = averages("other", others, [[True, True]])
    whole = averages("whole", [0, 1, 2], [[True] * 3])
    for rank in range(3):
        assert [count for _, count in found[rank]] == [3, 2, 3]
        for turn, (tensor, _) in enumerate(found[rank]):
            expected = alone[0][0][0] if turn == 1 else whole[0][0][0]
            assert torch.equal(tensor.view(torch.int32), expected.view(torch.int32))


def test_an_average_is_the_sum_from_the_first_rank_to_the_last_by_their_number() -> None:
    found = averages("sum", [0, 1, 2], [[True] * 3, [True, False, True]])
    expected = [(VALUES[0] + VALUES[1] + VALUES[2]) / 3, (VALUES[0] + VALUES[2]) / 2]
    assert all(torch.equal(each[turn][0], expected[turn]) for each in found for turn in (0, 1))
    assert not torch.equal(expected[0], (VALUES[0] + VALUES[2] + VALUES[1]) / 3)


def test_what_a_dormant_rank_holds_is_never_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        f"{__name__}.VALUES", [VALUES[0], torch.full((2, 2), float("nan")), VALUES[2]]
    )
    found = averages("nan", [0, 1, 2], [[True, False, True]])
    assert all(tensor.isfinite().all() for each in found for tensor, _ in each)


def test_with_nobody_active_everything_stays_as_it_is() -> None:
    found = averages("none", [0, 1], [[False, False]])
    assert [
        (torch.equal(each[0][0], VALUES[rank]), each[0][1]) for rank, each in enumerate(found)
    ] == [(True, 0), (True, 0)]


@pytest.mark.slow
def test_real_processes_leave_and_come_back_within_a_mini_batch(tmp_path: Path) -> None:
    found = dormant_arm(tmp_path / "dormant", averages=8)
    assert (found["same"], found["counted"], found["rounds"]) == (
        True,
        [RANKS, RANKS - 1, RANKS - 1, RANKS],
        2,
    )
    assert found["losses"][1] < found["losses"][0], "they train"
