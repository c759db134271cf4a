"""The background writer as a process: it finishes what it received, accounts for everything, and
serves one attempt after another.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.format.image import CheckpointImage, ImagePlan, encode_parts
from ecrl_cli.checkpoint.format.manifest import components
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.store.synthetic import image_components, synthetic_image, synthetic_plan
from ecrl_cli.checkpoint.writer.protocol import Channel
from ecrl_cli.config.codec import encode
from ecrl_cli.config.identity import run_id
from ecrl_cli.config.schema import CheckpointConfig, RunConfig
from ecrl_cli.linux.unix_socket import connect, listen
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import write_run_config
from tests.unit.checkpoint_support import writer_process

CONFIG = replace(
    RunConfig(), checkpoint=CheckpointConfig(strategy="overlapped", max_inflight=2, keep=2)
)


class Rank:
    """Rank 0 without torch: speaks the protocol, copies synthetic images into slots."""

    def __init__(
        self, layout: RunLayout, attempt: int = 0, slots: int = 2, plan: ImagePlan | None = None
    ) -> None:
        self.channel = Channel(connect(layout.writer))
        self.channel.socket.settimeout(180)
        self.plan = plan or synthetic_plan(40_000, 20_000)
        self.memory: dict[int, Memory] = {}
        self.waiting: list[dict[str, Any]] = []
        message = {
            "kind": "open",
            "attempt": attempt,
            "nbytes": self.plan.nbytes,
            "slots": slots,
            "parts": encode_parts(self.plan.parts),
        }
        self.channel.send(message)

    def expect(self, kind: str) -> dict[str, Any]:
        while True:
            for message in self.waiting:
                if message["kind"] == kind:
                    self.waiting.remove(message)
                    return message
            received = self.channel.receive(wait=True)
            assert received is not None, f"the writer went before it said {kind}"
            for message in received:
                if message.get("memory"):
                    self.memory[message["slot"]] = Memory(self.channel.take_fd(), message["nbytes"])
            self.waiting += received

    def submit(self, step: int) -> CheckpointImage:
        """Fill a granted slot and hand it over; gives the image whose content must come to lie on
        disk.
        """
        image = synthetic_image(1, step, self.plan, run_id(CONFIG))
        slot = self.expect("grant")["slot"]
        self.memory[slot].view[: len(image.memory)] = image.memory
        parts = [[part.name, part.offset, part.nbytes] for part in image.parts]
        documents = {name: data.decode() for name, data in image.documents.items()}
        self.channel.send(
            {
                "kind": "save",
                "slot": slot,
                "stamp": encode(image.stamp),
                "parts": parts,
                "documents": documents,
            }
        )
        return image

    def drain(self) -> None:
        self.channel.send({"kind": "drain"})
        self.expect("drained")

    def die(self) -> None:
        """What the kernel does to the connection of a killed process."""
        self.channel.close()
        for memory in self.memory.values():
            memory.close()


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    made = RunLayout(tmp_path)
    write_run_config(made, CONFIG)
    return made


@pytest.fixture
def writer(layout: RunLayout) -> Iterator[subprocess.Popen[bytes]]:
    with writer_process(layout) as process:
        yield process


def events(layout: RunLayout, attempt: int = 0) -> list[tuple[str, int]]:
    return [
        (line.event, line.global_step)
        for line in read_journal(layout.attempt(attempt).checkpoints, CheckpointLine).events
    ]


def drained(layout: RunLayout) -> None:
    """Ask on a connection of our own, as the supervisor does."""
    channel = Channel(connect(layout.writer))
    channel.socket.settimeout(180)
    channel.send({"kind": "drain"})
    assert channel.receive(wait=True) == [{"kind": "drained"}]
    channel.close()


def test_what_is_submitted_comes_to_lie_on_disk_and_on_record(
    layout: RunLayout, writer: subprocess.Popen[bytes]
) -> None:
    rank = Rank(layout)
    images = [rank.submit(step) for step in (10, 20, 30)]
    assert [rank.expect("ended")["global_step"] for _ in images] == [10, 20, 30]
    assert [e for e in events(layout) if e[0] == "received"] == [
        ("received", 10),
        ("received", 20),
        ("received", 30),
    ]
    assert [e for e in events(layout) if e[0] == "committed"] == [
        ("committed", 10),
        ("committed", 20),
        ("committed", 30),
    ]
    assert ("retired", 10) in events(layout)
    report = CheckpointStore(layout.checkpoints).newest_valid().report
    assert report is not None and report.manifest is not None and report.global_step == 30
    assert components(report.manifest) == image_components(images[-1])
    line = next(
        line
        for line in read_journal(layout.attempt(0).checkpoints, CheckpointLine).events
        if line.event == "committed"
    )
    assert (
        line.path == "checkpoints/step_00000010"
        and line.bytes == images[0].nbytes
        and line.write_s > 0
    )
    rank.die()


def test_it_finishes_what_it_received_after_the_rank_has_died(
    layout: RunLayout, writer: subprocess.Popen[bytes]
) -> None:
    """The messages may still lie unread in the socket when the rank dies: what arrived is
    received.
    """
    rank = Rank(layout)
    rank.waiting.append(rank.expect("grant"))
    os.kill(writer.pid, signal.SIGSTOP)
    image = rank.submit(10)
    rank.die()
    os.kill(writer.pid, signal.SIGCONT)
    drained(layout)
    assert events(layout) == [("received", 10), ("committed", 10)]
    report = CheckpointStore(layout.checkpoints).reconcile(10, 0)
    assert (
        report is not None
        and report.manifest is not None
        and components(report.manifest) == image_components(image)
    )


def test_a_rank_that_dies_with_a_slot_in_its_hands_loses_only_that(
    layout: RunLayout, writer: subprocess.Popen[bytes]
) -> None:
    rank = Rank(layout)
    rank.submit(10)
    rank.expect("grant")
    rank.die()
    following = Rank(layout, attempt=1)
    following.submit(20)
    following.submit(30)
    following.drain()
    assert events(layout) == [("received", 10), ("committed", 10)]
    assert [e for e in events(layout, 1) if e[0] == "committed"] == [
        ("committed", 20),
        ("committed", 30),
    ]
    following.die()


def test_memory_is_made_once_and_serves_the_next_attempt(
    layout: RunLayout, writer: subprocess.Popen[bytes]
) -> None:
    first = Rank(layout)
    first.expect("grant"), first.expect("grant")
    before = {os.fstat(memory.fd).st_ino for memory in first.memory.values()}
    first.die()
    second = Rank(layout, attempt=1)
    second.expect("grant"), second.expect("grant")
    assert {os.fstat(memory.fd).st_ino for memory in second.memory.values()} == before
    second.die()
    larger = Rank(layout, attempt=2, plan=synthetic_plan(400_000, 20_000))
    larger.submit(10)
    larger.drain()
    assert ("committed", 10) in events(layout, 2)
    larger.die()


def test_no_more_than_the_slots_are_in_flight(
    layout: RunLayout, writer: subprocess.Popen[bytes]
) -> None:
    """Backpressure: the next grant comes only when a save has ended."""
    rank = Rank(layout, slots=1)
    for step in (10, 20, 30):
        rank.submit(step)
    rank.drain()
    ends = events(layout)
    assert [e for e in ends if e[0] in ("received", "committed")] == [
        (w, s) for s in (10, 20, 30) for w in ("received", "committed")
    ]
    rank.die()


def test_a_slot_is_granted_again_only_when_its_end_was_told(
    layout: RunLayout, writer: subprocess.Popen[bytes]
) -> None:
    """Who takes a slot counts what is in flight: the save that had it before must not be among
    them.
    """
    rank = Rank(layout, slots=1)
    rank.submit(10)
    rank.drain()
    assert [message["kind"] for message in rank.waiting] == ["ended", "grant"]
    rank.die()


def test_a_failed_write_is_on_record_with_its_errno_and_the_next_one_works(
    layout: RunLayout, writer: subprocess.Popen[bytes]
) -> None:
    rank = Rank(layout)
    rank.submit(10)
    rank.drain()
    block = layout.checkpoints / "step_00000020"
    layout.checkpoints.rename(layout.checkpoints.with_name("away"))
    rank.submit(20)
    rank.drain()
    layout.checkpoints.with_name("away").rename(layout.checkpoints)
    rank.submit(30)
    rank.drain()
    assert [e for e in events(layout) if e[0] in ("committed", "failed")] == [
        ("committed", 10),
        ("failed", 20),
        ("committed", 30),
    ]
    failed = next(
        line
        for line in read_journal(layout.attempt(0).checkpoints, CheckpointLine).events
        if line.event == "failed"
    )
    assert failed.reason is not None and "ENOENT" in failed.reason
    assert not block.exists()
    rank.die()


def test_a_rank_of_an_older_attempt_is_told_that_it_is_fenced(
    layout: RunLayout, writer: subprocess.Popen[bytes]
) -> None:
    store = CheckpointStore(layout.checkpoints)
    store.claim(5)
    rank = Rank(layout, attempt=4)
    assert rank.expect("refused")["code"] == "fenced"
    rank.submit(10)
    rank.drain()
    assert [e for e in events(layout, 4) if e[0] != "received"] == [("failed", 10)]
    assert store.entries() == []
    rank.die()


def test_it_dies_with_the_one_who_started_it(layout: RunLayout, tmp_path: Path) -> None:
    code = (
        "import sys, os, signal; from pathlib import Path; from ecrl_cli.records.layout import"
        " RunLayout\nfrom tests.unit.checkpoint_support import writer_process\nfrom"
        " tests.unit.test_checkpoint_server import Rank\nlayout ="
        f" RunLayout(Path({str(tmp_path)!r}))\nwith writer_process(layout) as process:\n   "
        " Rank(layout).expect('grant')\n    print(process.pid, flush=True)\n   "
        " os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    try:
        descriptor = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    assert select.select([descriptor], [], [], 30)[0], "the writer outlives the one who started it"
    os.close(descriptor)


FULL_DISK = """
import errno, sys, threading
from ecrl_cli.checkpoint.store import checkpoint_log, store
from ecrl_cli.errors import StorageError
from ecrl_cli.supervision.launch import writer_main

