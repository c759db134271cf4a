"""Rank 0's connection to the background writer: it receives staging buffers as they become free and
submits images by buffer number.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ecrl_cli.checkpoint.capture.live_state import LivePlace, encode_places
from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.capture.staging_buffer import StagingBuffer
from ecrl_cli.checkpoint.format.image import CheckpointImage, PartPlace, encode_parts
from ecrl_cli.checkpoint.writer.protocol import Channel
from ecrl_cli.config.codec import encode
from ecrl_cli.errors import EcrlError, Fenced, StorageError
from ecrl_cli.linux.unix_socket import connect
from ecrl_cli.records.layout import RunLayout


class WriterGone(Exception):
    """The writer has ended, or there is none."""


class WriterClient:
    """A receiving thread maps the memory that the writer grants, so that the training thread finds
    staging buffers ready; it waits only if all are in flight (backpressure).
    """

    def __init__(self, layout: RunLayout, make_slot: Callable[[Memory], StagingBuffer]) -> None:
        try:
            self._channel = Channel(connect(layout.writer))
        except OSError as error:
            raise WriterGone(f"no writer at {layout.writer.name} ({error.strerror})") from error
        self._make_slot = make_slot
        self._slots: dict[int, StagingBuffer] = {}
        self._free: deque[int] = deque()
        self._in_flight = 0
        self._uncopied = 0
        self._unconfirmed = False
        self._gone = False
        self._refused: EcrlError | None = None
        self._failure = ""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._receive, name="writer-client", daemon=True)
        self._thread.start()

    def open(self, attempt: int, nbytes: int, slots: int, parts: tuple[PartPlace, ...]) -> None:
        """Request `slots` staging buffers of `nbytes` bytes each, and send the table of parts and
        tensors.
        """
        self._send(
            {
                "kind": "open",
                "attempt": attempt,
                "nbytes": nbytes,
                "slots": slots,
                "parts": encode_parts(parts),
            }
        )

    def share(self, memory: Memory, places: Sequence[LivePlace]) -> None:
        """Give the writer the memory in which the state lies."""
        self._send(
            {"kind": "share", "nbytes": memory.nbytes, "places": encode_places(places)}, memory.fd
        )

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def uncopied(self) -> bool:
        """Whether the writer may still be copying out of the shared state, which must not change
        until then.
        """
        return self._uncopied > 0 and not self._gone

    @property
    def unconfirmed(self) -> bool:
        """Whether the writer holds a copy of the shared state that it may not save before
        `confirm`.
        """
        return self._unconfirmed and not self._gone

    @property
    def gone(self) -> bool:
        """Whether the writer of this connection has ended; a new writer needs a new connection."""
        return self._gone

    @property
    def failure(self) -> str:
        """The first failed save that the writer has reported over this connection, in words; empty
        if none.
        """
        return self._failure

    def take(self) -> tuple[int, StagingBuffer]:
        """A free staging buffer and its number; waits while there is none. WriterGone if the writer
        has ended.
        """
        with self._changed:
            self._wait(lambda: bool(self._free) and not self._gone)
            number = self._free.popleft()
            return number, self._slots[number]

    def submit(self, number: int, image: CheckpointImage, changes: int | None = None) -> None:
        """Hand the staging buffer over to the writer, which owns it until it grants it again.
        `changes`: the writer has to copy what is shared, as of this count of changes.
        """
        with self._changed:
            self._in_flight += 1
            self._uncopied += changes is not None
        self._unconfirmed = self._unconfirmed or (changes is not None and not image.state_digest)
        parts = [[part.name, part.offset, part.nbytes] for part in image.parts]
        documents = {name: data.decode() for name, data in image.documents.items()}
        message = {
            "kind": "save",
            "slot": number,
            "stamp": encode(image.stamp),
            "parts": parts,
            "documents": documents,
        }
        self._send(message | {"changes": changes, "state_digest": image.state_digest})

    def wait_copied(self, beat: Callable[[], None], every_s: float) -> None:
        """Return when the shared state may change: the writer has copied it, or has ended. `beat`
        is called every `every_s` seconds.
        """
        with self._changed:
            while not self._changed.wait_for(lambda: not self.uncopied, every_s):
                beat()

    def confirm(self, changed: str) -> None:
        """Say of all that was submitted whether the shared state was unchanged while it was copied;
        `changed`: what was not, by name.
        """
        self._unconfirmed = False
        self._send({"kind": "confirmed", "changed": changed})

    def wait_idle(self) -> None:
        """Return when every submitted save has ended. WriterGone if the writer has ended before."""
        with self._changed:
            self._wait(lambda: self._in_flight == 0)

    def close(self) -> None:
        self._channel.shutdown()
        self._thread.join()
        self._channel.close()
        for slot in self._slots.values():
            slot.close()
        self._slots = {}

    def _wait(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: ready() or self._gone or self._refused is not None)
        if self._refused is not None:
            raise self._refused
        if not ready():
            raise WriterGone("the background writer has ended")

    def _send(self, message: dict[str, Any], fd: int | None = None) -> None:
        try:
            self._channel.send(message, fd)
        except OSError as error:
            raise WriterGone(f"the background writer has ended ({error.strerror})") from error

    def _receive(self) -> None:
        try:
            while (messages := self._channel.receive(wait=True)) is not None:
                for message in messages:
                    self._handle(message)
        except EcrlError as error:
            self._refuse(error)
        except OSError:
            pass  # a broken connection is treated like a closed one
        except Exception as error:
            # for instance from CUDA; the training thread must not wait for ever
            self._refuse(StorageError("slot", f"{type(error).__name__}: {error}", "resume the run"))
        finally:
            with self._changed:
                self._gone = True
                self._changed.notify_all()

    def _handle(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "grant":
            self._granted(message)
        elif kind == "copied":
            with self._changed:
                self._uncopied -= 1
                self._changed.notify_all()
        elif kind == "ended":
            with self._changed:
                self._failure = message["failure"]
                self._in_flight -= 1
                self._changed.notify_all()
        elif kind == "refused":
            known = Fenced if message["code"] == Fenced.code else StorageError
            self._refuse(known(message["key"], message["fact"], message["remedy"]))

    def _granted(self, message: dict[str, Any]) -> None:
        number = message["slot"]
        if message["memory"]:
            fd = self._channel.take_fd()
            assert number not in self._slots and os.fstat(fd).st_size == message["nbytes"]
            self._slots[number] = self._make_slot(Memory(fd, message["nbytes"]))
        with self._changed:
            self._free.append(number)
            self._changed.notify_all()

    def _refuse(self, error: EcrlError) -> None:
        with self._changed:
            self._refused = error
            self._changed.notify_all()
