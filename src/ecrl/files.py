"""File events of the job below the folder of its arm (ECRL_ARM_DIR): opening to write and to read,
renaming, removing, linking, truncating.

What calls it is hooked in file_hooks.py. A planned failure inside a save is injected here.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ecrl import steps
from ecrl.faults import POINTS, PlannedFailure
from ecrl.recording import Recording, current, rank_is_known, world_size

ARM_DIR = "ECRL_ARM_DIR"
MAX_LINES, MAX_READS = 20_000, 2_000  # of one process
# lines of one path before they become rare; of other operations _MANY
_PER_PATH = {"append": 3, "read": 8}
_MANY = 1_000
_HELD = 500  # events that wait for the rank of their process to be known
_LOOKS = 16  # steps after which a file that stays open is no part of a save
# how long a torn file of another thread waits for the training thread to get on
_SLOW_WRITER_S = 1.0
# how long the other ranks of a save must record nothing before one of them dies, and may take
_QUIET_S, _OTHER_RANKS_S = 0.5, 3.0
# Suffixes of files that hold no state of a training job. Of JSON and YAML nobody knows; a
# checkpoint has another file beside them.
_TEXT = re.compile(
    r"(?i)(\.(log|out|err|txt|csv|tsv|md|rst|html?|jsonl|ndjson|json|ya?ml|toml|ini|cfg|py|pyc|sh|lock|pid|png|jpe?g|gif|svg|pdf|mp4|wav|db|"
    r"sqlite3?|wandb)|tfevents\.[^/]*)(\.(tmp|part|partial|new))?$"
)


def looks_binary(path: str) -> bool:
    """Whether a file of this name may hold a checkpoint: it is no log, no table, no text, no
    picture.
    """
    return not _TEXT.search(path)


def size_of(path: str) -> int:
    """Bytes; 0 where there is no file."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


