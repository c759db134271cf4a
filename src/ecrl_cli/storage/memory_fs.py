"""A file system in memory: file contents, the durable part of them, and a log of every call that changed something.

From the log a study derives what a power loss may leave. Errors carry the errno that Linux gives (a test compares the two).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.storage.fs import Buffer
from ecrl_cli.storage.memory_fs_nodes import File, Folder, InodeTree, Link, Node, Tree, refused


@dataclass(frozen=True)
class FsOp:
    """A logged change: mkdir, create, symlink, unlink, rmdir and rename change the names of a directory; write, truncate and drop
    (a failed sync) the bytes of a node; fsync and fsyncdir make bytes and names durable.

    `node`: the node affected. `folder`, `name`: its directory and name. `target`: new directory and name of a rename. `data` was written at `offset`.
    """

    kind: str
    node: int
    folder: int = -1
    name: str = ""
    target: tuple[int, str] = (-1, "")
    data: bytes = b""
    offset: int = 0


@dataclass
class _Open:
    node: int
    flags: int
    offset: int = 0


class ModelFs(InodeTree):
    """All paths are under `mount`. `log` lists every change; `refuse_sync` is the errno with which the next fsync of a file fails (0: none)."""

    def __init__(self, mount: Path, tree: Mapping[str, Tree] | None = None) -> None:
        super().__init__(mount, tree or {})
        self.log, self.refuse_sync = list[FsOp](), 0
        self._open: dict[int, _Open] = {}
        self._next_fd = 3

    def mkdir(self, path: Path) -> None:
        self._make("mkdir", path, Folder())

    def open(self, path: Path, flags: int) -> int:
        folder, name = self._place("open", path)
        return self._opened(path, folder, name, flags)

    def open_at(self, folder: int, name: str, flags: int) -> int:
        number = self._descriptor("open", folder).node
        return self._opened(name, number, name, flags)

    def set_direct(self, fd: int, on: bool) -> bool:
        return False

    def write(self, fd: int, data: Buffer) -> int:
        opened = self._descriptor("write", fd)
        if opened.flags & os.O_ACCMODE == os.O_RDONLY:
            raise refused("write", fd, errno.EBADF)
        file, piece = self._file(opened.node), bytes(data)
        if not piece:
            return 0
        if isinstance(file.data, bytes):
            file.data = bytearray(file.data)
        file.data.extend(bytes(max(0, opened.offset - len(file.data))))
        file.data[opened.offset : opened.offset + len(piece)] = piece
        self.log.append(FsOp("write", opened.node, data=piece, offset=opened.offset))
        opened.offset += len(piece)
        return len(piece)

    def read_at(self, fd: int, buffer: memoryview, offset: int) -> int:
        opened = self._descriptor("read", fd)
        if opened.flags & os.O_ACCMODE == os.O_WRONLY:
            raise refused("read", fd, errno.EBADF)
        node = self.nodes[opened.node]
        if not isinstance(node, File):
            raise refused("read", fd, errno.EISDIR)
        piece = node.data[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)

    def fsync(self, fd: int) -> None:
        opened = self._descriptor("fsync", fd)
        file = self.nodes[opened.node]
        if not isinstance(file, File):
            self.log.append(FsOp("fsyncdir", opened.node))
        elif self.refuse_sync:
            number, self.refuse_sync = self.refuse_sync, 0
            file.data = file.synced  # the pages are clean now, and their data is lost
            self.log.append(FsOp("drop", opened.node))
            raise refused("fsync", fd, number)
        else:
            file.synced = bytes(file.data)
            self.log.append(FsOp("fsync", opened.node))

    def fsyncdir(self, path: Path) -> None:
        folder, name = self._place("fsync of the directory", path)
        number = self._child(folder, name)
        if number is None:
            raise refused("fsync of the directory", path, errno.ENOENT)
        if not isinstance(self.nodes[number], Folder):
            raise refused("fsync of the directory", path, errno.ENOTDIR)
        self.log.append(FsOp("fsyncdir", number))

    def close(self, fd: int) -> None:
        self._descriptor("close", fd)
        del self._open[fd]

    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        old, new = self._place("rename", source, target), self._place("rename", target)
        moved, there = self._child(*old), self._child(*new)
        if moved is None:
            raise refused("rename", target, errno.ENOENT)
        if there is not None and not replace:
            raise refused("rename", target, errno.EEXIST)
        if number := self._rename_error(moved, there, old[0], new[0]):
            raise refused("rename", target, number)
        if moved == there:
            return
        del self._folder(old[0]).names[old[1]]
        self._folder(new[0]).names[new[1]] = moved
        self.log.append(FsOp("rename", moved, old[0], old[1], new))

    def symlink(self, target: str, path: Path) -> None:
        if not target:
            raise refused("symlink", path, errno.ENOENT)
        self._make("symlink", path, Link(target))

    def unlink(self, path: Path) -> None:
        folder, name, number = self._existing("unlink", path)
        if isinstance(self.nodes[number], Folder):
            raise refused("unlink", path, errno.EISDIR)
        del self._folder(folder).names[name]
        self.log.append(FsOp("unlink", number, folder, name))

    def rmdir(self, path: Path) -> None:
        folder, name, number = self._existing("rmdir", path)
        node = self.nodes[number]
        if not isinstance(node, Folder):
            raise refused("rmdir", path, errno.ENOTDIR)
        if node.names:
            raise refused("rmdir", path, errno.ENOTEMPTY)
        del self._folder(folder).names[name]
        self.log.append(FsOp("rmdir", number, folder, name))

    def listdir(self, path: Path) -> list[str]:
        folder, name = self._place("list", path)
        number = self._follow("list", path, folder, self._child(folder, name))
        node = self.nodes[number]
        if not isinstance(node, Folder):
            raise refused("list", path, errno.ENOTDIR)
        return sorted(node.names)

    def stat(self, path: Path) -> os.stat_result:
        return self._stat(self._existing("stat", path)[2])

    def fstat(self, fd: int) -> os.stat_result:
        return self._stat(self._descriptor("stat", fd).node)

    def _make(self, call: str, path: Path, node: Node) -> int:
        folder, name = self._place(call, path)
        if self._child(folder, name) is not None:
            raise refused(call, path, errno.EEXIST)
        data = node.target.encode() if isinstance(node, Link) else b""
        self.nodes[number := len(self.nodes)] = node
        self._folder(folder).names[name] = number
        self.log.append(FsOp(call, number, folder, name, data=data))
        return number

    def _opened(self, path: object, folder: int, name: str, flags: int) -> int:
        if not isinstance(self.nodes[folder], Folder):
            raise refused("open", path, errno.ENOTDIR)
        number = self._child(folder, name)
        if flags & os.O_CREAT and not flags & (os.O_EXCL | os.O_NOFOLLOW):
            place, last = self._behind("open", path, folder, name)
            if self._child(place, last) is None:
                folder, name, number = place, last, None
        if number is None and flags & os.O_CREAT:
            self.nodes[number := len(self.nodes)] = File()
            self._folder(folder).names[name] = number
            self.log.append(FsOp("create", number, folder, name))
        else:
            number = self._openable(path, folder, number, flags)
        self._next_fd += 1
        self._open[self._next_fd] = _Open(number, flags)
        return self._next_fd

    def _openable(self, path: object, folder: int, number: int | None, flags: int) -> int:
        if number is not None and flags & os.O_CREAT and flags & os.O_EXCL:
            raise refused("open", path, errno.EEXIST)
        if number is not None and isinstance(self.nodes[number], Link) and flags & os.O_NOFOLLOW:
            raise refused("open", path, errno.ENOTDIR if flags & os.O_DIRECTORY else errno.ELOOP)
        number = self._follow("open", path, folder, number)
        node, writes = self.nodes[number], flags & os.O_ACCMODE != os.O_RDONLY
        if isinstance(node, Folder) and (writes or flags & os.O_CREAT):
            raise refused("open", path, errno.EISDIR)
        if isinstance(node, File):
            if flags & os.O_DIRECTORY:
                raise refused("open", path, errno.ENOTDIR)
            if flags & os.O_TRUNC and writes:
                node.data = b""
                self.log.append(FsOp("truncate", number))
        return number

    def _descriptor(self, call: str, fd: int) -> _Open:
        if fd not in self._open:
            raise refused(call, "?", errno.EBADF)
        return self._open[fd]
