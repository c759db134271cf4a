"""The background writer, run by `supervision.launch.writer_main`. Torch-free, one per run, outlives
attempts.

It owns the staging buffers, takes finished images from rank 0, and does file I/O and hashing only.
It finishes every image that it has received, even if the rank that sent it is dead. An image that
it copied itself (deferred capture) is saved only once rank 0 has confirmed it, or if it matches the
digest that rank 0 logged. Threads: the main one reads the sockets, one copies what rank 0 shares
(rank 0 may be waiting for it), one saves, one per new connection provides memory; the last two
leave the processor to the training.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ecrl_cli.checkpoint.capture.live_state import LiveState, decode_places
from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.format.image import (
    CheckpointImage,
    CheckpointMeta,
    PartPlace,
    decode_parts,
)
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog, save_and_record
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.writer.protocol import Channel
from ecrl_cli.config.codec import decode
from ecrl_cli.errors import EcrlError, StorageError
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.fs_wrapper import HeartbeatFs

UNCONFIRMED = (
    "rank 0 ended before it had confirmed that its state did not change while it was copied"
)
NICE = 19  # training has priority: a running step matters more than an early commit


class WriterConnection:
    """A connection to rank 0, with the values of its `open` message."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.attempt, self.nbytes, self.slots = -1, 0, 0
        self.parts: tuple[PartPlace, ...] = ()
        self.log: CheckpointLog | None = None
        self.live: LiveState | None = None
        self.has: dict[int, Memory] = {}
        self.granted: set[int] = set()
        # saves: each is given why it is refused, or nothing
        self.unconfirmed: list[Callable[[str], None]] = []
        self._lock = threading.Lock()

    def tell(self, message: dict[str, Any], fd: int | None = None) -> None:
        """Send `message`; a closed connection is no error."""
        with self._lock, contextlib.suppress(OSError):
            self.channel.send(message, fd)

    def resolve_unconfirmed(self, why: str) -> None:
        """Queue the saves that wait for a confirmation; `why`: they are refused."""
        for save in self.unconfirmed:
            save(why)
        self.unconfirmed = []

    def refuse(self, error: EcrlError) -> None:
        self.tell(
            {
                "kind": "refused",
                "code": error.code,
                "key": error.key,
                "fact": error.fact,
                "remedy": error.remedy,
            }
        )


