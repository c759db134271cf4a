"""The surviving ranks of an attempt, read from the heartbeat table: the supervisor, which sees processes die, writes them there."""

from __future__ import annotations

import time
from typing import Protocol

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.heartbeat_table import HeartbeatTable

_LOOK_S = 0.0005


class Membership(Protocol):
    """The surviving ranks. `epoch` rises with each death."""

    @property
    def epoch(self) -> int: ...
    @property
    def alive(self) -> tuple[int, ...]:
        """The surviving ranks, ascending, as of `epoch` or later."""

    def wait_beyond(self, epoch: int, seconds: float) -> bool:
        """Wait at most `seconds` until the membership's epoch exceeds `epoch`; returns whether it does."""


class HeartbeatMembership:
    def __init__(self, board: HeartbeatTable) -> None:
        self._heartbeats = board

    @property
    def epoch(self) -> int:
        return self._heartbeats.epoch

    @property
    def alive(self) -> tuple[int, ...]:
        return self._heartbeats.members

    def wait_beyond(self, epoch: int, seconds: float) -> bool:
        deadline = monotonic() + seconds
        while self._heartbeats.epoch <= epoch:
            if monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)  # a death is reported within milliseconds, and there is nothing else to do meanwhile
        return True
