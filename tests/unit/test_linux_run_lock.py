"""One supervisor per run directory, by a lock that dies with its holder."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from ecrl_cli.errors import RunHeld, StorageError
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.supervision.run_lock import run_lock


def hold_in_child(layout: RunLayout) -> int:
    """A child that holds the lock until it is killed."""
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with run_lock(layout) as lock:
            lock.note(3)
            os.write(ready_write, b"r")
            signal.pause()
    os.close(ready_write)
    assert os.read(ready_read, 1) == b"r"
    os.close(ready_read)
    return pid


def test_the_second_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    pid = hold_in_child(layout)
    try:
        with (
            pytest.raises(RunHeld, match=f"held by pid {pid} on .*, attempt 3") as refused,
            run_lock(layout),
        ):
            pass
        assert refused.value.exit_code == 8
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_killed_holder_holds_nothing_whatever_its_file_says(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    pid = hold_in_child(layout)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with run_lock(layout):
        pass
    layout.lock.write_text("not json")
    with run_lock(layout):
        pass


def test_of_many_that_start_at_once_exactly_one_holds(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    go_read, go_write = os.pipe()
    told_read, told_write = os.pipe()
    children = []
    for _ in range(6):
        pid = os.fork()
        if pid == 0:
            os.close(go_write)
            os.read(go_read, 1)
            try:
                with run_lock(layout):
                    os.write(told_write, b"1")
                    signal.pause()
            except RunHeld:
                os.write(told_write, b"0")
            os._exit(0)
        children.append(pid)
    os.close(go_write)
    told = b"".join(os.read(told_read, 1) for _ in children)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for fd in (go_read, told_read, told_write):
        os.close(fd)
    assert sorted(told) == sorted(b"000001")


def test_who_lets_go_leaves_it_to_the_next(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    for _ in range(2):
        with run_lock(layout), pytest.raises(RunHeld), run_lock(layout):
            pass


def test_a_shorter_note_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    with run_lock(layout) as lock:
        lock.note(123456789)
        lock.note(1)
        said = json.loads(layout.lock.read_text())
        assert (said["pid"], said["attempt"]) == (os.getpid(), 1)
        with (
            pytest.raises(RunHeld, match=f"held by pid {os.getpid()} on .*, attempt 1;") as refused,
            run_lock(layout),
        ):
            pass
        assert "attempt 1" in str(refused.value.line())
    assert layout.lock.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_only_a_plain_file_is_a_lock(tmp_path: Path, kind: str) -> None:
    """A link would lock, and write into, what it leads to."""
    layout, target = RunLayout(tmp_path / "run"), tmp_path / "target"
    layout.root.mkdir()
    target.write_text("kept")
    if kind == "link":
        layout.lock.symlink_to(target)
    else:
        os.mkfifo(layout.lock)
    with pytest.raises(StorageError), run_lock(layout):
        pass
    assert target.read_text() == "kept"


@pytest.mark.parametrize(
    "said",
    [
        "[]",
        '{"pid": 1}',
        '{"pid": "x", "host": "h", "attempt": null}',
        '{"pid": 1, "host": "a\\u001bb", "attempt": null}',
    ],
)
def test_what_the_holder_says_of_itself_is_believed_only_where_it_can_be(
    tmp_path: Path, said: str
) -> None:
    layout = RunLayout(tmp_path)
    with run_lock(layout):
        layout.lock.write_text(said)
        with pytest.raises(RunHeld, match="held by another supervisor"), run_lock(layout):
            pass
