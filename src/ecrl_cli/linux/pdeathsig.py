"""Processes that are killed when their parent dies (Linux: PR_SET_PDEATHSIG). Standard library
only: this file also runs as a script.

`python -I -S pdeathsig.py PARENT [--deaf] COMMAND...` executes COMMAND, which the kernel kills when
process PARENT dies. It is a script rather than a `preexec_fn` because the latter is unsafe in a
process with threads. With --deaf, COMMAND and its children start with SIGTERM, SIGINT and SIGHUP
ignored: a scheduler or a terminal may send these to every process of a job, and only the supervisor
is to react.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
ORPHANED = 9
DEAF = "--deaf"
ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def with_pdeathsig(command: list[str], *, deaf: bool = False) -> list[str]:
    """`command`, as a child that the kernel kills when this process dies; if `deaf`, it ignores
    SIGTERM, SIGINT and SIGHUP.

    Costs the start of a bare interpreter, about 15 ms.
    """
    return [
        sys.executable,
        "-I",
        "-S",
        __file__,
        str(os.getpid()),
        *([DEAF] if deaf else []),
        *command,
    ]


def die_with_parent(parent: int = 0) -> None:
    """Have this process killed when its parent dies. Exits at once with code 9 if the parent has
    died already.

    With `parent` that is so when the parent's pid is no longer `parent`. Without it, when the
    parent is now init or the supervisor (the environment's ECRL_SUPERVISOR), which adopts its
    agent's orphans.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    now = os.getppid()
    if now != parent if parent else now in (1, int(os.environ.get("ECRL_SUPERVISOR", "0"))):
        os._exit(ORPHANED)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    command = sys.argv[2:]
    if command[0] == DEAF:
        command = command[1:]
        for number in ASKING:
            signal.signal(number, signal.SIG_IGN)
    os.execv(command[0], command)