class Writer:
    """Receives images over sockets and saves them as checkpoints."""

    def __init__(
        self,
        layout: RunLayout,
        store: CheckpointStore,
        listener: socket.socket,
        board: HeartbeatTable | None = None,
    ) -> None:
        self._layout, self._store, self._listener, self._board = layout, store, listener, board
        if board is not None:
            store.fs = HeartbeatFs(store.fs, lambda: board.write(board.writer, 0, "saving"))
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="copy")
        self._lock = threading.Lock()
        self._slots: dict[int, Memory] = {}
        self._busy: dict[int, Memory] = {}
        self._current: WriterConnection | None = None
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serve for ever. If an error ends it (such as a journal on a full disk), received images
        are saved first.
        """
        threading.Thread(target=self._work, name="save", daemon=True).start()
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            self._serve()
        finally:
            done = threading.Event()
            self._jobs.put(done.set)
            done.wait()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    client = WriterConnection(Channel(self._listener.accept()[0]))
                    self._selector.register(client.channel.socket, selectors.EVENT_READ, client)
                elif key.fd in self._selector.get_map():
                    self._read(key.data)

    def _work(self) -> None:
        os.nice(NICE)  # of this thread, and of those that it starts to hash
        while True:
            self._jobs.get()()
            if self._board is not None:
                self._board.write(self._board.writer, 0, "done")

    def _read(self, client: WriterConnection) -> bool:
        """Handle the messages that `client` has sent; False if there are none at the moment."""
        messages = client.channel.receive(wait=False)
        if messages is None:
            self._selector.unregister(client.channel.socket)
            client.resolve_unconfirmed(UNCONFIRMED)
            self._jobs.put(lambda: self._part_with(client))
            return False
        does = {
            "open": self._open,
            "share": self._share,
            "save": self._received,
            "confirmed": self._confirmed,
            "drain": self._drain,
        }
        for message in messages:
            does[message["kind"]](client, message)
        return bool(messages)

    def _open(self, client: WriterConnection, message: dict[str, Any]) -> None:
        client.attempt, client.nbytes, client.slots = (
            message["attempt"],
            message["nbytes"],
            message["slots"],
        )
        client.parts = decode_parts(message["parts"])
        journal = Journal(self._layout.attempt(client.attempt).checkpoints)
        client.log = CheckpointLog(journal, self._layout, client.attempt)
        with self._lock:
            self._current = client
        self._jobs.put(lambda: self._claim(client))
        threading.Thread(
            target=self._provide_all, args=(client,), name="provide", daemon=True
        ).start()

    def _share(self, client: WriterConnection, message: dict[str, Any]) -> None:
        try:
            client.live = LiveState(
                client.channel.take_fd(), message["nbytes"], decode_places(message["places"])
            )
        except EcrlError as error:
            client.refuse(error)

    def _received(self, client: WriterConnection, message: dict[str, Any]) -> None:
        stamp, number = decode(CheckpointMeta, message["stamp"]), message["slot"]
        places = [
            PartPlace(name, offset, nbytes, part.tensors)
            for (name, offset, nbytes), part in zip(message["parts"], client.parts, strict=True)
        ]
        documents = {name: text.encode() for name, text in message["documents"].items()}
        with self._lock:
            client.granted.discard(number)
            memory = self._busy[number] = client.has[number]
        image = CheckpointImage(
            stamp, memory.view, tuple(places), documents, message.get("state_digest", "")
        )
        changes = message.get("changes")
        if changes is None:
            assert client.log is not None
            client.log.write("received", stamp.global_step)
        copied = (
            None if changes is None else self._copier.submit(self._copy, client, image, changes)
        )

        def save(refused: str = "") -> None:
            self._jobs.put(lambda: self._save(client, number, image, copied, refused))

        if changes is None or image.state_digest:
            save()
        else:
            client.unconfirmed.append(save)

    def _confirmed(self, client: WriterConnection, message: dict[str, Any]) -> None:
        name = message["changed"]
        client.resolve_unconfirmed(
            f"{name} was changed outside of the optimizer's step while it was copied"
            if name
            else ""
        )

    def _copy(self, client: WriterConnection, image: CheckpointImage, changes: int) -> bool:
        """Copy the tensors that rank 0 shares into the image; returns whether it is complete."""
        assert client.live is not None and client.log is not None
        if self._board is not None:
            self._board.write(self._board.writer, 0, "saving")
        try:
            whole = client.live.copy_into(image.memory, image.parts, changes)
            if whole:
                client.log.write("received", image.stamp.global_step)
            return whole
        finally:
            client.tell({"kind": "copied"})
            # the saving thread then says that it is done: waiting for a confirmation is no hang
            self._jobs.put(_nothing)

    def _drain(self, client: WriterConnection, message: dict[str, Any]) -> None:
        """Answer when everything that any client has sent so far is done. The attempt is over: what
        is not confirmed by now never is, also if a child of a dead rank still holds its connection.
        """
        others = [
            key.data
            for key in self._selector.get_map().values()
            if key.data is not None and key.data is not client
        ]
        for other in others:
            while self._read(other):
                pass
            other.resolve_unconfirmed(UNCONFIRMED)
        self._jobs.put(lambda: client.tell({"kind": "drained"}))

    def _claim(self, client: WriterConnection) -> None:
        try:
            self._store.claim(client.attempt)
        except EcrlError as error:
            client.refuse(error)

    def _save(
        self,
        client: WriterConnection,
        number: int,
        image: CheckpointImage,
        copied: Future[bool] | None,
        refused: str,
    ) -> None:
        assert client.log is not None
        try:
            step, whole = image.stamp.global_step, copied is None or copied.result()
            if whole and not refused:
                save_and_record(self._store, image, client.attempt, client.log)
            else:
                fact = (
                    f"step {step}: {refused}"
                    if whole
                    else f"the state of step {step} changed before it had been copied"
                )
                client.log.failed(
                    step,
                    StorageError(
                        "capture", fact, "use checkpoint.capture=copy, or state_digests=true"
                    ),
                )
        except EcrlError as error:
            client.refuse(error)
        with self._lock:
            del self._busy[number]
            current = self._current
        # `ended` before the grant: the client counts saves in flight when it takes the buffer, and
        # this one has ended
        client.tell(
            {"kind": "ended", "global_step": image.stamp.global_step, "failure": client.log.failure}
        )
        if current is not None and number < current.slots:
            self._provide(current, number)

    def _part_with(self, client: WriterConnection) -> None:
        """Close the connection of a client that has disconnected; all its images are saved."""
        with self._lock:
            if self._current is client:
                self._current = None
        client.channel.close()
        if client.live is not None:
            client.live.close()
        if client.log is not None:
            client.log.close()

    def _provide_all(self, client: WriterConnection) -> None:
        os.nice(NICE)
        for number in range(client.slots):
            self._provide(client, number)

    def _provide(self, client: WriterConnection, number: int) -> None:
        """Grant staging buffer `number` if it is free; allocates its memory if it has none of the
        right size.
        """
        with self._lock:
            if client is not self._current or number in self._busy or number in client.granted:
                return
            try:
                memory = self._memory(number, client.nbytes)
            except EcrlError as error:
                client.refuse(error)
                return
            new = client.has.get(number) is not memory
            client.has[number] = memory
            client.granted.add(number)
        client.tell(
            {"kind": "grant", "slot": number, "nbytes": memory.nbytes, "memory": new},
            memory.fd if new else None,
        )

    def _memory(self, number: int, nbytes: int) -> Memory:
        memory = self._slots.get(number)
        if memory is None or memory.nbytes != nbytes:
            if memory is not None:
                memory.close()
            self._slots.pop(number, None)
            self._slots[number] = memory = Memory.create(nbytes)
        return memory


def _nothing() -> None: ...


def die_of(failure: threading.ExceptHookArgs) -> None:
    """Exit on an uncaught exception in a thread: a writer without its saving thread would look
    alive for ever; a dead one is replaced.
    """
    threading.__excepthook__(failure)
    os._exit(1)
