"""Stands in for runs.kept: claims the entries and ends as its run's `stays.json` says, one line per
stay; no supervisor, no ranks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from ecrl_cli.failures.fault_log import claim
from ecrl_cli.records.events import InjectedFault
from ecrl_cli.records.layout import RunLayout


def main(argv: list[str]) -> None:
    root = Path(argv[0])
    endings = json.loads((root / "supervisors.json").read_text())
    log = root / "started"
    number = len(log.read_text()) if log.exists() else 0
    log.write_text("x" * (number + 1))
    ending = endings[number]
    for index in ending.get("fires", []):
        claim(RunLayout(root), InjectedFault(index, "kind", 0, 0, 0, 0.0, 0.0))
    if ending.get("waits"):
        signal.sigwait({signal.SIGTERM})
    if "error" in ending:
        os.write(int(argv[1]), json.dumps(ending["error"]).encode())
    if ending["code"] < 0:
        os.kill(os.getpid(), -ending["code"])
    sys.exit(ending["code"])


if __name__ == "__main__":
    main(sys.argv[1:])
