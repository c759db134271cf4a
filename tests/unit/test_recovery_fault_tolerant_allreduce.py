"""What ranks that leave an attempt tell each other, where no process is needed to see it."""

from __future__ import annotations

import resource
from datetime import timedelta

import pytest
from torch.distributed import HashStore, TCPStore

from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.recovery.fault_tolerant_allreduce import FaultTolerantGroup, PeersLost
from ecrl_cli.recovery.group_rendezvous import HeartbeatMembership
from ecrl_cli.training.in_place_session import CarriedState
from ecrl_cli.training.rendezvous import TcpStoreAddress


def test_who_leaves_after_a_further_death_names_the_same_ranks_as_left() -> None:
    store, board = HashStore(), HeartbeatTable.create(4)
    board.set_members(4)
    board.mark_dead(3)
    ranks = [
        FaultTolerantGroup(
            store, "attempt", rank, HeartbeatMembership(board), timedelta(seconds=5), lossy=False
        )
        for rank in range(3)
    ]
    with pytest.raises(PeersLost):
        ranks[1].form(4)
    board.mark_dead(1)  # it had left already
    for rank in (0, 2):
        with pytest.raises(PeersLost):
            ranks[rank].form(4)
    board.close()
    assert [rank.alive for rank in ranks] == [(0, 1, 2)] * 3


def test_a_process_that_outlives_many_may_have_many_sockets() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        CarriedState(TcpStoreAddress("127.0.0.1", store.port, ""), 5.0)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
