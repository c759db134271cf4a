"""A rank's side of its supervision: JSON lines over the run directory's control socket, its
heartbeats, and the dump of its stacks on request.

The dump is asked for by a signal, so that a hung rank can still answer: the C handler of
`faulthandler` takes no lock, not even the GIL, so it works while a thread holds that for ever. It
writes into an anonymous memory file (memfd) that the supervisor has opened; nothing is left on disk
unless there was a hang.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import struct
import sys

from ecrl_cli.checkpoint.capture.shared_memory import FILES, SnapshotPair
from ecrl_cli.config.codec import decode
from ecrl_cli.errors import Fenced, visible
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.unix_socket import connect
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.records.journal import line_of
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import (
    Assignment,
    Hello,
    LeftAttempt,
    Notice,
    Progress,
    RankError,
    SpareReady,
)

_FD = struct.Struct("i")
_FDS = 1 + FILES  # heartbeat table, snapshots
_LINE_BYTES = 65536

DUMP_SIGNAL = signal.SIGUSR2


class Control:
    """Connects and sends `first` on construction: a Hello, or a spare's SpareReady. Fenced (exit
    code 9) if no supervisor listens.
    """

    heartbeats: HeartbeatTable | None = None
    snapshots: SnapshotPair | None = None

    def __init__(self, layout: RunLayout, first: Hello | SpareReady) -> None:
        self._socket = _connect(layout)
        self._send(first)

    def attach(self) -> None:
        """Wait for the supervisor's answer to the Hello; take the descriptors of heartbeat table
        and snapshots that come with it, if any.
        """
        try:
            answer, ancillary, _, _ = self._socket.recvmsg(
                1, socket.CMSG_SPACE(_FDS * _FD.size), socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise _gone() from error
        if not answer:
            raise _gone()
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                board, *snapshots = [fd for (fd,) in _FD.iter_unpack(content)]
                self.heartbeats = HeartbeatTable(board)
                self.snapshots = SnapshotPair(snapshots) if snapshots else None

    def progress(self, progress: Progress) -> None:
        """Report progress for display; dropped instead of blocking when the supervisor reads too
        slowly.
        """
        try:
            self._socket.send(line_of(progress), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError as error:
            raise _gone() from error

    def trouble(self, trouble: RankError) -> None:
        """Report why this rank is about to exit; returns once the message is sent."""
        self._send(trouble)

    def notice(self, rank: int, text: str) -> None:
        """Have the supervisor print one line for the user."""
        self._send(Notice(rank, text))

    def leave(self, left: LeftAttempt) -> Assignment | None:
        """Report that this rank survived its attempt; returns its next assignment, None if there is
        none.
        """
        self._send(left)
        return self.assignment()

    def assignment(self) -> Assignment | None:
        """Wait for the supervisor's next assignment; None if it closed the connection: there is
        nothing more to do.
        """
        data = b""
        while not data.endswith(b"\n"):
            try:
                received = self._socket.recv(_LINE_BYTES)
            except ConnectionError:
                return None
            if not received:
                return None
            data += received
        return decode(Assignment, json.loads(data))

    def close(self) -> None:
        self._socket.close()
        if self.snapshots:
            self.snapshots.close()
            self.snapshots = None
        if self.heartbeats is not None:
            self.heartbeats.close()
            self.heartbeats = None

    def _send(self, message: Hello | SpareReady | LeftAttempt | RankError | Notice) -> None:
        try:
            self._socket.sendall(line_of(message))
        except OSError as error:
            raise _gone() from error


class NullControl(Control):
    """For a rank on another machine than its supervisor: no connection. Errors go to stderr, which
    the launch agents pass on to the supervisor.
    """

    def __init__(self) -> None:
        """Nothing to connect to."""

    def attach(self) -> None:
        """No heartbeat table across machines: the rank is not watched and cannot be asked to
        stop.
        """

    def progress(self, progress: Progress) -> None:
        """Only rank 0 reports progress, and it is always on the supervisor's machine."""

    def trouble(self, trouble: RankError) -> None:
        sys.stderr.write(f"rank {trouble.rank}: {visible(trouble.text)}\n")

    def notice(self, rank: int, text: str) -> None:
        sys.stderr.write(f"rank {rank}: {visible(text)}\n")

    def close(self) -> None:
        """Nothing was opened."""


def _connect(layout: RunLayout) -> socket.socket:
    try:
        return connect(layout.control)
    except OSError as error:
        raise _gone() from error


def _gone() -> Fenced:
    return Fenced(
        "control", "no supervisor listens for this attempt", "start the run with `ecrl train`"
    )


class HeartbeatWriter:
    """A rank's slot in the heartbeat table: its step and phase for the hang detector, and the
    agreed stop step.

    `board` None: the supervisor is on another machine, so the rank is not watched and cannot be
    asked to stop.
    """

    def __init__(self, board: HeartbeatTable | None, rank: int) -> None:
        self._table, self._rank = board, rank
        self._global_step, self._phase = 0, "nowhere"
        self._own_s, self._worked_s = 0.0, 0.0
        self._since: float | None = None

    def step(self, global_step: int) -> None:
        """Begin work on `global_step`."""
        self._global_step, self._worked_s = global_step, 0.0
        self.work()
        self.phase("forward")

    def phase(self, phase: str) -> None:
        """Enter `phase`, one of `heartbeat_table.PHASES`."""
        if phase == "backward":
            self.wait()
            self._own_s = self._worked_s
        self._phase = phase
        self.again()

    def work(self) -> None:
        """Start counting the rank's own work, until `wait` or the backward pass: it waits for no
        other rank.
        """
        self._since = monotonic()

    def wait(self) -> None:
        """Stop counting, until `work`: the rank may be waiting for others."""
        if self._since is not None:
            self._worked_s += monotonic() - self._since
            self._since = None

    def again(self) -> None:
        """Write a heartbeat in the current phase: the rank makes progress."""
        if self._table is not None:
            self._table.write(self._rank, self._global_step, self._phase, self._own_s)

    def stop_after(self, global_step: int) -> int | None:
        """The step after which all ranks stop, or None. Every rank calls it after each step; rank 0
        answers a stop request with the next step.

        No rank can pass that step unaware: rank 0 writes it before it contributes any gradient of
        that step.
        """
        if self._table is None:
            return None
        if self._rank == 0 and self._table.agreed is None and self._table.stop_asked:
            self._table.agree(global_step + 1)
        return self._table.agreed


def answer_stack_dumps() -> int:
    """Dump all stacks on DUMP_SIGNAL from now on; returns the memory file's descriptor."""
    memory = os.memfd_create("ecrl-stacks")
    faulthandler.register(DUMP_SIGNAL, file=memory, all_threads=True, chain=False)
    return memory


def silence_stack_dumps(memory: int) -> None:
    """Undo `answer_stack_dumps`."""
    faulthandler.unregister(DUMP_SIGNAL)
    os.close(memory)
