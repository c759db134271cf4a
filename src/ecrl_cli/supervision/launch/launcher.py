"""The launcher interface: start the ranks of one attempt, notice the first death, kill the rest,
report how each ended; a command's launchers.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ecrl_cli.config.launchers import launcher_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError
from ecrl_cli.failures.fault_kind import fault_kind
from ecrl_cli.linux import processes
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.prerequisites import PREREQUISITES
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.supervision.launch.child_environment import kernel_choices

WORKER = "ecrl_cli.training.worker"
# SIGKILL takes milliseconds; a process that is still there after this is stuck in the kernel
GONE_WITHIN_S = 5.0


@dataclass(frozen=True)
class LaunchSpec:
    """Specification of the launch of one attempt.

    `layout.root` is absolute. `port` 0: any free one. `preload`: modules that the ranks will import
    (zygote). `nodes`: the nodes that share the ranks equally, the supervisor's own first; empty:
    this machine only. `private_network`: the ranks run in a private network namespace (under the
    zygote: that of a zygote used for one attempt). `existing_pids`: pids by rank of existing
    processes that are assigned their rank by others (zygote); empty: start the ranks.

    `module`: what a rank runs: as a program under torchrun, its `run_rank(run_dir, attempt,
    rendezvous, started) -> exit code` in a zygote.
    """

    layout: RunLayout
    order: AttemptSpec
    threads: int = 1
    port: int = 0
    preload: tuple[str, ...] = ()
    module: str = WORKER
    nodes: tuple[str, ...] = ()
    private_network: bool = False
    existing_pids: tuple[int, ...] = ()

    @property
    def output(self) -> str:
        return str(self.layout.attempt(self.order.attempt).output)


@dataclass(frozen=True)
class RankExit:
    """How a rank ended: one of `exit_code` and `signal` is set, neither if it cannot be known.
    `rank` None: the launcher's own process.
    """

    rank: int | None
    pid: int
    exit_code: int | None
    signal: int | None

    @property
    def good(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True)
class RankExits:
    """`first`: the casualty that ended the attempt (None: all ranks ended well). `noticed_at`: when
    it was noticed (monotonic).
    """

    ranks: tuple[RankExit, ...]
    first: RankExit | None
    noticed_at: float


class RunningAttempt(Protocol):
    def watched(self) -> Collection[int]:
        """Descriptors that become readable when `check` has something to see. May change with each
        call of `introduce` and `check`.
        """

    def introduce(self, rank: int, pid: int) -> None:
        """A rank has sent Hello."""

    def pids(self) -> dict[int, int]:
        """By rank, the pids known so far of ranks that had not ended at the last `check`."""

    def check(self) -> bool:
        """Whether the attempt is over: a rank failed, all have ended, or the launcher's own process
        has ended. Never waits.
        """

    def kill(self) -> None:
        """Send SIGKILL to everything that is left. Does nothing after `reap`."""

    def reap(self) -> RankExits:
        """Wait until everything has ended and return how. Takes milliseconds, after `check` was
        true or `kill` was called; may be repeated.
        """


class Launcher(Protocol):
    """The class also has `make(config)`, with which a `LauncherKind` (config/launchers.py) creates
    an instance.
    """

    def warm(self, config: RunConfig) -> None:
        """Do what is needed once for all runs, before the clock of the next run starts."""

    def launch(self, spec: LaunchSpec) -> RunningAttempt:
        """Start all ranks of one attempt, their output appended to `spec.output`."""

    def close(self) -> None:
        """End the processes that live longer than one attempt."""


@dataclass
class RankProcess:
    """A rank's process that is being watched. `status`: its wait status once known. `over`: whether
    it has ended.
    """

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
    """The ranks of one attempt with their pidfds, as both launchers keep them."""

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
        """Mark and return the ranks that have ended since the last call, waiting for those that are
        exiting right now.

        A dying rank closes its sockets before it has ended, so a peer that fails because of that
        may end first.
        """
        left = [rank for rank in self.known.values() if not rank.over]
        if any(processes.ended(rank.pidfd) for rank in left):
            processes.wait_all(
                [rank.pidfd for rank in left if processes.exiting(rank.pid)], GONE_WITHIN_S
            )
        over = [rank for rank in left if processes.ended(rank.pidfd)]
        for rank in over:
            rank.over = True
        return over

    def notice(self, casualties: list[RankExit]) -> None:
        """Keep the first casualty. Of several at once: the one that a peer's death does not explain
        (a rank that lost a peer ends with exit code 1).
        """
        if self.first is None and casualties:
            self.first = min(
                casualties, key=lambda e: (e.exit_code == 1, -1 if e.rank is None else e.rank)
            )
            self.noticed_at = monotonic()

    def kill(self) -> None:
        for rank in () if self.closed else self.known.values():
            processes.kill(rank.pidfd)

    def gather(self) -> None:
        """Wait until all have ended, record how, and close the pidfds. Only the first call does
        anything.
        """
        if self.closed:
            return
        self.closed = True
        processes.wait_all([r.pidfd for r in self.known.values()], GONE_WITHIN_S)
        for rank in self.known.values():
            status = processes.reap(rank.pid)
            rank.status = status if status is not None else rank.status
            os.close(rank.pidfd)

    def dead(self) -> frozenset[int]:
        """The ranks known to have failed."""
        return frozenset(
            rank.rank for rank in self.known.values() if rank.over and not rank.exit().good
        )

    def release(self) -> None:
        """Stop watching the living ranks: another owner watches them from now on. How the others
        ended is kept.
        """
        self.closed = True
        for rank in self.known.values():
            os.close(rank.pidfd)
        self.known = {number: rank for number, rank in self.known.items() if rank.over}

    def exits(self) -> RankExits:
        ranks = tuple(self.known[rank].exit() for rank in sorted(self.known))
        return RankExits(ranks, self.first, self.noticed_at or monotonic())


class LauncherCache:
    """Launchers shared by the runs of one command: at most one of each kind, started on first use.

    So a sweep has one zygote, and one more for runs that need a private network. Other settings of
    the math kernels also need another launcher.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Launcher] = {}

    def of(self, config: RunConfig, failures: Iterable[PlannedFailure]) -> Launcher:
        """The launcher, warmed up, for a run with the planned `failures`: shared start-up work is
        done before the clock of any run starts.
        """
        key = (
            config.supervision.launcher,
            needs_private_network(failures),
            *kernel_choices().items(),
        )
        if key not in self._made:
            self._made[key] = launcher_of(config).load().make(config)
        self._made[key].warm(config)
        return self._made[key]

    def close(self) -> None:
        for launcher in self._made.values():
            launcher.close()
        self._made = {}


def needs_private_network(failures: Iterable[PlannedFailure]) -> bool:
    """Whether a planned failure needs a private network namespace for each attempt."""
    return any(fault_kind(entry.kind).needs_network for entry in failures)


def check_network(failures: Iterable[PlannedFailure]) -> None:
    """ConfigError if a partition is planned and this machine does not let its user create a network
    namespace.
    """
    if not needs_private_network(failures):
        return
    if reason := PREREQUISITES["private network"].absent():
        remedy = (
            "run it as root, let users make namespaces (sysctl user.max_net_namespaces,"
            " user.max_user_namespaces), or leave it out"
        )
        raise ConfigError(
            "failure",
            f"a partition needs a network namespace of its own, which is refused here ({reason})",
            remedy,
        )
