"""Every error ECRL raises on purpose, and the exit code each one ends the command with.

EcrlError ├── InputError                2   bad input or configuration; nothing was written │   ├──
ConfigError               a key, a value or a combination │   ├── DatasetError              a data
set that is missing, damaged or unreadable │   ├── RunDirectoryError         a folder that is not a
run, another run's, or not writable │   └── RecordError               a record that cannot be read
(torn in the middle, wrong schema) ├── EvidenceMissing           3   what would be judged is not
there ├── NoValidCheckpoint         4   checkpoints exist, none passes the integrity check ├──
StorageError              5   the file system refused, with its errno ├── CheckpointConflict
5   another, different checkpoint already holds that name ├── LossNotFinite             1   a loss
that is NaN or infinite: the step is neither logged nor saved; a restart may cure it ├── NoProgress
7   restarts spent, or two in a row gained no step │   └── Hung                  6   the same, and
what gained no step hung ├── RunHeld                   8   another supervisor owns the run directory
├── Fenced                    9   a newer attempt owns the store └── Stopped             130/143
SIGINT; SIGTERM or SIGHUP; the run can be resumed

What nobody foresaw ends the command with DEFECT (70). The printed form is one line: ``ecrl: error:
E-<code> <key>: <fact>; <remedy>``.
"""

from __future__ import annotations

import errno as errno_names
import os
from pathlib import Path

DEFECT = 70  # EX_SOFTWARE of sysexits.h: no verdict; Python's own 1 would read as `invalid`


def shown(value: object, limit: int = 80) -> str:
    """`value` as it appears in a message: quoted where it is text, cut at `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def visible(text: object) -> str:
    """`text` on one line of a terminal: control characters, marks that turn text around and bytes
    that are no text are shown as escapes.
    """
    plain = str(text)
    return (
        plain
        if plain.isprintable()
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)
    )


def first_line(error: BaseException, limit: int = 300) -> str:
    """The type and the first line of what `error` says: of errors that are not ours, whose texts
    may be long.
    """
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:limit]


def plural(number: int, one: str, many: str = "") -> str:
    """`1 run`, `2 runs`; `many`: the plural where it is not `one` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


class EcrlError(Exception):
    """An expected failure: what (`code`), where (`key`), the `fact`, the way out (`remedy`)."""

    exit_code = 1
    code = "error"

    def __init__(self, key: str, fact: str, remedy: str = "", *, code: str = "") -> None:
        self.key, self.fact, self.remedy = key, fact, remedy
        self.code = code or type(self).code
        super().__init__(self.line())

    def line(self) -> str:
        """The one line that a person reads, without the program's name in front."""
        body = f"E-{self.code} {self.key}: {self.fact}"
        return visible((f"{body}; {self.remedy}" if self.remedy else body).replace("\n", " "))

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.key, self.fact, self.remedy, self.code))


def _rebuild(kind: type[EcrlError], key: str, fact: str, remedy: str, code: str) -> EcrlError:
    return kind(key, fact, remedy, code=code)


class InputError(EcrlError):
    exit_code = 2
    code = "input"


class ConfigError(InputError):
    code = "config"


class DatasetError(InputError):
    code = "dataset"


class RunDirectoryError(InputError):
    code = "run-dir"


class RecordError(InputError):
    code = "record"


class RecordTooLarge(RecordError):
    """A record of more bytes than a run of its configuration can have written: not read."""


class EvidenceMissing(EcrlError):
    exit_code = 3
    code = "unknown"


class NoValidCheckpoint(EcrlError):
    exit_code = 4
    code = "no-valid-checkpoint"


class StorageError(EcrlError):
    exit_code = 5
    code = "storage"
    errno = 0

    @classmethod
    def of(cls, call: str, path: object, error: OSError, needed: int | None = None) -> StorageError:
        """The error of file-system call `call` on `path` (None: the system names none), with the
        errno by name (and by number in `errno`). `needed`: how many bytes were to be written, by
        which a full disk is told with what is free on it.
        """
        name = errno_names.errorcode.get(error.errno or 0, "unknown errno")
        where = "" if path is None else f" at {path}"
        full = error.errno in (errno_names.ENOSPC, errno_names.EDQUOT) and needed is not None
        room = _room(str(path), needed or 0) if full else ""
        made = cls(call, f"{name}{where} ({error.strerror or error}{room})")
        made.errno = error.errno or 0
        return made


def _room(path: str, needed: int) -> str:
    """How many bytes were to be written and how many are free there; empty if nobody knows."""
    try:
        volume = os.statvfs(Path(path).parent)
    except OSError:
        return ""
    free = volume.f_bavail * volume.f_frsize
    return f": {plural(needed, 'byte')} to write, {free} free"


class CheckpointConflict(StorageError):
    code = "conflict"


class LossNotFinite(EcrlError):
    """A step whose loss is NaN or infinite. Not incurable: the attempt dies, the next one goes on
    from the last checkpoint.
    """

    code = "loss"


class NoProgress(EcrlError):
    exit_code = 7
    code = "no-progress"


class Hung(NoProgress):
    exit_code = 6
    code = "hung"


class RunHeld(EcrlError):
    exit_code = 8
    code = "held"


class Fenced(EcrlError):
    exit_code = 9
    code = "fenced"


STOPPED = (130, 143)  # exit codes of what was stopped by a signal and can be resumed


class Stopped(EcrlError):
    """Stopped by a signal; `exit_code` is 128 + the signal number, SIGTERM's for SIGHUP."""

    code = "stopped"

    def __init__(self, key: str, fact: str, remedy: str = "", *, code: str = "") -> None:
        super().__init__(key, fact, remedy, code=code)
        self.exit_code = STOPPED[0] if key == "SIGINT" else STOPPED[1]
