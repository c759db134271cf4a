"""What a launcher is: it starts the ranks of one attempt, notices the first death, kills what is left and says how each rank ended."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.linux import processes
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.attempt_spec import AttemptSpec
from ecrl_cli.records.layout import RunLayout

WORKER = "ecrl_cli.training.worker"
GONE_WITHIN_S = 5.0  # SIGKILL takes milliseconds; a process that outlives this sits in the kernel


@dataclass(frozen=True)
class LaunchSpec:
    """One attempt. `layout.root` is absolute. `port` 0: any free one. `preload`: modules that the ranks will need (zygote).
    `nodes`: those of the allocation that share the ranks equally, the supervisor's own first; none: this machine alone. `private_network`: the
    ranks see no network but one of their own (under the zygote, the launcher's own for each attempt). `hands`: by rank, processes that are there
    already and are told by others what to do (zygote); none: the ranks are started.

    `module`: what a rank runs: as a program under torchrun, its `run_rank(run_dir, attempt, rendezvous, started) -> exit code` in a zygote.
    """

    layout: RunLayout
    order: AttemptSpec
    threads: int = 1
    port: int = 0
    preload: tuple[str, ...] = ()
    module: str = WORKER
    nodes: tuple[str, ...] = ()
    private_network: bool = False
    hands: tuple[int, ...] = ()

    @property
    def output(self) -> str:
        return str(self.layout.attempt(self.order.attempt).output)


@dataclass(frozen=True)
class RankExit:
    """How a rank ended: exactly one of `exit_code` and `signal` is set, neither where nobody can know. `rank` None: the launcher's own process."""

    rank: int | None
    pid: int
    exit_code: int | None
    signal: int | None

    @property
    def good(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True)
class RankExits:
    """`first` is the casualty that ended the attempt (None: all ranks ended well), noticed at `noticed_at` (monotonic)."""

    ranks: tuple[RankExit, ...]
    first: RankExit | None
    noticed_at: float


class RunningAttempt(Protocol):
    def watched(self) -> Collection[int]:
        """Descriptors that become readable when `check` has something to see. May change at each call of `introduce` and `check`."""

    def introduce(self, rank: int, pid: int) -> None:
        """A rank has said hello."""

    def pids(self) -> dict[int, int]:
        """Rank to process id, as far as known, of those that had not ended at the last `check`."""

    def check(self) -> bool:
        """Whether the attempt is over: a rank ended badly, or all have ended, or the launcher's own process has gone. Never waits."""

    def kill(self) -> None:
        """SIGKILL to everything that is left. Nothing after `reap`."""

    def reap(self) -> RankExits:
        """Wait (milliseconds, after `check` was true or `kill` was called) until nothing is left; how everything ended; again the same."""


class Launcher(Protocol):
    """Its class has `make(config)`, by which a `LauncherKind` (config/launchers.py) is turned into one."""

    def warm(self, config: RunConfig) -> None:
        """Do now what needs doing only once for all runs: before the clock of the next one starts."""

    def launch(self, spec: LaunchSpec) -> RunningAttempt:
        """Start all ranks of one attempt, their output appended to `spec.output`."""

    def close(self) -> None:
        """End what outlives an attempt."""


@dataclass
class RankProcess:
    """A rank that is being watched. `status` is its wait status once it is known."""

    rank: int
    pid: int
    pidfd: int
    status: int | None = None
    over: bool = False

    def exit(self) -> RankExit:
        code, signal = processes.split(self.status) if self.status is not None else (None, None)
        return RankExit(self.rank, self.pid, code, signal)


@dataclass
class RankTable:
    """The ranks of an attempt, by pidfd; the book that both launchers keep."""

    known: dict[int, RankProcess] = field(default_factory=dict)
    first: RankExit | None = None
    noticed_at: float = 0.0
    closed: bool = False

    def add(self, rank: int, pid: int) -> None:
        if rank in self.known or self.closed:
            return
        pidfd = processes.open_pidfd(pid)
        if pidfd is not None:
            self.known[rank] = RankProcess(rank, pid, pidfd)

    def watched(self) -> list[int]:
        return [r.pidfd for r in self.known.values() if not r.over]

    def newly_over(self) -> list[RankProcess]:
        """Mark and give the ranks that have ended since the last call, with those that are on their way out beside them.

        A dying rank closes its sockets before it has ended: a peer that ends because of that may be over sooner.
        """
        left = [rank for rank in self.known.values() if not rank.over]
        if any(processes.ended(rank.pidfd) for rank in left):
            processes.wait_all([rank.pidfd for rank in left if processes.exiting(rank.pid)], GONE_WITHIN_S)
        over = [rank for rank in left if processes.ended(rank.pidfd)]
        for rank in over:
            rank.over = True
        return over

    def notice(self, casualties: list[RankExit]) -> None:
        """Keep the first casualty. Of several in one instant, the one that a peer's death does not explain (a lost peer ends in exit code 1)."""
        if self.first is None and casualties:
            self.first = min(casualties, key=lambda e: (e.exit_code == 1, -1 if e.rank is None else e.rank))
            self.noticed_at = monotonic()

    def kill(self) -> None:
        for rank in () if self.closed else self.known.values():
            processes.kill(rank.pidfd)

    def gather(self) -> None:
        """Wait until all have ended, learn how, close the descriptors, once."""
        if self.closed:
            return
        self.closed = True
        processes.wait_all([r.pidfd for r in self.known.values()], GONE_WITHIN_S)
        for rank in self.known.values():
            status = processes.reap(rank.pid)
            rank.status = status if status is not None else rank.status
            os.close(rank.pidfd)

    def dead(self) -> frozenset[int]:
        """Who is known to have ended badly."""
        return frozenset(rank.rank for rank in self.known.values() if rank.over and not rank.exit().good)

    def release(self) -> None:
        """Let go of those who live: from now on somebody else watches over them. How the others ended stays known."""
        self.closed = True
        for rank in self.known.values():
            os.close(rank.pidfd)
        self.known = {number: rank for number, rank in self.known.items() if rank.over}

    def exits(self) -> RankExits:
        ranks = tuple(self.known[rank].exit() for rank in sorted(self.known))
        return RankExits(ranks, self.first, self.noticed_at or monotonic())
