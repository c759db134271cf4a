"""One of two supervisors that contend for a run directory, as a program: waits at a gate, tries to lock, and reports the result.

One JSON line in, one out. `race`: wait until the gate shows `round`, then try; `try`: at once; `note`: record which attempt runs; `release`:
release the lock. It ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import sys
from pathlib import Path
from typing import Any

from ecrl_cli.errors import RunHeld
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.supervision.run_lock import RunLock, run_lock


class Contestant:
    def __init__(self, gate: Path) -> None:
        with gate.open("rb") as file:
            self._gate = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
        self._stack = contextlib.ExitStack()
        self._lock: RunLock | None = None

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "race":
            say({"ready": True})
            while self._gate[0] != order["round"]:
                os.sched_yield()
        if order["do"] in ("race", "try"):
            return self._try(Path(order["root"]))
        if order["do"] == "note":
            assert self._lock is not None
            self._lock.note(order["attempt"])
        else:
            self._stack.close()
        return {"done": True}

    def _try(self, root: Path) -> dict[str, Any]:
        try:
            self._lock = self._stack.enter_context(run_lock(RunLayout(root)))
        except RunHeld as error:
            return {"won": False, "code": error.exit_code, "said": error.line()}
        except Exception as error:
            return {"won": False, "code": 1, "said": f"untyped: {type(error).__name__}"}
        return {"won": True, "code": 0, "said": ""}


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main(gate: str) -> None:
    contestant = Contestant(Path(gate))
    for line in sys.stdin:
        say(contestant.answer(json.loads(line)))


if __name__ == "__main__":
    main(sys.argv[1])
