"""A rank's line to its supervisor: JSON lines over the run directory's control socket."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys

from ecrl_cli.checkpoint.capture.memory_snapshots import FILES, SnapshotPair
from ecrl_cli.config.codec import decode
from ecrl_cli.errors import Fenced, visible
from ecrl_cli.linux.pdeathsig import die_with_parent
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.records.journal import line_of
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import Assignment, Hello, LeftAttempt, Progress, RankError, SpareReady

__all__ = ["Control", "NullControl", "die_with_parent"]

_FD = struct.Struct("i")
_FDS = 1 + FILES  # the board's, the snapshots'
_LINE_BYTES = 65536


class Control:
    """Connected on construction and introduced by a Hello (a spare: Standby); Fenced (exit 9) where no supervisor listens: then nobody counts."""

    heartbeats: HeartbeatTable | None = None
    snapshots: SnapshotPair | None = None

    def __init__(self, layout: RunLayout, first: Hello | SpareReady) -> None:
        self._socket = _connect(layout)
        self._send(first)

    def attach(self) -> None:
        """Take the board, and the memory for snapshots, that the supervisor's answer to the Hello brings, if it has one; waits for the answer."""
        try:
            answer, ancillary, _, _ = self._socket.recvmsg(1, socket.CMSG_SPACE(_FDS * _FD.size), socket.MSG_CMSG_CLOEXEC)
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
        """For the eyes only: dropped rather than waited for when the supervisor is slow to read."""
        try:
            self._socket.send(line_of(progress), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError as error:
            raise _gone() from error

    def trouble(self, trouble: RankError) -> None:
        """Tell why this rank is about to end; with the supervisor when this returns."""
        self._send(trouble)

    def leave(self, left: LeftAttempt) -> Assignment | None:
        """Tell that this rank has outlived its attempt; gives what it is to do next."""
        self._send(left)
        return self.assignment()

    def assignment(self) -> Assignment | None:
        """Wait for the supervisor's word; None where it has hung up instead: there is nothing more to do."""
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

    def _send(self, message: Hello | SpareReady | LeftAttempt | RankError) -> None:
        try:
            self._socket.sendall(line_of(message))
        except OSError as error:
            raise _gone() from error


class NullControl(Control):
    """A rank on another machine than its supervisor has no line to it. Its last words are printed: the agents' output is the supervisor's."""

    def __init__(self) -> None:
        """Nothing to connect to."""

    def attach(self) -> None:
        """No board reaches another machine: the rank is not watched, and not asked to stop."""

    def progress(self, progress: Progress) -> None:
        """Rank 0, which speaks for all, is never here."""

    def trouble(self, trouble: RankError) -> None:
        sys.stderr.write(f"rank {trouble.rank}: {visible(trouble.text)}\n")

    def close(self) -> None:
        """Nothing was opened."""


def _connect(layout: RunLayout) -> socket.socket:
    """Through /proc/self/fd, because the path of a Unix socket is at most 108 bytes long."""
    folder = os.open(layout.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{layout.control.name}")
    except OSError as error:
        connection.close()
        raise _gone() from error
    finally:
        os.close(folder)
    return connection


def _gone() -> Fenced:
    return Fenced("control", "no supervisor listens for this attempt", "start the run with `ecrl train`")
