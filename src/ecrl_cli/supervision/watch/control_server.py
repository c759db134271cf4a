"""The supervisor's end of the control socket: accepts connections of ranks and parses their
messages.
"""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass

from ecrl_cli.config.codec import decode
from ecrl_cli.linux.unix_socket import listen
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

Message = Hello | Progress | RankError | Notice | LeftAttempt | SpareReady
KINDS: dict[str, type[Message]] = {
    "hello": Hello,
    "progress": Progress,
    "trouble": RankError,
    "notice": Notice,
    "left": LeftAttempt,
    "standby": SpareReady,
}
LINE_BYTES = 65536


@dataclass(eq=False)
class Connection:
    """One rank's socket, and the incomplete line received so far."""

    socket: socket.socket
    rest: bytes = b""

    def receive(self) -> tuple[list[Message], bool]:
        """The messages that have arrived, and whether the rank has closed the connection."""
        try:
            data = self.socket.recv(LINE_BYTES)
        except BlockingIOError:
            return [], False
        except OSError:
            data = b""
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [message for line in lines if (message := parse(line))], not data or len(
            self.rest
        ) > LINE_BYTES

    def answer(self, fds: tuple[int, ...]) -> None:
        """Reply to a Hello: one byte and the descriptors of the shared memory. Ignored if the rank
        has gone or does not read.
        """
        with contextlib.suppress(OSError):
            socket.send_fds(self.socket, [b"\n"], fds)

    def assign(self, assignment: Assignment) -> None:
        """Send an Assignment to the worker that waits on this connection. Ignored if it has
        gone.
        """
        with contextlib.suppress(OSError):
            self.socket.sendall(line_of(assignment))


class ControlServer:
    """Listens on the run directory's control socket. Only the holder of the run's lock may open
    one.
    """

    def __init__(self, layout: RunLayout) -> None:
        self._path = layout.control
        self._socket = listen(self._path, backlog=64)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> Connection | None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return None
        connection.setblocking(False)
        return Connection(connection)

    def close(self) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)


def parse(line: bytes) -> Message | None:
    """One message; None if the line is not a valid one (its rank was killed while writing it)."""
    try:
        value = json.loads(line)
        return decode(KINDS[value["kind"]], value)
    except (ValueError, KeyError, TypeError):
        return None
