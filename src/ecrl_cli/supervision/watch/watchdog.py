"""Detects hangs, stragglers and a stuck writer in one running attempt, from heartbeats and process
states; has hung ranks dump their stacks.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ecrl_cli.checkpoint.capture.shared_memory import SnapshotPair
from ecrl_cli.config.schema import SupervisionConfig
from ecrl_cli.linux import processes
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.events import Hang, Straggler
from ecrl_cli.records.heartbeat_table import Heartbeat, HeartbeatTable
from ecrl_cli.records.layout import AttemptLayout
from ecrl_cli.records.messages import AttemptSpec, Hello
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.attempts.supervisor_faults import WallClockFaults
from ecrl_cli.supervision.watch.graceful_stop import GracefulStop
from ecrl_cli.supervision.watch.hang_detector import (
    SAVING,
    HangDetector,
    HangDiagnosis,
    HangTimeouts,
    StallTimer,
    StragglerDetector,
)
from ecrl_cli.training.control_client import DUMP_SIGNAL

_STOPPED = ("T", "t")  # of proc(5): by a signal, by a tracer
_STACKS_WITHIN_S = 2.0
_STACKS_POLL_S = 0.02


class Sidecar(Protocol):
    """The background writer: a process that serves an attempt, that ranks may have to wait for, and
    that is replaced without them.

    `watched`: the descriptors whose events call for `check`, which replaces it if it has died and
    says so. `give_up`: replace one that stands still.
    """

    @property
    def pids(self) -> tuple[int, ...]: ...
    def watched(self) -> Collection[int]: ...
    def check(self) -> bool: ...
    def give_up(self) -> None: ...


@dataclass(frozen=True)
class WatchdogContext:
    """Facts about an attempt that the watchdog needs.

    `saves`: whether it takes checkpoints. `tell`: prints one line for the user.
    `wall_clock_faults`: planned failures at a wall-clock time.
    `snapshots`: the memory files that keep its state when its ranks die.
    """

    heartbeats: HeartbeatTable
    supervision: SupervisionConfig
    attempt_spec: AttemptSpec
    logs: AttemptLayout
    saves: bool = True
    tell: Callable[[str], None] = lambda line: None
    wall_clock_faults: WallClockFaults | None = None
    snapshots: SnapshotPair | None = None

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors of the shared memory that the ranks receive: the heartbeat table's first."""
        return (self.heartbeats.fd, *(self.snapshots.fds if self.snapshots else ()))

    @property
    def ranks(self) -> int:
        """How many ranks are on this machine: with several nodes, the first ones."""
        return self.attempt_spec.world_size // max(1, len(self.attempt_spec.nodes))

    def graceful_stop(self, stop: StopSignals) -> GracefulStop:
        """The graceful stop of this attempt."""
        # ranks on another machine do not see the heartbeat table
        shared = self.saves and not self.attempt_spec.nodes
        return GracefulStop(
            stop,
            self.heartbeats if shared else None,
            self.supervision.grace_s,
            self.tell,
            bool(self.attempt_spec.memory),
        )


class AttemptWatchdog:
    """Call `check` at each turn of the event loop, at least every `every_s` seconds."""

    def __init__(self, context: WatchdogContext, sidecar: Sidecar | None, now: float) -> None:
        self._context, self._sidecar = context, sidecar
        limits = HangTimeouts.of(context.supervision)
        self.every_s = limits.check_every_s
        self._detector = HangDetector(limits, context.attempt_spec.resume_step, now)
        self._writer_quiet = StallTimer(limits.counted_s, now)
        self._stragglers = StragglerDetector(context.attempt_spec.resume_step)
        self._probes: dict[int, RankProbe] = {}
        self._known_dead: set[int] = set()

    @property
    def stragglers(self) -> tuple[Straggler, ...]:
        return tuple(self._stragglers.found)

    def add_rank(self, hello: Hello) -> None:
        """A rank has sent Hello."""
        if hello.rank not in self._probes and hello.rank not in self._known_dead:
            self._probes[hello.rank] = RankProbe(hello)

    def mark_dead(self, rank: int) -> None:
        """`rank` has died and the others continue: stop watching it."""
        self._known_dead.add(rank)
        if rank in self._probes:
            self._probes.pop(rank).close()

    def check(self, now: float) -> Hang | None:
        """The hang, if the attempt hangs; None otherwise. Reports new stragglers and replaces a
        stuck writer.
        """
        heartbeats = self._context.heartbeats
        beats = {
            rank: heartbeats.read(rank)
            for rank in range(self._context.ranks)
            if rank not in self._known_dead
        }
        writer = heartbeats.read(heartbeats.writer)
        self._tell(self._stragglers.check(beats))
        self._detector.held = any(beat.phase in SAVING for beat in beats.values()) and any(
            one.state in _STOPPED for one in self._probes.values()
        )
        hangs = self._detector.check(now, list(beats.values()), writer)
        if self._writer_stuck(now, writer):
            self._replace_writer()
            return None
        return self._diagnose_hang(beats).hang() if hangs else None

    def dump_stacks(self) -> None:
        """Write the stacks of all ranks into the attempt's logs."""
        dump_stacks([self._probes[rank] for rank in sorted(self._probes)], self._context.logs)

    def close(self) -> None:
        for probe in self._probes.values():
            probe.close()
        self._probes = {}

    def _diagnose_hang(self, beats: dict[int, Heartbeat]) -> HangDiagnosis:
        states = {rank: probe.state for rank, probe in self._probes.items()}
        parents = {processes.parent(probe.pid) for probe in self._probes.values()} - {
            0,
            os.getpid(),
        }
        launcher = next((processes.state(pid) for pid in sorted(parents)), "")
        return HangDiagnosis(
            self._detector.quiet.waited_s, self._detector.limit_s, beats, states, launcher
        )

    def _writer_stuck(self, now: float, writer: Heartbeat) -> bool:
        """Whether the writer is stopped for longer than a step may take, or says that it saves and
        has not moved for longer than a save may take.
        """
        pid = next(iter(self._sidecar.pids), 0) if self._sidecar else 0
        held = pid and processes.state(pid) in _STOPPED
        busy = pid and (held or writer.phase == "saving")
        limit_s = self._detector.step_limit_s if held else self._detector.save_limit_s
        return self._writer_quiet.check(now, (pid, writer) if busy else now) >= limit_s

    def _replace_writer(self) -> None:
        """Kill the writer, to be replaced. Its pending saves fail and are recorded; the ranks
        continue, with the stall timers reset.
        """
        assert self._sidecar is not None
        state = (
            "is stopped"
            if processes.state(self._sidecar.pids[0]) in _STOPPED
            else "does not come on with its save"
        )
        self._context.tell(f"the background writer {state}: it is replaced, what it holds is lost")
        self._sidecar.give_up()
        self._detector.forgive()
        self._writer_quiet.seconds = 0.0

    def _tell(self, stragglers: list[Straggler]) -> None:
        for straggler in stragglers:
            own, others = 1000 * straggler.own_s, 1000 * straggler.others_s
            self._context.tell(
                f"rank {straggler.rank} holds the others up: {own:.0f} ms of its own per step, they"
                f" {others:.0f} ms (step {straggler.global_step})"
            )


