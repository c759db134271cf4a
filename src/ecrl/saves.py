"""Patches of torch, DCP, Lightning and os, so that checkpoints that are written, renamed and read
are on record.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from typing import Any, Dict

from ecrl import file_hooks, files, steps
from ecrl.steps import StepRecorder, own, quietly, recorder, with_planned_failures


def patch_serialization(torch: Any) -> None:
    save, load = torch.save, torch.load

    @functools.wraps(save)
    def saving(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        found, path = recorder(), path_of(f)
        if found is None or not path:
            return save(obj, f, *args, **kwargs)
        write = functools.partial(save, obj, f, *args, **kwargs)
        # a file that the job has opened itself is followed to where it is closed
        by_path = isinstance(f, (str, os.PathLike))
        if getattr(own, "saving", False):
            return file_hooks.writing(path, write) if by_path else write()
        own.saving = True
        began = time.monotonic()
        try:
            quietly("save", lambda found: found.save_begins(path))
            result = file_hooks.writing(path, write) if by_path else write()
        finally:
            own.saving = False
        seconds = time.monotonic() - began
        quietly("save", lambda found: found.saved(path, seconds=seconds))
        return result

    @functools.wraps(load)
    def loading(f: Any, *args: Any, **kwargs: Any) -> Any:
        result = load(f, *args, **kwargs)
        path = path_of(f)
        if path:
            quietly(
                "load",
                lambda found: found.recording.write(
                    "load", path=os.path.abspath(path), after_step=found.steps
                ),
            )
        return result

    torch.save, torch.load = saving, loading
    torch.serialization.save, torch.serialization.load = saving, loading


def patch_lightning(module: Any) -> None:
    """Lightning serialises into memory and writes the bytes itself."""
    original = module.TorchCheckpointIO.save_checkpoint

    @functools.wraps(original)
    def saving(self: Any, checkpoint: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        place, began = os.path.abspath(str(path)), time.monotonic()
        quietly("save", lambda found: found.save_begins(place, by="lightning"))
        with_planned_failures("save", lambda found: found.faults.at_save(found.steps))
        original(self, checkpoint, path, *args, **kwargs)
        quietly(
            "save",
            lambda found: found.saved(place, by="lightning", seconds=time.monotonic() - began),
        )

    module.TorchCheckpointIO.save_checkpoint = saving


def path_of(file: Any) -> str:
    """The path that is written or read; empty for a buffer in memory."""
    if isinstance(file, (str, os.PathLike)):
        return os.fspath(file) if isinstance(os.fspath(file), str) else ""
    name = getattr(file, "name", "")
    return name if isinstance(name, str) else ""


def patch_dcp(module: Any) -> None:
    """Where DCP's functions are defined, and where its package has them already."""
    package = sys.modules.get("torch.distributed.checkpoint")
    for name in ("save", "async_save", "load"):
        original = getattr(module, name, None)
        if original is not None:
            followed = followed_dcp(original, name)
            setattr(module, name, followed)
            if getattr(package, name, None) is original:
                setattr(package, name, followed)


# checkpoints that async_save is writing, and the thread that asked for each
_in_background: Dict[str, int] = {}


def followed_dcp(original: Any, kind: str) -> Any:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if recorder() is None or getattr(own, "saving", False):
            return original(*args, **kwargs)  # one save calls another
        path, began, thread = dcp_path(args, kwargs), time.monotonic(), threading.get_ident()
        # async_save calls save in a thread of its own
        inner = kind == "save" and _in_background.get(path, thread) != thread
        if kind != "load" and not inner:
            quietly("save", lambda found: found.save_begins(path, by="dcp"))
            with_planned_failures("save", lambda found: found.faults.at_save(found.steps))
        if kind == "async_save":
            _in_background[path] = thread
        own.saving = True
        try:
            result = original(*args, **kwargs)
        except BaseException:
            _in_background.pop(path, None)
            raise
        finally:
            own.saving = False
        if not inner:
            quietly(
                kind, lambda found: tell_dcp(found, kind, path, time.monotonic() - began, result)
            )
        return result

    return wrapper


def tell_dcp(found: StepRecorder, kind: str, path: str, seconds: float, result: Any) -> None:
    """A load is over. A save too; or, where it goes on behind the job's back, when its future is
    done. `seconds`: what the job waited.
    """
    if kind == "load":
        found.recording.write("load", path=path, after_step=found.steps, by="dcp", seconds=seconds)
        return
    steps, future = found.steps, getattr(result, "upload_completion", result)

    def done(future: Any = None) -> None:
        _in_background.pop(path, None)
        if future is None or future.exception() is None:
            found.saved(path, steps, by="dcp", seconds=seconds)

    if hasattr(future, "add_done_callback"):
        future.add_done_callback(done)
    else:
        done()


def dcp_path(args: Any, kwargs: Any) -> str:
    """The folder that `checkpoint_id` names, else that of the storage writer or reader."""
    named = kwargs.get("checkpoint_id")
    storage = kwargs.get("storage_writer") or kwargs.get("storage_reader")
    for place in (named, *args[1:2], getattr(storage, "path", None)):
        if isinstance(place, (str, os.PathLike)):
            return str(place)
    return ""


def patch_renames() -> None:
    """os.replace and os.rename, through which a finished checkpoint gets its name."""
    for name in ("replace", "rename"):
        setattr(os, name, FollowedRename(getattr(os, name)))


class FollowedRename:
    """`original`, and word of it. No function: as an attribute of a class (pathlib's in Python 3.9
    keeps os.replace so) it would become a method and be given the object as its first path.
    """

    def __init__(self, original: Any) -> None:
        functools.update_wrapper(self, original)
        self._original = original

    def __call__(self, src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        self._original(src, dst, *args, **kwargs)
        file_hooks.renamed(dst)
        if steps.existing is not None:
            quietly("rename", lambda found: found.renamed(src, dst))


def patch_signals() -> None:
    """A handler of SIGTERM: the job means to do something before it is stopped."""
    original = signal.signal

    @functools.wraps(original)
    def installing(number: Any, handler: Any) -> Any:
        result = original(number, handler)
        if number == signal.SIGTERM and callable(handler):
            _tell_handler()
        return result

    signal.signal = installing  # type: ignore[assignment]


def _tell_handler() -> None:
    """Nothing is opened for that: launchers, which train nothing, have handlers too."""
    found = files.events()
    if found is not None:
        try:
            follower = found.follower()
            found.tell(
                "call",
                what="signal.signal",
                signal=int(signal.SIGTERM),
                after_step=follower.steps if follower is not None else 0,
            )
        except Exception as error:
            found.recording.trouble("signal", error)