class FileEvents:
    """The file events of one process."""

    def __init__(self, recording: Recording, folder: str) -> None:
        self.recording, self.pid = recording, os.getpid()
        # none: what is planned for a save happens all the same
        places = (os.path.abspath(folder), os.path.realpath(folder)) if folder else ()
        self.roots = tuple(dict.fromkeys(place + os.sep for place in places))
        self._held: List[Tuple[str, Dict[str, Any]]] = []
        # lines of an operation on a path, and the step of the last one
        self._counts: Dict[Tuple[str, str], Tuple[int, int]] = {}
        self._lines = {"read": 0, "other": 0}
        # by path: step, thread and time of opening, looks at it since
        self._open: Dict[str, List[Any]] = {}
        # by path, the planned failure that waits for it to be closed
        self.pending: Dict[str, Dict[str, Any]] = {}

    # -- the record

    def relative(self, path: str) -> str:
        """Relative to the arm's folder, if `path` lies below it; else `path`."""
        for root in self.roots:
            if path.startswith(root):
                return path[len(root) :]
        return path

    def inside(self, path: str) -> bool:
        return path.startswith(self.roots)

    def note(
        self,
        op: str,
        path: str,
        to: str = "",
        opened: Optional[List[Any]] = None,
        append: bool = False,
        emptied: int = 0,
    ) -> None:
        """A line for an operation on `path` (absolute). `opened`: where and when it was opened, if
        that counts. `emptied`: bytes that were there and are gone: of a file opened to be written
        from its start, of one that a rename replaced.
        """
        found = self.follower()
        after = opened[0] if opened else found.steps if found is not None else 0
        kind, place = "read" if op == "read" else "other", self.relative(path)
        if not self._due("append" if append else op, to or path, after) or self._lines[kind] > (
            MAX_READS if kind == "read" else MAX_LINES
        ):
            return
        self._lines[kind] += 1
        if self._lines[kind] > (MAX_READS if kind == "read" else MAX_LINES):
            text = "more file events (%s) than are recorded: no further ones" % kind
            self.tell("note", what="files", text=text, after_step=after)
            return
        fields: Dict[str, Any] = {"op": op, "path": place, "after_step": after}
        if to:
            fields["to"] = self.relative(to)
        if append:
            fields["append"] = True
        if emptied:
            fields["emptied"] = emptied
        if self.in_another_thread(found, opened[1] if opened else threading.get_ident()):
            fields["overlapped"] = True
        self.tell("file", **fields)

    def _due(self, op: str, path: str, after: int) -> bool:
        """Whether the operation gets a line: once a step, and ever more rarely where it is repeated
        without end.
        """
        lines, last = self._counts.get((op, path), (0, -1))
        if last == after or (lines >= _PER_PATH.get(op, _MANY) and after < 2 * last):
            return False
        self._counts[op, path] = (lines + 1, after)
        return True

    def tell(self, record: str, **fields: Any) -> None:
        """Write a line; held back until the process's rank is known, by which its record is
        named.
        """
        self._held.append((record, {"at": time.monotonic(), "time": time.time(), **fields}))
        if self.recording.opened or rank_is_known() or len(self._held) > _HELD:
            self.flush()

    def flush(self) -> None:
        held, self._held = self._held, []
        for record, fields in held:
            self.recording.append(record, **fields)

    def at_exit(self) -> None:
        if self.pid == os.getpid():
            self.look(final=True)
            if any(record == "file" for record, _ in self._held):
                self.flush()

    def follower(self) -> Any:
        """The recorder of this process's steps, if it has made one."""
        found = steps.existing
        return found if found is not None and found.recording is self.recording else None

    @staticmethod
    def in_another_thread(found: Any, writer: int) -> bool:
        """Whether the thread `writer` is not the one that trains: what it writes may be the state
        of an earlier step.
        """
        return bool(getattr(found, "thread", 0)) and writer != found.thread

    # -- what happens to files

    def opens(self, path: str, append: bool = False, emptied: int = 0) -> None:
        """`path` is about to be opened for writing. `emptied`: as in `note`."""
        # a pattern stands for files of a save, of which none is a log that goes on
        self.inject(path, ("before",), named=append)
        self.note("write", path, append=append, emptied=emptied)
        self.inject(path, POINTS, named=append)
        if not append:
            found = self.follower()
            self._open[path] = [
                found.steps if found is not None else 0,
                threading.get_ident(),
                time.monotonic(),
                0,
            ]
            if found is not None:
                found.faults.look = self.look

    def closed(self, path: str) -> None:
        """`path` is written."""
        opened, entry = self._open.pop(path, None), self.pending.pop(path, None)
        # else it is never whole
        if self.inside(path) and (entry is None or entry["how"] == "after"):
            self.note("closed", path, opened=opened)
        if entry is not None:
            self.strike(entry, path)

    def look(self, final: bool = False) -> None:
        """Which of the files that were opened for writing are closed by now?"""
        if not self._open:
            return
        still, now = open_files(), time.monotonic()
        for path, opened in list(self._open.items()):
            # the event comes before the file is opened
            sure = final or opened[1] == threading.get_ident() or now - opened[2] > 0.05
            if sure and os.path.realpath(path) not in still:
                self.closed(path)
            else:
                opened[3] += 1
                if opened[3] > _LOOKS:
                    del self._open[path]

    def renames(self, source: str, target: str) -> None:
        """`source` is about to be called `target`."""
        if source in self._open:
            self.closed(source)
        self.inject(target, ("before",))
        self.note("rename", source, to=target, emptied=size_of(target))
        found = self.follower()
        entry = (
            found.faults.at_file(self.relative(target), ("empty", "torn", "after"), found.steps)
            if found is not None
            else None
        )
        if entry is not None:
            entry["after_step"] = found.steps
            self.pending[target] = entry  # `closed` comes when it is renamed

    def removes(self, op: str, path: str) -> None:
        self._open.pop(path, None)
        self.inject(path, ("before",))
        self.note(op, path)

    # -- planned failures

    def inject(self, path: str, points: Tuple[str, ...], named: bool = False) -> None:
        """Carry out the failure that is planned for this point, or keep it until the file is
        closed. `named`: only if the plan calls the file by its name.
        """
        found = self.follower()
        if found is None or path in self.pending:
            return
        star = not named and looks_binary(path)
        entry = found.faults.at_file(self.relative(path), points, found.steps, named, star)
        if entry is None and "torn" in points and looks_binary(path):
            entry = found.faults.in_save(
                found.steps, self.in_another_thread(found, threading.get_ident())
            )
        if entry is None:
            return
        entry["after_step"] = found.steps
        if entry["how"] in ("before", "empty"):
            self.strike(entry, path)
        else:
            self.pending[path] = entry
            _Closing.watch(self, path)

    def strike(self, entry: Dict[str, Any], path: str) -> None:
        """Bring the file to the state that is planned, and carry out the failure. PlannedFailure,
        where the job is to see an exception.
        """
        found = self.follower()
        own.busy = True  # what is done here is none of the job's doing
        try:
            self.damage(entry["how"], path)
            if self.in_another_thread(found, threading.get_ident()):
                # a slow writer: what another thread does meanwhile is done
                _let_training_go_on(found)
        finally:
            own.busy = False
        self.flush()
        if world_size() > 1:
            _let_other_ranks_go_on(self.recording)
        found.faults.carry_out_inside(entry, entry["after_step"], self.relative(path))

    @staticmethod
    def damage(how: str, path: str) -> None:
        if how == "empty":
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))
        elif how == "torn":
            with open(path, "r+b") as file:
                file.truncate(os.fstat(file.fileno()).st_size // 2)
                file.flush()
                os.fsync(file.fileno())


class _Closing:
    """Tells when a file that this thread is about to open in Python is closed: at the next call or
    return in it, before the job does anything else.

    Closing is no audit event. The thread's profile function sees calls; it is left alone where the
    job has one.
    """

    def __init__(self, files: FileEvents, path: str) -> None:
        self._files, self._path, self._descriptor = files, os.path.realpath(path), ""
        self._name = path

    @classmethod
    def watch(cls, files: FileEvents, path: str) -> None:
        if sys.getprofile() is None and os.path.isdir("/proc/self/fd"):
            sys.setprofile(cls(files, path))

    def __call__(self, frame: Any, event: str, arg: Any) -> None:
        if self._name not in self._files.pending:
            sys.setprofile(None)
        elif not self._descriptor:
            self._descriptor = next((fd for fd, path in _descriptors() if path == self._path), "")
        elif _leads_to(self._descriptor) != self._path:
            sys.setprofile(None)
            safely(lambda: self._files.closed(self._name))


def _let_training_go_on(found: Any) -> None:
    """Until the training thread has made a step, or waits for this thread, or has ended."""
    steps_before, deadline = found.steps, time.monotonic() + _SLOW_WRITER_S
    while found.steps == steps_before and time.monotonic() < deadline:
        time.sleep(0.005)


def _let_other_ranks_go_on(recording: Recording) -> None:
    """Until they have done their part of the save, or wait for this rank: their records grow no
    more. A save that waits for no rank then looks finished without this rank's file.
    """
    folder = os.path.join(recording.folder, "attempt-%02d" % recording.attempt)
    mine = "rank%d-" % recording.rank
    began = since = now = time.monotonic()
    seen = -1
    while now - since < _QUIET_S and now - began < _OTHER_RANKS_S:
        names = [name for name in os.listdir(folder) if name.endswith(".jsonl")]
        others = [name for name in names if not name.startswith(mine)]
        size = sum(os.path.getsize(os.path.join(folder, name)) for name in others)
        if size != seen:
            seen, since = size, now
        time.sleep(0.01)
        now = time.monotonic()


def open_files() -> Set[str]:
    """The paths of this process's open files; where that cannot be known, everything counts as
    closed.
    """
    return {path for _, path in _descriptors()}


def _descriptors() -> List[Tuple[str, str]]:
    """(descriptor, what it leads to) of each open file."""
    try:
        return [(name, _leads_to(name)) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return []


def _leads_to(descriptor: str) -> str:
    try:
        return os.readlink("/proc/self/fd/" + descriptor)
    except OSError:
        return ""


_existing: Optional[FileEvents] = None
own = threading.local()


def events() -> Optional[FileEvents]:
    """The file events of this process; None where nothing is recorded or in a loader's worker."""
    global _existing
    recording = current()
    if recording is None or _in_loader_worker():
        return None
    if _existing is None or _existing.recording is not recording:
        _existing = FileEvents(recording, os.environ.get(ARM_DIR, ""))
        atexit.register(_existing.at_exit)
    return _existing


def _in_loader_worker() -> bool:
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


def say_trouble(error: BaseException) -> None:
    """Once."""
    if getattr(own, "told", False):
        return
    own.told = True
    recording = current()
    if recording is not None:
        recording.trouble("files", error)


def safely(work: Callable[[], Any]) -> None:
    """A planned failure goes through to the job, an error of the recorder does not."""
    try:
        work()
    except PlannedFailure as planned:
        raise planned.error from None
    except Exception as error:
        say_trouble(error)
