"""The board between real processes: beats are seen, the word to stop reaches all ranks after the
same step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from ecrl_cli.records.heartbeat_table import PHASES, Heartbeat, HeartbeatTable
from ecrl_cli.training.control_client import HeartbeatWriter
from tests.conftest import comes_true


@pytest.fixture
def board() -> Iterator[HeartbeatTable]:
    with closing(HeartbeatTable.create(2)) as made:
        yield made


def attached(board: HeartbeatTable) -> HeartbeatTable:
    return HeartbeatTable(os.dup(board.fd))


def test_every_slot_is_its_own_and_every_beat_is_a_change(board: HeartbeatTable) -> None:
    seen = set()
    with closing(attached(board)) as other:
        for phase in PHASES:
            other.write(1, 7, phase, 0.25)
            beat = board.read(1)
            assert (beat.global_step, beat.phase, beat.own_s) == (7, phase, 0.25)
            seen.add(beat)
        other.write(1, 7, PHASES[-1], 0.25)
        assert board.read(1) not in seen
        other.write(other.writer, 0, "saving")
    assert board.read(0) == Heartbeat(0, "nowhere", 0.0, 0.0, 0)
    assert (board.ranks, board.writer, board.read(2).phase) == (2, 2, "saving")


def test_a_new_attempt_begins_with_a_clean_board_beside_a_writer_that_lived_on(
    board: HeartbeatTable,
) -> None:
    board.write(0, 7, "update")
    board.write(board.writer, 0, "saving")
    board.ask_to_stop()
    board.agree(8)
    board.clear()
    assert board.read(0) == Heartbeat(0, "nowhere", 0.0, 0.0, 0)
    assert board.read(board.writer).phase == "saving"
    assert (board.stop_asked, board.agreed) == (False, None)


def test_rank_0_chooses_the_next_step_and_only_once(board: HeartbeatTable) -> None:
    first, second = HeartbeatWriter(board, 0), HeartbeatWriter(board, 1)
    assert (first.stop_after(4), second.stop_after(4)) == (None, None)
    board.ask_to_stop()
    assert second.stop_after(4) is None, "no other rank chooses"
    assert first.stop_after(5) == 6
    assert (second.stop_after(6), first.stop_after(6)) == (6, 6)


def test_the_step_to_stop_behind_may_be_the_first(board: HeartbeatTable) -> None:
    board.agree(0)
    assert board.agreed == 0


RANK = """
import os, sys
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.training.control_client import HeartbeatWriter
rank, out, back = (int(word) for word in sys.argv[2:])
heartbeat, step = HeartbeatWriter(HeartbeatTable(int(sys.argv[1])), rank), 0
while True:
    step += 1
    heartbeat.step(step)
    # the exchange of gradients: whoever has its peer's has seen what the peer saw before
    os.write(out, b"g")
    os.read(back, 1)
    heartbeat.phase("logging")
    if heartbeat.stop_after(step) == step:
        break
print(step)
"""


def test_two_processes_in_lockstep_stop_behind_the_same_step_whenever_the_word_comes(
    board: HeartbeatTable,
) -> None:
    for _ in range(3):
        board.clear()
        (a_read, a_write), (b_read, b_write) = os.pipe(), os.pipe()
        ends = {0: (a_write, b_read), 1: (b_write, a_read)}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(board.fd), str(rank), *map(str, ends[rank])],
                pass_fds=(board.fd, *ends[rank]),
                stdout=subprocess.PIPE,
            )
            for rank in (0, 1)
        ]
        for fd in (a_read, a_write, b_read, b_write):
            os.close(fd)
        assert comes_true(lambda: min(board.read(rank).global_step for rank in (0, 1)) >= 3)
        board.ask_to_stop()
        said = [int(rank.communicate(timeout=180)[0]) for rank in ranks]
        assert said[0] == said[1] == board.agreed


def test_own_seconds_leave_out_what_a_rank_waited_for(
    board: HeartbeatTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("ecrl_cli.training.control_client.monotonic", lambda: now[0])
    heartbeat = HeartbeatWriter(board, 0)

    def passes(seconds: float) -> None:
        now[0] += seconds

    heartbeat.step(1)
    passes(2.0)
    heartbeat.wait()
    passes(50.0)  # rank 0's buffers
    heartbeat.work()
    passes(3.0)
    heartbeat.phase("backward")
    passes(70.0)  # the others' gradients
    heartbeat.phase("update")
    assert board.read(0).own_s == 5.0
    heartbeat.step(2)
    passes(1.0)
    heartbeat.phase("backward")
    assert board.read(0).own_s == 1.0


def test_a_rank_that_nobody_watches_beats_into_nothing() -> None:
    heartbeat = HeartbeatWriter(None, 0)
    heartbeat.step(1)
    heartbeat.again()
    assert heartbeat.stop_after(1) is None


def test_what_a_rank_keeps_outlives_it_for_its_last_two_steps_and_a_new_attempt(
    board: HeartbeatTable,
) -> None:
    with closing(attached(board)) as rank:
        for step in (4, 5, 6):
            rank.store_rank_state(1, step, bytes([step]) * 10_084)
    board.clear()
    assert board.load_rank_state(1, 6) == bytes([6]) * 10_084
    assert board.load_rank_state(1, 5) == bytes([5]) * 10_084
    assert (
        board.load_rank_state(1, 4),
        board.load_rank_state(1, 7),
        board.load_rank_state(0, 6),
    ) == (None, None, None)
    assert board.ranks == 2


def test_who_is_buried_is_a_member_no_more_and_the_epoch_tells(board: HeartbeatTable) -> None:
    with closing(attached(board)) as rank:
        assert (rank.members, rank.epoch) == ((), 0)
        board.set_members(3)
        assert (rank.members, rank.epoch) == ((0, 1, 2), 1)
        board.mark_dead(1)
        assert (rank.members, rank.epoch) == ((0, 2), 2)
        board.mark_dead(0)
        assert (rank.members, rank.epoch) == ((2,), 3)
        board.set_members(2)
        assert (rank.members, rank.epoch) == ((0, 1), 1)
        board.clear()
        assert (rank.members, rank.epoch) == ((), 0)


def test_all_64_may_be_members(board: HeartbeatTable) -> None:
    board.set_members(64)
    assert board.members == tuple(range(64))
    board.mark_dead(63)
    assert board.members == tuple(range(63))


def test_what_was_not_whole_when_its_rank_died_is_not_there(board: HeartbeatTable) -> None:
    """It dies in the middle of the copy: the place still names no step."""
    board.store_rank_state(0, 4, b"four")
    board.store_rank_state(0, 6, b"sixes")
    assert (board.load_rank_state(0, 6), board.load_rank_state(0, 4)) == (b"sixes", None)

    class Dies(bytes):
        def __len__(self) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        board.store_rank_state(0, 8, Dies(b"eight"))
    assert (board.load_rank_state(0, 8), board.load_rank_state(0, 6)) == (None, None)


def test_what_ranks_keep_lies_apart(board: HeartbeatTable) -> None:
    full = 16384 - 12
    for rank in (0, 1):
        for step in (0, 1):
            board.store_rank_state(rank, step, bytes([2 * rank + step]) * full)
    board.write(0, 1, "forward")
    board.write(1, 1, "forward")
    board.write(board.writer, 1, "saving")
    assert [board.load_rank_state(rank, step) for rank in (0, 1) for step in (0, 1)] == [
        bytes([number]) * full for number in range(4)
    ]
    assert board.read(0).phase == "forward" and board.read(board.writer).phase == "saving"
