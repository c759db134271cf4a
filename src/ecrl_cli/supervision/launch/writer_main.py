"""The background writer's program: `python -m ecrl_cli.supervision.launch.writer_main RUN_DIR
[LISTENING_FD [HEARTBEAT_FD]]`. Torch-free.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path

from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.writer.server import Writer, die_of
from ecrl_cli.failures.fault_log import fired_indices
from ecrl_cli.failures.faulty_store import store_for
from ecrl_cli.failures.plan import pending, read_plan
from ecrl_cli.linux.pdeathsig import die_with_parent
from ecrl_cli.linux.unix_socket import listen
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.supervision.attempts.checkpoint_reconciliation import close_received


def store_of(layout: RunLayout) -> CheckpointStore:
    """The run's checkpoint store, with fault injection if planned failures of a save are still
    pending.
    """
    stored = read_run_config(layout)
    left = pending(read_plan(layout), fired_indices(layout)) if layout.failures.exists() else ()
    return store_for(layout.checkpoints, StoreConfig.of(stored.config, stored.run_id), layout, left)


def main(argv: list[str]) -> None:
    die_with_parent(os.getppid())
    threading.excepthook = die_of
    # the supervisor handles Ctrl-C: checkpoints already received are written first
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    layout = RunLayout(Path(argv[0]))
    listener = socket.socket(fileno=int(argv[1])) if len(argv) > 1 else listen(layout.writer)
    store = store_of(layout)
    close_received(layout, store)
    Writer(layout, store, listener, HeartbeatTable(int(argv[2])) if len(argv) > 2 else None).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
