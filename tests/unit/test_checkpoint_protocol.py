"""The connection between rank 0 and the writer: whole messages in order, descriptors with theirs,
deep paths, no slot granted twice.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.format.image import decode_parts, encode_parts
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.store.synthetic import synthetic_plan
from ecrl_cli.checkpoint.writer.protocol import Channel
from ecrl_cli.checkpoint.writer.server import UNCONFIRMED, Writer, WriterConnection
from ecrl_cli.linux.unix_socket import connect, listen
from ecrl_cli.records.layout import RunLayout
from tests.open_files import open_files


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = (Channel(end) for end in socket.socketpair())
    yield left, right
    left.close()
    right.close()


def test_a_message_in_pieces_is_no_message_yet_and_no_end(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    assert right.receive(wait=False) == []
    left.socket.sendall(b'{"a":1}\n{"b"')
    assert right.receive(wait=False) == [{"a": 1}]
    assert right.receive(wait=False) == []
    left.socket.sendall(b":2")
    assert right.receive(wait=False) == []
    left.socket.sendall(b"}\n")
    assert right.receive(wait=True) == [{"b": 2}]
    left.shutdown()
    assert right.receive(wait=False) is None


def test_what_was_sent_before_the_end_is_still_read(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send({"last": True})
    left.socket.close()
    assert right.receive(wait=False) == [{"last": True}]
    assert right.receive(wait=False) is None


def test_a_connection_that_was_reset_is_a_closed_one(ends: tuple[Channel, Channel]) -> None:
    """As the kernel tells it where the other end closed without reading what was sent to it."""
    left, right = ends
    left.send({"unread": True})
    right.socket.close()
    assert left.receive(wait=True) is None


def test_descriptors_come_in_the_order_of_their_messages(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    memories = [Memory.create(4096 * size) for size in (1, 2, 3)]
    for memory in memories:
        left.send({"nbytes": memory.nbytes}, memory.fd)
    received: list[dict[str, int]] = []
    while len(received) < 3:
        received += right.receive(wait=True) or []
    for message, memory in zip(received, memories, strict=True):
        shared = Memory(right.take_fd(), message["nbytes"])
        memory.view[:4] = b"ecrl"
        assert shared.nbytes == memory.nbytes and bytes(shared.view[:4]) == b"ecrl"
        shared.close()
        memory.close()


def test_the_socket_may_lie_deep(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40) / ("name" * 40)
    folder.mkdir(parents=True)
    with listen(folder / ".writer") as listener:
        channel = Channel(connect(folder / ".writer"))
        channel.send({"kind": "drain"})
        served = Channel(listener.accept()[0])
        assert served.receive(wait=True) == [{"kind": "drain"}]
        served.close()
        channel.close()
    with pytest.raises(OSError):
        connect(folder / ".writer")
    listen(folder / ".writer").close()  # a dead writer's name is no obstacle


def test_the_table_of_parts_survives_the_journey() -> None:
    parts = synthetic_plan(4000, 4000).parts
    assert decode_parts(json.loads(json.dumps(encode_parts(parts)))) == parts


def test_a_slot_is_never_granted_twice(tmp_path: Path, ends: tuple[Channel, Channel]) -> None:
    """A save that ends while a new connection is being provided for must not hand out the slot a
    second time.
    """
    left, right = ends
    store = CheckpointStore(tmp_path / "checkpoints")
    with listen(tmp_path / ".writer") as listener:
        writer, client = Writer(RunLayout(tmp_path), store, listener), WriterConnection(left)
        client.nbytes, client.slots = 4096, 2
        writer._current = client
        writer._provide_all(client)
        writer._provide(client, 0)
        writer._provide_all(client)
    granted: list[int] = []
    while messages := right.receive(wait=False):
        granted += [message["slot"] for message in messages]
    assert sorted(granted) == [0, 1]
    for _ in granted:
        os.close(right.take_fd())
    store.close()


@pytest.mark.parametrize(("number", "granted"), [(0, [0]), (1, [])])
def test_a_buffer_of_an_earlier_connection_serves_the_next_one_up_to_as_many_as_it_asked_for(
    tmp_path: Path, ends: tuple[Channel, Channel], number: int, granted: list[int]
) -> None:
    left, right = ends
    store, gone = (
        CheckpointStore(tmp_path / "checkpoints"),
        SimpleNamespace(tell=lambda message: None),
    )
    gone.log = SimpleNamespace(failed=lambda step, error: None, failure="it")
    with listen(tmp_path / ".writer") as listener:
        writer, client = Writer(RunLayout(tmp_path), store, listener), WriterConnection(left)
        client.nbytes, client.slots = 4096, 1
        writer._current, writer._busy = client, {number: cast("Any", "its memory")}
        writer._save(
            cast("Any", gone),
            number,
            cast("Any", SimpleNamespace(stamp=SimpleNamespace(global_step=6))),
            None,
            "it ended",
        )
    assert [message["slot"] for message in right.receive(wait=False) or []] == granted
    for _ in granted:
        os.close(right.take_fd())
    store.close()


def test_memory_that_is_of_another_size_is_replaced(
    tmp_path: Path, ends: tuple[Channel, Channel]
) -> None:
    """Larger or smaller: the one who saves maps as many bytes as its state has."""
    left, right = ends
    before = open_files("/memfd:ecrl-slot")
    store = CheckpointStore(tmp_path / "checkpoints")
    with listen(tmp_path / ".writer") as listener:
        writer = Writer(RunLayout(tmp_path), store, listener)
        granted = []
        for nbytes in (8192, 8192, 4096, 8192):
            client = WriterConnection(left)
            client.nbytes, client.slots = nbytes, 1
            writer._current = client
            writer._provide_all(client)
            granted += right.receive(wait=False) or []
            received = os.fstat(fd := right.take_fd())
            granted[-1]["file"] = (received.st_size, received.st_ino)
            os.close(fd)
            assert len({inode for _, _, inode in open_files("/memfd:ecrl-slot") - before}) == 1, (
                "what was replaced is given back"
            )
    assert [(message["nbytes"], message["file"][0]) for message in granted] == [
        (8192, 8192),
        (8192, 8192),
        (4096, 4096),
        (8192, 8192),
    ]
    assert granted[0]["file"] == granted[1]["file"] != granted[3]["file"]
    store.close()


def test_draining_reads_out_connections_that_were_closed_and_refuses_what_they_left(
    tmp_path: Path, ends: tuple[Channel, Channel]
) -> None:
    left, right = ends
    store, told, asked = (
        CheckpointStore(tmp_path / "checkpoints"),
        list[str](),
        list[dict[str, object]](),
    )
    with listen(tmp_path / ".writer") as listener:
        writer, client = Writer(RunLayout(tmp_path), store, listener), WriterConnection(left)
        writer._selector.register(left.socket, selectors.EVENT_READ, client)
        client.unconfirmed = [told.append, told.append]
        right.send({"kind": "confirmed", "changed": "parameters.w"})
        right.shutdown()
        asking = WriterConnection(left)
        asking.tell = lambda message, fd=None: asked.append(message)  # type: ignore[method-assign]
        writer._drain(asking, {"kind": "drain"})
        assert (
            told
            == ["parameters.w was changed outside of the optimizer's step while it was copied"] * 2
        )
        assert left.socket not in {key.fileobj for key in writer._selector.get_map().values()}
        client.unconfirmed = [told.append]
        client.resolve_unconfirmed(UNCONFIRMED)
        client.resolve_unconfirmed(UNCONFIRMED)
        assert told[2:] == [UNCONFIRMED], "each save is settled once"
        while not writer._jobs.empty():
            writer._jobs.get()()
        assert asked == [{"kind": "drained"}]
    store.close()
