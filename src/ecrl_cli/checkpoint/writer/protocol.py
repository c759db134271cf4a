"""The protocol between rank 0 and the background writer: JSON lines over a Unix socket, memory by
descriptor. Torch-free.

rank 0 -> writer    open   {attempt, nbytes, slots, parts}: the table of parts and tensors, once per
connection
                    share  {nbytes, places}: the memory in which rank 0's state lies (its descriptor
                    is attached), and where in it save   {slot, stamp, parts, documents, changes,
                    state_digest}: staging buffer `slot` holds a finished image; with `changes`
                           (a number) all but what is shared, which the writer copies, as long as
                           the state has that count of changes
                    confirmed {changed}: the state that was copied for the saves with `changes` is
                    that of their steps, but for the tensor `changed`
                           if there is one. The writer saves none before that, except by a
                           state_digest, and fails it if the connection ends
                    drain  {}: answer when everything received is done; from the supervisor, after
                    an attempt: what is not confirmed has failed
writer -> rank 0    grant  {slot, nbytes, memory}: the staging buffer is free; with `memory`, its
descriptor is attached (the first time)
                    copied {}: the oldest save with `changes` needs rank 0's state no more ended
                    {global_step, failure}: a save is committed or failed; `failure`: the first of
                    this connection, or empty refused {code, key, fact, remedy}: why nothing can be
                    saved drained {}
"""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import suppress
from typing import Any

from ecrl_cli.errors import StorageError

_RECEIVE = 2**18
_MAX_FDS = 64
_FD = struct.Struct("i")


class Channel:
    """One end of a connection. Messages are received complete and in order, each descriptor with
    the message that announces it.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._buffer = b""
        self._fds: list[int] = []

    def send(self, message: dict[str, Any], fd: int | None = None) -> None:
        data = (json.dumps(message, separators=(",", ":")) + "\n").encode()
        if fd is None:
            self.socket.sendall(data)
            return
        sent = socket.send_fds(self.socket, [data], [fd])
        self.socket.sendall(data[sent:])

    def receive(self, *, wait: bool) -> list[dict[str, Any]] | None:
        """The messages received so far (with `wait`, at least one); None when the other end has
        closed and all is read.
        """
        found: list[dict[str, Any]] = []
        while not found:
            try:
                data = self._receive(0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
            except ConnectionResetError:
                return None
            if not data:
                return None
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            found = [json.loads(line) for line in lines]
            if not wait:
                break
        return found

    def _receive(self, flags: int) -> bytes:
        """Receive bytes, and queue descriptors; without `socket.recv_fds`, which ignores its flags
        in CPython 3.11.
        """
        data, ancillary, _, _ = self.socket.recvmsg(
            _RECEIVE, socket.CMSG_LEN(_MAX_FDS * _FD.size), flags
        )
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._fds += [
                    fd for (fd,) in _FD.iter_unpack(content[: len(content) // _FD.size * _FD.size])
                ]
        return data

    def take_fd(self) -> int:
        """The oldest descriptor not yet taken. StorageError if the kernel could not pass it on."""
        if not self._fds:  # the kernel drops descriptors beyond this process's limit
            raise StorageError(
                "slot",
                "too many open files: memory to save into could not be received",
                "raise the limit: ulimit -n 1024",
            )
        return self._fds.pop(0)

    def shutdown(self) -> None:
        """Shut down both directions: a thread that waits in `receive` returns."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()
        for fd in self._fds:
            os.close(fd)
