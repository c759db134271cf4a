"""The file-system seam: errors by name, renames that overwrite nothing, writing past the page cache
where it can be.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ecrl_cli.errors import StorageError
from ecrl_cli.storage import writing
from ecrl_cli.storage.fs import CREATE, FOLDER, READ, Buffer, PosixFs
from ecrl_cli.storage.safe_read import RefusedFile, open_regular, pieces, read_small
from ecrl_cli.storage.writing import (
    BLOCK,
    DIRECT_FROM,
    WriteMode,
    half_written,
    ready_to_link,
    replace_small,
    write_new,
)
from tests.recording_fs import RecordingFs

WRITTEN = writing.CHUNK
CHUNK = 8 * 2**20  # of one write here: as for larger files, with less to fill
SIZES = [
    0,
    1,
    BLOCK - 1,
    BLOCK,
    DIRECT_FROM - 1,
    DIRECT_FROM,
    DIRECT_FROM + 1,
    DIRECT_FROM + BLOCK - 1,
    2 * CHUNK + 5 * BLOCK + 17,
]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK", CHUNK)


@pytest.fixture(scope="module")
def aligned() -> Iterator[memoryview]:
    memory = mmap.mmap(-1, 4 * CHUNK)
    memory[:] = os.urandom(len(memory))
    yield memoryview(memory)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("synced", [True, False])
def test_a_file_holds_what_was_written_whatever_its_size(
    tmp_path: Path, aligned: memoryview, size: int, synced: bool
) -> None:
    halves: list[int] = []
    path = tmp_path / "file"
    with half_written(PosixFs(), path, aligned[:size], WriteMode(sync_files=synced)):
        halves.append(path.stat().st_size)
    assert path.read_bytes() == aligned[:size]
    assert len(halves) == 1 and (size < 2 or 0 < halves[0] < size)


def test_memory_that_is_not_aligned_is_written_too(tmp_path: Path, aligned: memoryview) -> None:
    write_new(PosixFs(), tmp_path / "file", aligned[3 : DIRECT_FROM * 2 + 9], WriteMode())
    assert (tmp_path / "file").read_bytes() == aligned[3 : DIRECT_FROM * 2 + 9]


class Picky(RecordingFs):
    """A file system that has direct I/O only in name, and writes short."""

    def __init__(self, short: int = 0) -> None:
        super().__init__()
        self.direct, self.short = False, short

    def set_direct(self, fd: int, on: bool) -> bool:
        self.direct = on
        return True

    def write(self, fd: int, data: Buffer) -> int:
        if self.direct and not self.short:
            raise StorageError.of("write", "file", OSError(errno.EINVAL, "no direct I/O here"))
        return super().write(fd, memoryview(data)[: self.short or None])


@pytest.mark.parametrize("short", [0, 5000])
def test_a_refused_direct_write_and_short_writes_lose_nothing(
    tmp_path: Path, aligned: memoryview, short: int
) -> None:
    fs = Picky(short)
    write_new(fs, tmp_path / "file", aligned[: DIRECT_FROM + 100], WriteMode())
    assert (tmp_path / "file").read_bytes() == aligned[: DIRECT_FROM + 100]
    assert sum(call.size for call in fs.calls if call.name == "write") == DIRECT_FROM + 100


def test_direct_io_is_for_large_synced_files(
    tmp_path: Path, aligned: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(PosixFs, "set_direct", lambda self, fd, on: asked.append(on) or False)
    write_new(PosixFs(), tmp_path / "a", aligned[: DIRECT_FROM - 1], WriteMode())
    write_new(PosixFs(), tmp_path / "b", aligned[: DIRECT_FROM * 2], WriteMode(sync_files=False))
    assert asked == []
    write_new(PosixFs(), tmp_path / "c", aligned[: DIRECT_FROM * 2], WriteMode())
    assert asked == [True]


def test_a_write_that_writes_nothing_is_an_error_not_a_loop(tmp_path: Path) -> None:
    class Stuck(PosixFs):
        def write(self, fd: int, data: Buffer) -> int:
            return 0

    with pytest.raises(StorageError, match="nothing"):
        write_new(Stuck(), tmp_path / "file", b"abc", WriteMode())


def test_a_refusal_names_the_call_the_path_and_the_errno(tmp_path: Path) -> None:
    fs = PosixFs()
    missing = tmp_path / "missing"
    refusals = {
        "open": lambda: fs.open(missing, READ),
        "mkdir": lambda: fs.mkdir(missing / "x"),
        "rename": lambda: fs.rename(missing, tmp_path / "x", replace=False),
        "unlink": lambda: fs.unlink(missing),
        "list": lambda: fs.listdir(missing),
        "stat": lambda: fs.stat(missing),
        "fsync of the directory": lambda: fs.fsyncdir(missing),
    }
    for call, refused in refusals.items():
        with pytest.raises(StorageError) as caught:
            refused()
        assert (
            caught.value.errno == errno.ENOENT
            and caught.value.key == call
            and "ENOENT" in caught.value.line()
        )


@pytest.mark.parametrize("without_renameat2", [False, True])
def test_a_rename_never_overwrites_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_renameat2: bool
) -> None:
    if without_renameat2:
        monkeypatch.setattr("ecrl_cli.storage.durable._LIBC", object())
    fs = PosixFs()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for source, target in (("a", "b"), ("f", "g"), ("a", "link")):
        (tmp_path / "f").write_text("f")
        (tmp_path / "g").write_text("g")
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to("nowhere")
        with pytest.raises(StorageError) as caught:
            fs.rename(tmp_path / source, tmp_path / target, replace=False)
        assert caught.value.errno == errno.EEXIST
    fs.rename(tmp_path / "f", tmp_path / "g", replace=True)
    assert (tmp_path / "g").read_text() == "f"
    fs.rename(tmp_path / "a", tmp_path / "new", replace=False)
    assert (tmp_path / "new").is_dir() and not (tmp_path / "a").exists()


def test_new_files_are_for_whom_the_umask_lets_and_never_follow_a_link(tmp_path: Path) -> None:
    fs = PosixFs()
    before = os.umask(0o027)
    try:
        fs.mkdir(tmp_path / "folder")
        write_new(fs, tmp_path / "folder" / "file", b"x", WriteMode())
    finally:
        os.umask(before)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "folder" / "file").stat().st_mode & 0o777 == 0o640
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(StorageError, match="EEXIST"):
        fs.open(tmp_path / "link", CREATE)
    assert not (tmp_path / "target").exists()


def test_small_files_and_links_are_replaced_whole(tmp_path: Path) -> None:
    fs = RecordingFs()
    for text in (b"one", b"two"):
        replace_small(fs, tmp_path / "file", text, WriteMode())
        with ready_to_link(fs, tmp_path / "link", text.decode()):
            pass
    assert (tmp_path / "file").read_bytes() == b"two" and str(
        (tmp_path / "link").readlink()
    ) == "two"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
    assert [call.name for call in fs.calls[:5]] == ["create", "write", "write", "fsync", "rename"]


def test_reading_takes_what_was_announced_and_no_more(tmp_path: Path) -> None:
    fs = PosixFs()
    (tmp_path / "file").write_bytes(b"0123456789")
    folder = fs.open(tmp_path, FOLDER)
    fd, size = open_regular(fs, folder, "file", trust_owner=False)
    assert size == 10 and read_small(fs, fd, size, 10) == b"0123456789"
    assert b"".join(pieces(fs, fd, 2, 5)) == b"234"
    with pytest.raises(RefusedFile, match="at most 9"):
        read_small(fs, fd, size, 9)
    with pytest.raises(RefusedFile, match="early"):
        list(pieces(fs, fd, 0, 11))
    fs.close(fd)
    fs.close(folder)


def test_a_path_that_cannot_be_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="EINVAL"):
        PosixFs().open(tmp_path / "a\0b", READ)


def test_chunks_are_whole_blocks() -> None:
    assert WRITTEN % BLOCK == 0 and DIRECT_FROM >= 2 * BLOCK
