"""Where file events come from: Python's own audit events, in any thread; writers and readers in
C++, which raise none, are wrapped.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
from typing import Any, Callable, Dict, Optional, Tuple

from ecrl.faults import POINTS, PlannedFailure
from ecrl.files import FileEvents, events, own, safely, say_trouble, size_of

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _opened(found: FileEvents, args: Any) -> None:
    path, _, flags = args
    if flags & _WRITES:
        if not flags & getattr(os, "O_TMPFILE", 0) & ~getattr(os, "O_DIRECTORY", 0):
            emptied = size_of(path) if flags & os.O_TRUNC else 0
            found.opens(path, append=bool(flags & os.O_APPEND), emptied=emptied)
    elif (
        not flags & getattr(os, "O_DIRECTORY", 0)
        and not path.endswith((".py", ".pyc"))
        and _is_file(path)
    ):
        found.note("read", path)


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


# By event: where its paths stand, and at which place the folder that each is relative to.
_PATHS: Dict[str, Tuple[Tuple[int, Optional[int]], ...]] = {
    "open": ((0, None),),
    "os.rename": ((0, 2), (1, 3)),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.link": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
}


def hook(event: str, args: Any) -> None:
    """Called for each audit event of the process: what is none of a file is over at once."""
    places = _PATHS.get(event)
    if places is None or getattr(own, "busy", False):
        return
    planned = None
    try:
        own.busy = True
        try:
            _follow(event, args, places)
        except PlannedFailure as failure:
            planned = failure
        except Exception as error:
            say_trouble(error)
        finally:
            own.busy = False
    except Exception:  # the interpreter shuts down
        return
    if planned is not None:
        raise planned.error from None


def _follow(event: str, args: Any, places: Any) -> None:
    if event == "open" and not isinstance(args[2], int):
        return
    paths = [
        _absolute(args[place], args[base] if base is not None and base < len(args) else -1)
        for place, base in places
    ]
    if not any(paths):
        return
    found = events()
    if found is None or not any(found.inside(path) for path in paths):
        return
    if found.pending:
        found.look()
    if event == "open":
        _opened(found, (paths[0], *args[1:]))
    elif event == "os.rename":
        found.renames(*paths)
    elif event in ("os.remove", "os.rmdir"):
        found.removes(event[3:], paths[0])
    elif event == "os.link":
        found.inject(paths[1], ("before",))
        found.note("link", paths[0], to=paths[1])
    else:
        if event == "os.mkdir" and os.path.isdir(paths[0]):
            return
        found.inject(paths[0], ("before",))
        found.note(event[3:], paths[0])


def _absolute(path: Any, base: Any = -1) -> str:
    """The path as text, without `..`; empty for a descriptor, which has no path."""
    if type(path) is not str:
        if isinstance(path, os.PathLike):
            path = os.fspath(path)
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str):
            return ""
    if path.startswith("/") and ".." not in path and "//" not in path and "/./" not in path:
        return path
    if isinstance(base, int) and base >= 0 and not os.path.isabs(path):
        return os.path.normpath(os.path.join(os.readlink("/proc/self/fd/%d" % base), path))
    return os.path.abspath(path)


# -- writers and readers in C++


def writing(path: Any, write: Callable[[], Any]) -> Any:
    """`write()`, which writes `path` without an event of Python's."""
    place = _absolute(path) if path else ""
    found = events() if place else None
    if found is None:
        return write()
    inside = found.inside(place)
    safely(lambda: found.opens(place) if inside else found.inject(place, POINTS))
    result = write()
    if inside or place in found.pending:
        safely(lambda: found.closed(place))
    return result


def reading(path: Any) -> None:
    """`path` is read without an event of Python's."""
    place = _absolute(path) if path else ""
    found = events() if place else None
    if found is not None and found.inside(place):
        safely(lambda: found.note("read", place))


def renamed(target: Any) -> None:
    """`target` has its name now."""
    found = events()
    if found is not None and found.pending:
        place = _absolute(target)
        if place in found.pending:
            safely(lambda: found.closed(place))


def patch_safetensors(module: Any) -> None:
    """Its writer and its reader, in Rust, before safetensors.torch and others take them by name."""
    serialize_file, safe_open = module.serialize_file, module.safe_open

    @functools.wraps(serialize_file)
    def serializing(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        return writing(filename, lambda: serialize_file(tensors, filename, *args, **kwargs))

    class Kind(type):
        def __instancecheck__(cls, thing: Any) -> bool:
            return isinstance(thing, safe_open)

    class Opening(metaclass=Kind):
        def __new__(cls, filename: Any, *args: Any, **kwargs: Any) -> Any:
            reading(filename)
            return safe_open(filename, *args, **kwargs)

    Opening.__name__, Opening.__qualname__, Opening.__doc__ = (
        "safe_open",
        "safe_open",
        safe_open.__doc__,
    )
    module.serialize_file, module.safe_open = serializing, Opening


def patch_jit(module: Any) -> None:
    save, load = module.save, module.load

    @functools.wraps(save)
    def saving(m: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(f, (str, os.PathLike)):
            return save(m, f, *args, **kwargs)
        return writing(f, lambda: save(m, f, *args, **kwargs))

    @functools.wraps(load)
    def loading(f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)):
            reading(f)
        return load(f, *args, **kwargs)

    module.save, module.load = saving, loading


PATCHES: Dict[str, Callable[[Any], None]] = {
    "safetensors": patch_safetensors,
    "torch.jit._serialization": patch_jit,
}


def install() -> None:
    """Follow file events from now on."""
    sys.addaudithook(hook)
