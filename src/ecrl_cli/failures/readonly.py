"""`readonly`: from one step on, the run directory is read-only for rank 0 (EROFS at every write); the run exits with code 5 and can be resumed.

A remount would need a separate file system. Instead, the `os` calls that change files are replaced in rank 0's process.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ecrl_cli.errors import StorageError
from ecrl_cli.failures.fault_kind import Death, Ends, FaultKind, InjectionContext, Victim

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGING = ("mkdir", "rename", "replace", "unlink", "rmdir", "symlink", "truncate")


class ReadOnly(FaultKind):
    name = "readonly"
    description = "from a step on, rank 0 finds the run directory read-only: the run ends with exit code 5, and goes on once it is writable again"
    shows = "the run ends with code 5 and goes on exactly"
    text = "finds the run directory read-only"
    victim = Victim.RANK_0
    ends = Ends.ATTEMPT
    death = Death(exit_code=StorageError.exit_code)
    supervisor_exit = StorageError.exit_code

    def inject(self, context: InjectionContext) -> None:
        seal(context.layout.root)


def seal(root: Path) -> Callable[[], None]:
    """Makes everything under `root` read-only for this process; returns a function that undoes it."""
    inside, before = f"{root}{os.sep}", {name: getattr(os, name) for name in ("open", "write", *_CHANGING)}

    def refuse(path: object) -> None:
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if os.path.abspath(text).startswith(inside):  # noqa: PTH100 - pathlib would follow links
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), text)

    def write(fd: int, data: Any) -> Any:
        refuse(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115
        return before["write"](fd, data)

    def opened(path: Any, flags: int, *more: Any, **named: Any) -> Any:
        if flags & _WRITING:
            refuse(path)
        return before["open"](path, flags, *more, **named)

    def changing(call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(path: Any, *more: Any, **named: Any) -> Any:
            refuse(path)
            return call(path, *more, **named)

        return guarded

    replaced: dict[str, Callable[..., Any]] = {"write": write, "open": opened, **{name: changing(before[name]) for name in _CHANGING}}
    _put(replaced)
    return partial(_put, before)


def _put(calls: Mapping[str, Callable[..., Any]]) -> None:
    for name, call in calls.items():
        setattr(os, name, call)