class RankProbe:
    """Holds the rank's pidfd and the memory file that receives its stacks, so that both can be read
    even after the rank has died.
    """

    def __init__(self, hello: Hello) -> None:
        self.rank, self.pid = hello.rank, hello.pid
        self._pidfd = processes.open_pidfd(hello.pid)
        self._memory: int | None = None
        if hello.stacks >= 0:
            with contextlib.suppress(OSError):
                self._memory = os.open(
                    f"/proc/{hello.pid}/fd/{hello.stacks}", os.O_RDONLY | os.O_CLOEXEC
                )

    @property
    def state(self) -> str:
        """The state letter as in proc(5): R, S, D, T, Z ...; empty if the process has gone."""
        return processes.state(self.pid)

    def send(self, number: int) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._pidfd, number)

    def wait_gone(self) -> None:
        if self._pidfd is not None:
            processes.wait_all([self._pidfd], _STACKS_WITHIN_S)

    def wait_for_stacks(self, deadline: float) -> bool:
        """Wait until its stacks are complete: they have stopped growing. False if they are not by
        `deadline`, or the rank has died before.
        """
        before = 0
        while self._memory is not None and self._pidfd is not None and monotonic() < deadline:
            dead = not processes.wait_all([self._pidfd], _STACKS_POLL_S)
            size = os.fstat(self._memory).st_size
            if size and size == before:
                return True
            if dead:
                break
            before = size
        return False

    def facts(self) -> str:
        """The kernel's report about the process, as lines: state, wchan, syscall."""
        lines = [f"rank {self.rank}, process {self.pid}, state {self.state or 'gone'}"]
        for name in ("wchan", "syscall"):
            with contextlib.suppress(OSError):
                lines.append(
                    f"{name}:"
                    f" {Path(f'/proc/{self.pid}/{name}').read_text(encoding='utf-8').strip()}"
                )
        return "\n".join(lines) + "\n"

    def stacks(self) -> str:
        if self._memory is None:
            return "no stacks: the rank did not say where it would write them\n"
        size = os.fstat(self._memory).st_size
        return (
            os.pread(self._memory, size, 0).decode(errors="replace")
            or "no stacks: the rank did not answer\n"
        )

    def close(self) -> None:
        for fd in (self._pidfd, self._memory):
            if fd is not None:
                os.close(fd)
        self._pidfd = self._memory = None


def dump_stacks(probes: Sequence[RankProbe], logs: AttemptLayout) -> None:
    """Ask every rank for its stacks and write them to the attempt's logs, with what the kernel
    reports.

    A stopped rank can answer only after SIGCONT, and must do nothing else then. So its peers are
    killed before it is continued, and it is killed as soon as it has answered.
    """
    facts = {probe.rank: probe.facts() for probe in probes}
    stopped = [probe for probe in probes if probe.state in _STOPPED]
    for probe in probes:
        probe.send(DUMP_SIGNAL)
    awake = [probe for probe in probes if probe not in stopped]
    deadline = monotonic() + _STACKS_WITHIN_S
    for probe in awake:
        probe.wait_for_stacks(deadline)
    if stopped:
        for probe in awake:
            probe.send(signal.SIGKILL)
        for probe in awake:
            probe.wait_gone()
    for probe in stopped:
        probe.send(signal.SIGCONT)
        probe.wait_for_stacks(monotonic() + _STACKS_WITHIN_S)
        probe.send(signal.SIGKILL)
        probe.wait_gone()
    for probe in probes:
        # a full disk must not prevent the hung attempt from being ended
        with contextlib.suppress(OSError):
            logs.stacks(probe.rank).write_text(
                f"{facts[probe.rank]}\n{probe.stacks()}", encoding="utf-8"
            )
