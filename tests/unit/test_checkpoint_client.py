"""Rank 0's end of the connection to the background writer: refusals, a writer that has ended,
messages that cannot be understood.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.writer.client import WriterClient, WriterGone
from ecrl_cli.checkpoint.writer.protocol import Channel
from ecrl_cli.errors import EcrlError, Fenced, StorageError
from ecrl_cli.linux.unix_socket import listen
from ecrl_cli.records.layout import RunLayout
from tests.conftest import comes_true
from tests.unit.checkpoint_support import image


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path / "run")


@contextmanager
def connected(layout: RunLayout) -> Iterator[tuple[WriterClient, Channel]]:
    """A client, and the writer's end of its connection."""
    layout.logs.mkdir(parents=True, exist_ok=True)
    with listen(layout.writer) as listener:
        client = WriterClient(layout, lambda memory: memory)  # type: ignore[arg-type, return-value]
        channel = Channel(listener.accept()[0])
    try:
        yield client, channel
    finally:
        channel.close()
        client.close()


def received(writer: Channel, count: int) -> list[Any]:
    """The next messages."""
    found = list[Any]()
    while len(found) < count:
        found += writer.receive(wait=True) or []
    return found


def test_where_nobody_listens_there_is_no_writer(layout: RunLayout) -> None:
    with pytest.raises(WriterGone, match="no writer at"):
        WriterClient(layout, lambda memory: None)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("code", "kind"), [(Fenced.code, Fenced), (StorageError.code, StorageError), ("", StorageError)]
)
def test_why_nothing_can_be_saved_is_raised_where_a_buffer_is_waited_for(
    layout: RunLayout, code: str, kind: type[EcrlError]
) -> None:
    with connected(layout) as (client, writer):
        writer.send(
            {"kind": "refused", "code": code, "key": "k", "fact": "the fact", "remedy": "r"}
        )
        with pytest.raises(kind, match="the fact") as error:
            client.take()
        assert type(error.value) is kind
        with pytest.raises(kind, match="the fact"):
            client.wait_idle()


def test_a_writer_that_has_ended_is_gone_for_all_that_wait(layout: RunLayout) -> None:
    with connected(layout) as (client, writer):
        writer.socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(WriterGone, match="the background writer has ended"):
            client.take()
        assert client.gone
        client.wait_idle()  # nothing was in flight
        with pytest.raises(WriterGone, match="the background writer has ended"):
            for _ in range(3):
                client.submit(0, image(6))


def test_a_refusal_is_no_end_of_the_writer(layout: RunLayout) -> None:
    with connected(layout) as (client, writer):
        writer.send(
            {
                "kind": "refused",
                "code": StorageError.code,
                "key": "k",
                "fact": "the fact",
                "remedy": "r",
            }
        )
        with pytest.raises(StorageError):
            client.take()
        assert not client.gone
        writer.socket.shutdown(socket.SHUT_RDWR)
        assert comes_true(lambda: client.gone)


def test_a_buffer_of_a_writer_that_has_ended_is_not_taken(layout: RunLayout) -> None:
    memory = Memory.create(4096)
    with connected(layout) as (client, writer):
        writer.send({"kind": "grant", "slot": 0, "nbytes": 4096, "memory": True}, memory.fd)
        assert client.take()[0] == 0
        writer.send({"kind": "grant", "slot": 0, "nbytes": 4096, "memory": False})
        writer.socket.shutdown(socket.SHUT_RDWR)
        assert comes_true(lambda: client.gone)
        with pytest.raises(WriterGone):
            client.take()
    memory.close()


def test_a_save_is_in_flight_until_its_end_is_told(layout: RunLayout) -> None:
    with connected(layout) as (client, writer):
        for number in range(2):
            client.submit(number, image(6))
        assert client.in_flight == 2 and client.failure == ""
        for failure in ("", "step 6 was not saved"):
            writer.send({"kind": "ended", "global_step": 6, "failure": failure})
        client.wait_idle()
        assert (
            client.in_flight == 0 and client.failure == "step 6 was not saved" and not client.gone
        )


def test_the_shared_state_may_change_when_all_copies_are_told(layout: RunLayout) -> None:
    with connected(layout) as (client, writer):
        assert not client.uncopied and not client.unconfirmed
        client.submit(0, image(6))
        assert not client.uncopied and not client.unconfirmed, "nothing of it is left to the writer"
        client.submit(1, replace(image(6), state_digest="ab"), changes=0)
        assert client.uncopied and not client.unconfirmed, "the digest confirms it"
        client.submit(0, image(6), changes=4)
        client.submit(1, image(6))
        assert client.uncopied and client.unconfirmed
        beaten = list[int]()

        def beat() -> None:
            beaten.append(len(beaten))
            if len(beaten) in (2, 4):
                writer.send({"kind": "copied"})

        client.wait_copied(beat, 0.001)
        assert (
            len(beaten) >= 4
            and not client.uncopied
            and client.unconfirmed
            and client.in_flight == 4
        )
        client.wait_copied(beat, 1e6)
        client.confirm("parameters.a")
        assert not client.unconfirmed
        said = received(writer, 5)
        assert [message.get("changes") for message in said] == [None, 0, 4, None, None]
        assert [message.get("state_digest") for message in said] == ["", "ab", "", "", None]
        assert said[-1] == {"kind": "confirmed", "changed": "parameters.a"} and [
            message.get("slot") for message in said[:4]
        ] == [0, 1, 0, 1]


def test_nothing_is_copied_out_by_a_writer_that_has_ended(layout: RunLayout) -> None:
    with connected(layout) as (client, writer):
        client.submit(0, image(6), changes=1)
        writer.socket.shutdown(socket.SHUT_RDWR)
        client.wait_copied(lambda: None, 60.0)
        assert client.gone and not client.uncopied and not client.unconfirmed
        with pytest.raises(WriterGone):
            client.wait_idle()


def test_a_message_that_cannot_be_understood_is_told_to_who_waits(layout: RunLayout) -> None:
    with connected(layout) as (client, writer):
        writer.send({"kind": "ended"})
        with pytest.raises(StorageError, match="KeyError: 'failure'"):
            client.take()


def test_a_buffer_whose_memory_did_not_arrive_is_told(layout: RunLayout) -> None:
    with connected(layout) as (client, writer):
        writer.send({"kind": "grant", "slot": 0, "nbytes": 4096, "memory": True})
        with pytest.raises(StorageError, match="too many open files"):
            client.take()


def test_who_waits_for_a_message_waits_for_the_whole_of_it() -> None:
    left, right = (Channel(end) for end in socket.socketpair())
    received: list[Any] = []
    left.socket.sendall(b'{"a":')
    thread = threading.Thread(target=lambda: received.append(right.receive(wait=True)))
    thread.start()
    left.socket.sendall(b"1}\n")
    thread.join()
    assert received == [[{"a": 1}]]
    left.close()
    right.close()
