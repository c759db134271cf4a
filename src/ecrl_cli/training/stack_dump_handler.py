"""What a rank's threads are doing, written down when the supervisor asks: by a signal, so that a rank that is stuck can still answer.

The C handler of `faulthandler` takes no lock, neither Python's own: one that holds it for ever answers too. It writes into a memory file
without a name, which the supervisor has opened; nothing is left on disk unless there was a hang.
"""

from __future__ import annotations

import faulthandler
import os
import signal

TELL = signal.SIGUSR2


def answer() -> int:
    """From now on TELL is answered; gives the number of the descriptor of the memory file."""
    memory = os.memfd_create("ecrl-stacks")
    faulthandler.register(TELL, file=memory, all_threads=True, chain=False)
    return memory


def silence(memory: int) -> None:
    """Undo `answer`."""
    faulthandler.unregister(TELL)
    os.close(memory)
