"""Processes that never outlive their parent (Linux: PR_SET_PDEATHSIG). Standard library only: this file also runs by itself.

`python -I -S mortal.py PARENT [--deaf] COMMAND...` becomes COMMAND and is killed by the kernel when process PARENT dies. A program of its own
rather than a `preexec_fn`, because that is not safe in a process with threads. With --deaf, COMMAND and its children begin life ignoring
what asks a process to end: a scheduler or a terminal may send that to every process of a job, and only the supervisor is to hear it. Sent
to such a process alone, it does nothing.
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


def die_with_parent(parent: int = 0) -> None:
    """Be killed when the parent dies. Ends at once (exit code 9) where it has died already: its id is then no longer `parent`.

    Without `parent`, an orphan is recognised by its new parent: init, or the supervisor, which adopts the orphans of its agent.
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
