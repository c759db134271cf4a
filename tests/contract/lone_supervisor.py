"""A supervisor to be killed: launches two waiting ranks, prints their ids and the launcher's own,
waits.

`python -m tests.contract.lone_supervisor KIND RUN_DIR`
"""

from __future__ import annotations

import sys
from pathlib import Path

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.watch.attempt_monitor import AttemptMonitor
from ecrl_cli.supervision.watch.control_server import ControlServer
from tests.contract.standin import pids_of_ranks, spec, standin_launcher
from tests.contract.test_launchers import launchers_process


def main(kind: str, root: Path) -> None:
    layout = RunLayout(root.resolve())
    listener = ControlServer(layout)
    with StopSignals() as stop:
        running = standin_launcher(kind).launch(spec(layout))

        def tell(progress: object) -> None:
            pids = [*pids_of_ranks(layout), launchers_process(running)]
            sys.stdout.write(" ".join(map(str, pids)) + "\n")
            sys.stdout.flush()

        AttemptMonitor(running, 0, listener, stop).run(tell)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
