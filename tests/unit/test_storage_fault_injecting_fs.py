"""The back end whose n-th call fails: which call meets the fault, what it leaves, and what it
writes down.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fault_injecting_fs import SCOPES, SHORT, ZERO, Fault, FaultyFs, TooManyCalls
from ecrl_cli.storage.fs import CREATE, READ, Fs, PosixFs
from ecrl_cli.storage.memory_fs import ModelFs
from ecrl_cli.storage.safe_read import fill
from tests.open_files import open_files


@pytest.fixture(params=["posix", "model"])
def behind(request: pytest.FixtureRequest, tmp_path: Path) -> Fs:
    return PosixFs() if request.param == "posix" else ModelFs(tmp_path)


def write(fs: Fs, path: Path, data: bytes = b"0123456789") -> int:
    """Create, write once, close; gives what the write gave."""
    fd = fs.open(path, CREATE)
    try:
        return fs.write(fd, data)
    finally:
        fs.close(fd)


def content(fs: Fs, path: Path) -> bytes:
    fd = fs.open(path, READ)
    try:
        return bytes(fill(fs, fd, memoryview(bytearray(fs.fstat(fd).st_size)), 0))
    finally:
        fs.close(fd)


def names(fs: Fs, folder: Path) -> list[str]:
    return fs.listdir(folder)


def test_once_is_once_and_for_ever_is_for_ever(behind: Fs, tmp_path: Path) -> None:
    fs = FaultyFs(behind)
    for sticky, made in ((False, ["a", "c"]), (True, ["a"])):
        fs.arm(Fault("ENOSPC", 2, sticky, "change"))
        for name in ("a", "b", "c"):
            try:
                fs.mkdir(tmp_path / name)
            except StorageError as error:
                assert (error.key, error.errno) == ("mkdir", errno.ENOSPC) and str(
                    tmp_path / name
                ) in error.fact
        assert names(behind, tmp_path) == made
        assert [each.path.name for each in fs.injected] == [
            name for name in ("a", "b", "c") if name not in made
        ]
        for name in made:
            behind.rmdir(tmp_path / name)


@pytest.mark.parametrize("scope", SCOPES)
def test_only_calls_in_the_scope_are_counted_and_struck(tmp_path: Path, scope: str) -> None:
    fs = FaultyFs(ModelFs(tmp_path))
    fs.arm(Fault("EIO", 1, sticky=True, scope=scope))
    path = tmp_path / "file"
    for call in (
        *(
            lambda: fs.mkdir(tmp_path / "folder"),
            lambda: write(fs, path),
            lambda: content(fs, path),
            lambda: fs.fsyncdir(tmp_path),
        ),
        *(
            lambda: fs.rename(path, tmp_path / "other", replace=True),
            lambda: fs.symlink("file", tmp_path / "link"),
            lambda: fs.stat(tmp_path),
        ),
        *(
            lambda: fs.unlink(tmp_path / "other"),
            lambda: fs.rmdir(tmp_path / "folder"),
            lambda: fs.listdir(tmp_path),
        ),
    ):
        try:
            call()
        except StorageError:
            continue
    assert fs.injected and {each.call for each in fs.injected} <= set(SCOPES[scope])
    assert set(SCOPES[scope]) <= set(SCOPES["any"])


def test_a_call_that_fails_changes_nothing(behind: Fs, tmp_path: Path) -> None:
    fs = FaultyFs(behind)
    write(fs, tmp_path / "file")
    for call in (
        *(
            lambda: fs.unlink(tmp_path / "file"),
            lambda: fs.rename(tmp_path / "file", tmp_path / "other", replace=True),
        ),
        *(
            lambda: fs.mkdir(tmp_path / "folder"),
            lambda: fs.symlink("x", tmp_path / "link"),
            lambda: fs.open(tmp_path / "new", CREATE),
        ),
    ):
        fs.arm(Fault("EIO", 1))
        with pytest.raises(StorageError, match="EIO"):
            call()
    assert (
        names(behind, tmp_path) == ["file"] and content(behind, tmp_path / "file") == b"0123456789"
    )


def test_short_writes_write_a_part_and_empty_ones_nothing(behind: Fs, tmp_path: Path) -> None:
    fs = FaultyFs(behind)
    for kind, given, left in ((SHORT, 5, b"01234"), (ZERO, 0, b"")):
        fs.arm(Fault(kind, 1, scope="write"))
        assert write(fs, tmp_path / kind) == given
        assert content(behind, tmp_path / kind) == left
    fs.arm(Fault(SHORT, 1, sticky=True, scope="write"))
    assert write(fs, tmp_path / "one", b"x") == 1


def test_a_close_that_fails_has_closed(behind: Fs, tmp_path: Path) -> None:
    before = open_files()
    fs = FaultyFs(behind)
    fs.arm(Fault("EIO", 1, scope="close"))
    with pytest.raises(StorageError, match="close"):
        write(fs, tmp_path / "file")
    assert not fs.open_files and fs.injected[0].written
    assert open_files() <= before


def test_after_a_sync_that_failed_a_second_one_succeeds_and_the_data_is_gone(
    tmp_path: Path,
) -> None:
    """What makes a retried fsync a lie."""
    fs = FaultyFs(ModelFs(tmp_path))
    fd = fs.open(tmp_path / "file", CREATE)
    fs.write(fd, b"lost")
    fs.arm(Fault("EIO", 1, scope="sync"))
    with pytest.raises(StorageError, match="fsync: EIO"):
        fs.fsync(fd)
    fs.fsync(fd)
    fs.close(fd)
    assert content(fs, tmp_path / "file") == b""


def test_what_is_not_closed_is_known(behind: Fs, tmp_path: Path) -> None:
    fs = FaultyFs(behind)
    fd = fs.open(tmp_path / "file", CREATE)
    assert list(fs.open_files.values()) == [tmp_path / "file"]
    fs.close(fd)
    assert not fs.open_files


def test_whoever_never_stops_calling_is_stopped(tmp_path: Path) -> None:
    fs = FaultyFs(ModelFs(tmp_path), limit=10)
    with pytest.raises(TooManyCalls, match="11 calls"):
        while True:
            fs.stat(tmp_path)
