"""The inodes of the file system in memory, and path resolution. Nothing here changes the tree once it is built."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ecrl_cli.errors import StorageError

_LINKS = 40  # symlinks followed at most, as on Linux
_DEVICE = 1
ROOT = 0  # the inode number of the root directory


@dataclass
class File:
    """`data`: what a reader sees. `synced`: what the last successful fsync made durable."""

    data: bytes | bytearray = b""
    synced: bytes = b""


@dataclass
class Folder:
    names: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    target: str


Node = File | Folder | Link
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
            self.nodes[number] = folder = Folder()
            for name, below in tree.items():
                folder.names[name] = self._plant(below)
        return number

    def _place(self, call: str, path: Path, named: Path | None = None) -> tuple[int, str]:
        """The directory that holds `path`, and the name in it ("" for the mount itself)."""
        if "\0" in str(path):
            raise refused(call, repr(str(path)), errno.EINVAL)
        parts = path.parts[len(self.mount.parts) :] if path.parts[: len(self.mount.parts)] == self.mount.parts else None
        if parts is None:
            raise refused(call, path, errno.ENOENT)
        folder = ROOT
        for part in parts[:-1]:
            folder = self._follow(call, named or path, folder, self._child(folder, part))
            if not isinstance(self.nodes[folder], Folder):
                raise refused(call, named or path, errno.ENOTDIR)
        if parts and len(os.fsencode(parts[-1])) > 255:
            raise refused(call, named or path, errno.ENAMETOOLONG)
        return folder, parts[-1] if parts else ""

    def _child(self, folder: int, name: str) -> int | None:
        return self._folder(folder).names.get(name) if name else folder

    def _follow(self, call: str, path: object, folder: int, number: int | None, depth: int = 0) -> int:
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

    def _named(self, call: str, path: object, folder: int, link: Link, depth: int) -> tuple[int, str]:
        """The directory and name that `link` (in `folder`) points to; the name need not exist."""
        if link.target.startswith("/"):
            return self._place(call, Path(link.target))
        *above, name = link.target.split("/")
        for part in above:
            folder = self._follow(call, path, folder, self._child(folder, part), depth + 1)
            if not isinstance(self.nodes[folder], Folder):
                raise refused(call, path, errno.ENOTDIR)
        return folder, name

    def _behind(self, call: str, path: object, folder: int, name: str, depth: int = 0) -> tuple[int, str]:
        """Resolves `name` in `folder` through symlinks to the directory and name where O_CREAT makes the file."""
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
        """The errno with which Linux refuses to rename `moved` (in directory `old`) over `there` (in directory `new`); 0 where it allows it."""
        if self._holds(moved, new):
            return errno.EINVAL
        if there is None or there == moved:
            return 0
        if self._holds(there, old):
            return errno.ENOTEMPTY
        source, target = self.nodes[moved], self.nodes[there]
        if isinstance(target, Folder):
            return 0 if isinstance(source, Folder) and not target.names else errno.ENOTEMPTY if isinstance(source, Folder) else errno.EISDIR
        return errno.ENOTDIR if isinstance(source, Folder) else 0

    def _holds(self, number: int, inner: int) -> bool:
        """Whether `inner` is the directory `number` or lies below it."""
        node = self.nodes[number]
        return number == inner or (isinstance(node, Folder) and any(self._holds(below, inner) for below in node.names.values()))

    def _stat(self, number: int) -> os.stat_result:
        node = self.nodes[number]
        kind, size = (stat.S_IFREG | 0o600, len(node.data)) if isinstance(node, File) else (stat.S_IFDIR | 0o700, 4096)
        if isinstance(node, Link):
            kind, size = stat.S_IFLNK | 0o777, len(os.fsencode(node.target))
        links = 1 if not isinstance(node, Folder) else 2 + sum(isinstance(self.nodes[below], Folder) for below in node.names.values())
        return os.stat_result((kind, number + 1, _DEVICE, links, os.geteuid(), os.getegid(), size, 0, 0, 0))

    def _file(self, number: int) -> File:
        node = self.nodes[number]
        assert isinstance(node, File)
        return node

    def _folder(self, number: int) -> Folder:
        node = self.nodes[number]
        assert isinstance(node, Folder)
        return node


def refused(call: str, path: object, number: int) -> StorageError:
    return StorageError.of(call, path, OSError(number, os.strerror(number)))