full = threading.Event()
save, write = store.CheckpointStore.save, checkpoint_log.CheckpointLog.write

def save_when_full(self, image, attempt):
    full.wait()
    return save(self, image, attempt)

def refuse_one(self, event, step, **values):
    if (event, step) == ("received", 20):
        full.set()
        raise StorageError.of("append", "the journal", OSError(errno.ENOSPC, "full"))
    write(self, event, step, **values)

store.CheckpointStore.save, checkpoint_log.CheckpointLog.write = save_when_full, refuse_one
writer_main.main(sys.argv[1:])
"""


def test_it_finishes_what_it_received_before_it_dies_of_a_line_that_does_not_fit(
    layout: RunLayout,
) -> None:
    layout.logs.mkdir()
    with listen(layout.writer) as listener:
        command = [sys.executable, "-c", FULL_DISK, str(layout.root), str(listener.fileno())]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, pass_fds=[listener.fileno()])
    rank = Rank(layout)
    for step in (10, 20):
        rank.submit(step)
    assert process.wait(180) == 1
    rank.die()
    assert events(layout) == [("received", 10), ("committed", 10)]


def test_a_defect_in_a_thread_ends_the_process_so_that_nobody_waits_for_ever(
    tmp_path: Path,
) -> None:
    code = (
        "import threading\n"
        "from ecrl_cli.checkpoint.writer import server\n"
        "threading.excepthook = server.die_of\n"
        "thread = threading.Thread(target=lambda: 1 / 0)\n"
        "thread.start()\n"
        "thread.join()\n"
        "threading.Event().wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
