"""The file system in memory answers as the real one does, and forgets what a failed sync loses."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import CREATE, FOLDER, READ, Fs, PosixFs
from ecrl_cli.storage.memory_fs import Link, ModelFs
from ecrl_cli.storage.safe_read import open_regular, read_small
from ecrl_cli.storage.writing import WriteMode, ready_to_link, replace_small, write_new

MOUNT = Path("/run")

FLAGS = [
    CREATE,
    READ,
    FOLDER,
    os.O_RDONLY,
    os.O_WRONLY,
    os.O_WRONLY | os.O_CREAT,
    os.O_WRONLY | os.O_TRUNC,
    os.O_RDWR,
    os.O_RDONLY | os.O_CREAT,
]
paths = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join)
links = st.sampled_from(["a", "b", "a/b", "c/a", "missing", "/nowhere/away"])
handles = st.integers(0, 3)
steps = st.one_of(
    st.tuples(st.just("mkdir"), paths),
    st.tuples(st.just("open"), paths, st.sampled_from(FLAGS)),
    st.tuples(st.just("open_at"), handles, st.sampled_from(["a", "b"]), st.sampled_from(FLAGS)),
    st.tuples(st.just("write"), handles, st.binary(max_size=6)),
    st.tuples(st.just("read"), handles, st.integers(0, 8), st.integers(0, 8)),
    st.tuples(st.just("fsync"), handles),
    st.tuples(st.just("fsyncdir"), paths),
    st.tuples(st.just("close"), handles),
    st.tuples(st.just("rename"), paths, paths, st.booleans()),
    st.tuples(st.just("symlink"), links, paths),
    st.tuples(st.just("unlink"), paths),
    st.tuples(st.just("rmdir"), paths),
    st.tuples(st.just("listdir"), paths),
    st.tuples(st.just("stat"), paths),
    st.tuples(st.just("fstat"), handles),
)


class Player:
    """Plays a program on one back end; `fds` are the descriptors in the order in which they
    came.
    """

    def __init__(self, fs: Fs, root: Path) -> None:
        self.fs, self.root, self.fds = fs, root, list[int]()

    def play(self, step: tuple[Any, ...]) -> object:
        """What the step gave: a value, or the errno."""
        name, *arguments = step
        if name in ("open_at", "write", "read", "fsync", "close", "fstat") and arguments[0] >= len(
            self.fds
        ):
            return "no such handle"
        try:
            found = getattr(self, f"_{name}", self._plain(name))(*arguments)
        except StorageError as error:
            return ("refused", error.errno)
        return found

    def _plain(self, name: str) -> Callable[..., object]:
        return lambda path: getattr(self.fs, name)(self.root / path)

    def _open(self, path: str, flags: int) -> None:
        self.fds.append(self.fs.open(self.root / path, flags))

    def _open_at(self, handle: int, name: str, flags: int) -> None:
        self.fds.append(self.fs.open_at(self.fds[handle], name, flags))

    def _write(self, handle: int, data: bytes) -> int:
        return self.fs.write(self.fds[handle], data)

    def _read(self, handle: int, size: int, offset: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.fs.read_at(self.fds[handle], memoryview(buffer), offset)])

    def _fsync(self, handle: int) -> None:
        self.fs.fsync(self.fds[handle])

    def _close(self, handle: int) -> None:
        self.fs.close(self.fds.pop(handle))

    def _rename(self, source: str, target: str, replace: bool) -> None:
        self.fs.rename(self.root / source, self.root / target, replace=replace)

    def _symlink(self, target: str, path: str) -> None:
        self.fs.symlink(target, self.root / path)

    def _stat(self, path: str) -> tuple[int, int]:
        return facts(self.fs.stat(self.root / path))

    def _fstat(self, handle: int) -> tuple[int, int]:
        return facts(self.fs.fstat(self.fds[handle]))


def facts(found: os.stat_result) -> tuple[int, int]:
    return stat.S_IFMT(found.st_mode), 0 if stat.S_ISDIR(found.st_mode) else found.st_size


def tree(fs: Fs, path: Path) -> object:
    """Everything below `path`, by the seam alone."""
    kind = stat.S_IFMT(fs.stat(path).st_mode)
    if kind == stat.S_IFDIR:
        return {name: tree(fs, path / name) for name in fs.listdir(path)}
    if kind == stat.S_IFLNK:
        return "link"
    fd = fs.open(path, READ)
    try:
        return read_small(fs, fd, fs.fstat(fd).st_size, 1000)
    finally:
        fs.close(fd)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=25))
@example([("symlink", "a", "b"), ("open", "b", os.O_WRONLY | os.O_CREAT), ("listdir", "a")])
@example(
    [
        ("mkdir", "a"),
        ("mkdir", "a/b"),
        ("rename", "a", "a/b/c", False),
        ("rename", "a/b", "a", True),
        ("rmdir", "a"),
    ]
)
@example(
    [
        ("symlink", "a", "a"),
        ("open", "a", READ),
        ("open", "a/b", READ),
        ("open", "a", FOLDER),
        ("stat", "a"),
        ("fsyncdir", "a"),
        ("listdir", "a"),
    ]
)
@example(
    [
        ("open", "a", CREATE),
        ("write", 0, b"xy"),
        ("rename", "a", "b", True),
        ("write", 0, b"z"),
        ("open", "b", CREATE),
        ("unlink", "b"),
        ("read", 0, 2, 0),
    ]
)
@example(
    [
        ("mkdir", "a"),
        ("open", "b", CREATE),
        ("rename", "a", "b", True),
        ("rename", "b", "a", True),
        ("rename", "b", "a", False),
        ("unlink", "a"),
    ]
)
@example(
    [
        ("mkdir", "a"),
        ("symlink", "a", "b"),
        ("open", "b/c", CREATE),
        ("open", "b", FOLDER),
        ("listdir", "b"),
        ("rename", "a/c", "b/c", True),
    ]
)
def test_any_program_has_the_same_results_and_the_same_end_on_both_back_ends(
    program: list[tuple[Any, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        real, model = Player(PosixFs(), Path(folder)), Player(ModelFs(MOUNT), MOUNT)
        try:
            for number, step in enumerate(program):
                assert (number, step, model.play(step)) == (number, step, real.play(step))
            assert tree(model.fs, MOUNT) == tree(real.fs, Path(folder))
        finally:
            for fd in real.fds:
                os.close(fd)


@pytest.mark.parametrize("mode", [WriteMode(), WriteMode(sync_files=False)])
def test_it_carries_all_that_the_store_asks_of_a_file_system(mode: WriteMode) -> None:
    fs = ModelFs(MOUNT)
    write_new(fs, MOUNT / "part", b"x" * 9000, mode)
    replace_small(fs, MOUNT / "latest.json", b"{}", mode)
    with ready_to_link(fs, MOUNT / "latest_ok", "part"):
        pass
    folder = fs.open(MOUNT, FOLDER)
    fd, size = open_regular(fs, folder, "part", trust_owner=False)
    assert read_small(fs, fd, size, 9000) == b"x" * 9000
    assert fs.listdir(MOUNT) == ["latest.json", "latest_ok", "part"]
    assert [op.kind for op in fs.log].count("fsync") == (2 if mode.sync_files else 0)


def test_a_failed_fsync_says_so_and_drops_what_was_not_durable() -> None:
    fs = ModelFs(MOUNT, {"part": b"old"})
    fd = fs.open(MOUNT / "part", os.O_RDWR)
    fs.write(fd, b"new, longer")
    fs.refuse_sync = errno.EIO
    with pytest.raises(StorageError, match="EIO"):
        fs.fsync(fd)
    fs.fsync(fd)  # a second one succeeds, and has nothing to save
    assert tree(fs, MOUNT) == {"part": b"old"}
    assert [op.kind for op in fs.log] == ["write", "drop", "fsync"]


def test_a_tree_to_begin_with_is_durable_and_is_what_is_seen() -> None:
    fs = ModelFs(MOUNT, {"checkpoints": {"step": b"abc", "latest_ok": Link("step")}})
    assert tree(fs, MOUNT) == {"checkpoints": {"step": b"abc", "latest_ok": "link"}}
    assert fs.log == []
    fs.mkdir(MOUNT / "new")
    assert [op.kind for op in fs.log] == ["mkdir"]
