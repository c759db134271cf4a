"""A file system in memory: its inodes and paths, the durable part of its contents, and a log of
every call that changed something.

From the log a study derives what a power loss may leave. Errors carry the errno that Linux gives (a
test compares the two).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import Buffer

_LINKS = 40  # symlinks followed at most, as on Linux
_DEVICE = 1
ROOT = 0  # the inode number of the root directory


@dataclass
class File:
    """`data`: what a reader sees. `synced`: what the last successful fsync made durable."""

    data: bytes | bytearray = b""
    synced: bytes = b""


@dataclass
class MemoryFolder:
    names: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    target: str


Node = File | MemoryFolder | Link
# An initial tree: a file's bytes, a link, or a directory's names.
Tree = bytes | Link | Mapping[str, "Tree"]


class InodeTree:
    """All inodes by number, mounted at the path `mount`."""

    def __init__(self, mount: Path, tree: Mapping[str, Tree]) -> None:
        self.mount = mount
        self.nodes: dict[int, Node] = {}
        self._plant(tree)

    def _plant(self, tree: Tree) -> int:
        number = len(self.nodes)
        if isinstance(tree, bytes):
            self.nodes[number] = File(tree, tree)
        elif isinstance(tree, Link):
            self.nodes[number] = tree
        else:
            self.nodes[number] = folder = MemoryFolder()
            for name, below in tree.items():
                folder.names[name] = self._plant(below)
        return number

    def _place(self, call: str, path: Path, named: Path | None = None) -> tuple[int, str]:
        """The directory that holds `path`, and the name in it ("" for the mount itself)."""
        if "\0" in str(path):
            raise refused(call, repr(str(path)), errno.EINVAL)
        parts = (
            path.parts[len(self.mount.parts) :]
            if path.parts[: len(self.mount.parts)] == self.mount.parts
            else None
        )
        if parts is None:
            raise refused(call, path, errno.ENOENT)
        folder = ROOT
        for part in parts[:-1]:
            folder = self._follow(call, named or path, folder, self._child(folder, part))
            if not isinstance(self.nodes[folder], MemoryFolder):
                raise refused(call, named or path, errno.ENOTDIR)
        if parts and len(os.fsencode(parts[-1])) > 255:
            raise refused(call, named or path, errno.ENAMETOOLONG)
        return folder, parts[-1] if parts else ""

    def _child(self, folder: int, name: str) -> int | None:
        return self._folder(folder).names.get(name) if name else folder

    def _follow(
        self, call: str, path: object, folder: int, number: int | None, depth: int = 0
    ) -> int:
        """The inode after following symlinks; `folder` is the directory of the first link."""
        if number is None:
            raise refused(call, path, errno.ENOENT)
        node = self.nodes[number]
        if not isinstance(node, Link):
            return number
        if depth == _LINKS:
            raise refused(call, path, errno.ELOOP)
        place, name = self._named(call, path, folder, node, depth)
        return self._follow(call, path, place, self._child(place, name), depth + 1)

    def _named(
        self, call: str, path: object, folder: int, link: Link, depth: int
    ) -> tuple[int, str]:
        """The directory and name that `link` (in `folder`) points to; the name need not exist."""
        if link.target.startswith("/"):
            return self._place(call, Path(link.target))
        *above, name = link.target.split("/")
        for part in above:
            folder = self._follow(call, path, folder, self._child(folder, part), depth + 1)
            if not isinstance(self.nodes[folder], MemoryFolder):
                raise refused(call, path, errno.ENOTDIR)
        return folder, name

    def _behind(
        self, call: str, path: object, folder: int, name: str, depth: int = 0
    ) -> tuple[int, str]:
        """Resolves `name` in `folder` through symlinks to the directory and name where O_CREAT
        makes the file.
        """
        number = self._child(folder, name)
        node = None if number is None else self.nodes[number]
        if not isinstance(node, Link):
            return folder, name
        if depth == _LINKS:
            raise refused(call, path, errno.ELOOP)
        return self._behind(call, path, *self._named(call, path, folder, node, depth), depth + 1)

    def _existing(self, call: str, path: Path) -> tuple[int, str, int]:
        folder, name = self._place(call, path)
        number = self._child(folder, name)
        if number is None:
            raise refused(call, path, errno.ENOENT)
        return folder, name, number

    def _rename_error(self, moved: int, there: int | None, old: int, new: int) -> int:
        """The errno with which Linux refuses to rename `moved` (in directory `old`) over `there`
        (in directory `new`); 0 where it allows it.
        """
        if self._holds(moved, new):
            return errno.EINVAL
        if there is None or there == moved:
            return 0
        if self._holds(there, old):
            return errno.ENOTEMPTY
        source, target = self.nodes[moved], self.nodes[there]
        if isinstance(target, MemoryFolder):
            return (
                0
                if isinstance(source, MemoryFolder) and not target.names
                else errno.ENOTEMPTY
                if isinstance(source, MemoryFolder)
                else errno.EISDIR
            )
        return errno.ENOTDIR if isinstance(source, MemoryFolder) else 0

    def _holds(self, number: int, inner: int) -> bool:
        """Whether `inner` is the directory `number` or lies below it."""
        node = self.nodes[number]
        return number == inner or (
            isinstance(node, MemoryFolder)
            and any(self._holds(below, inner) for below in node.names.values())
        )

    def _stat(self, number: int) -> os.stat_result:
        node = self.nodes[number]
        kind, size = (
            (stat.S_IFREG | 0o600, len(node.data))
            if isinstance(node, File)
            else (stat.S_IFDIR | 0o700, 4096)
        )
        if isinstance(node, Link):
            kind, size = stat.S_IFLNK | 0o777, len(os.fsencode(node.target))
        links = (
            1
            if not isinstance(node, MemoryFolder)
            else 2
            + sum(isinstance(self.nodes[below], MemoryFolder) for below in node.names.values())
        )
        return os.stat_result(
            (kind, number + 1, _DEVICE, links, os.geteuid(), os.getegid(), size, 0, 0, 0)
        )

    def _file(self, number: int) -> File:
        node = self.nodes[number]
        assert isinstance(node, File)
        return node

    def _folder(self, number: int) -> MemoryFolder:
        node = self.nodes[number]
        assert isinstance(node, MemoryFolder)
        return node


def refused(call: str, path: object, number: int) -> StorageError:
    return StorageError.of(call, path, OSError(number, os.strerror(number)))


@dataclass(frozen=True)
class FsOp:
    """A logged change: mkdir, create, symlink, unlink, rmdir and rename change the names of a
    directory; write, truncate and drop (a failed sync) the bytes of a node; fsync and fsyncdir make
    bytes and names durable.

    `node`: the node affected. `folder`, `name`: its directory and name. `target`: new directory and
    name of a rename. `data` was written at `offset`.
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
    """All paths are under `mount`. `log` lists every change; `refuse_sync` is the errno with which
    the next fsync of a file fails (0: none).
    """

    def __init__(self, mount: Path, tree: Mapping[str, Tree] | None = None) -> None:
        super().__init__(mount, tree or {})
        self.log, self.refuse_sync = list[FsOp](), 0
        self._open: dict[int, _Open] = {}
        self._next_fd = 3

    def mkdir(self, path: Path) -> None:
        self._make("mkdir", path, MemoryFolder())

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
        if not isinstance(self.nodes[number], MemoryFolder):
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
        if isinstance(self.nodes[number], MemoryFolder):
            raise refused("unlink", path, errno.EISDIR)
        del self._folder(folder).names[name]
        self.log.append(FsOp("unlink", number, folder, name))

    def rmdir(self, path: Path) -> None:
        folder, name, number = self._existing("rmdir", path)
        node = self.nodes[number]
        if not isinstance(node, MemoryFolder):
            raise refused("rmdir", path, errno.ENOTDIR)
        if node.names:
            raise refused("rmdir", path, errno.ENOTEMPTY)
        del self._folder(folder).names[name]
        self.log.append(FsOp("rmdir", number, folder, name))

    def listdir(self, path: Path) -> list[str]:
        folder, name = self._place("list", path)
        number = self._follow("list", path, folder, self._child(folder, name))
        node = self.nodes[number]
        if not isinstance(node, MemoryFolder):
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
        if not isinstance(self.nodes[folder], MemoryFolder):
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
        if isinstance(node, MemoryFolder) and (writes or flags & os.O_CREAT):
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
