"""Dumps the stacks of a rank's threads when the supervisor sends a signal, so that a hung rank can still answer.

The C handler of `faulthandler` takes no lock, not even the GIL, so it works while a thread holds that for ever. It writes into an anonymous
memory file (memfd) that the supervisor has opened; nothing is left on disk unless there was a hang.
"""

from __future__ import annotations

import faulthandler
import os
import signal

DUMP_SIGNAL = signal.SIGUSR2


def answer() -> int:
    """Dump all stacks on DUMP_SIGNAL from now on; returns the memory file's descriptor."""
    memory = os.memfd_create("ecrl-stacks")
    faulthandler.register(DUMP_SIGNAL, file=memory, all_threads=True, chain=False)
    return memory


def silence(memory: int) -> None:
    """Undo `answer`."""
    faulthandler.unregister(DUMP_SIGNAL)
    os.close(memory)
