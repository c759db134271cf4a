"""Traces every Python process of a run: which file of `ecrl_cli` calls into which. Copied into a
folder of PYTHONPATH, beside which it writes.

One text file per process. Its first line tells of the process. A line per new call: `call`, the
caller's file and function, the callee's file and function. A line the first time that the process
opens a file of some name to write: `write` and the name. The caller is the nearest frame of
`ecrl_cli`, so that a function handed to a library counts as called by the one that called the
library. What runs because a module is imported is no call.
"""

import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

MARK = "/src/ecrl_cli/"
FOLDER = Path(__file__).parent
_of_code: dict[CodeType, str] = {}
_seen: set[tuple[str, ...]] = set()
_file = Path()


def begin(how: str = "forked") -> None:
    """Names this process's file; a forked process begins anew. Its first line: how it began, when,
    and its command.
    """
    global _file
    _seen.clear()
    _file = next(
        file
        for number in range(1000)
        if not (file := FOLDER / f"{os.getpid()}-{number}.txt").exists()
    )
    note(how, str(time.monotonic_ns()), " ".join(sys.orig_argv).replace("\n", " "))


def note(*words: str) -> None:
    if words in _seen:
        return
    _seen.add(words)
    # opened each time: a forked rank closes what it has inherited
    with open(str(_file), "a", errors="replace") as file:
        file.write("\t".join(words) + "\n")


def file_of(code: CodeType) -> str:
    """The path below `ecrl_cli` of what `code` belongs to; empty for all else."""
    found = _of_code.get(code)
    if found is None:
        found = _of_code[code] = code.co_filename.partition(MARK)[2]
    return found


def called(frame: FrameType, event: str, argument: Any) -> None:
    if event != "call" or not (callee := file_of(frame.f_code)):
        return
    above = frame.f_back
    while above is not None and not (caller := file_of(above.f_code)):
        above = above.f_back
    if (
        above is not None
        and caller != callee
        and "<module>" not in (frame.f_code.co_name, above.f_code.co_name)
        and not importing(frame)
    ):
        note("call", caller, above.f_code.co_name, callee, frame.f_code.co_name)


def importing(frame: FrameType | None) -> bool:
    """Whether `frame` runs because one of our modules is being imported, and not the module that
    the process runs.
    """
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return True
        frame = frame.f_back
    return False


def opened(event: str, arguments: tuple[Any, ...]) -> None:
    writes = (
        event == "open"
        and isinstance(arguments[0], str)
        and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
    )
    if writes and not arguments[0].startswith(str(FOLDER)):
        note("write", os.path.basename(arguments[0]))


begin("started")
os.register_at_fork(after_in_child=begin)
sys.addaudithook(opened)
threading.setprofile(called)
sys.setprofile(called)
