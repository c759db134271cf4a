"""Two supervisors start on one run directory at the same instant: one gets the lock, the other is
told the owner, and a death releases it.

`python -m ecrl_cli.studies.writers.races GATE` is one of the two. It gets lines of JSON. `race`:
wait until the gate shows `round`, then try to lock; `try`: at once; `note`: record which attempt
runs; `release`: release the lock.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

from ecrl_cli.errors import RunHeld
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies.frame.child import JsonProgram, say, serve
from ecrl_cli.supervision.launch.child_environment import child_environment
from ecrl_cli.supervision.run_lock import RunLock, run_lock

# Content that a predecessor may have left in the lock file.
STALE = {
    "nothing": None,
    "empty": b"",
    "no JSON": b"\xff\xfe garbage",
    "a dead holder": b'{"pid": 4194305, "host": "%s", "since": 1.0, "attempt": 3}',
    "nested 4096 deep": b"[" * 4096,
    "a lie": b'{"pid": "\\u001b[31m", "host": "nowhere", "attempt": 99}',
}
ATTEMPT = 7
KILLED_EVERY = 10  # trials in which the winner dies instead of releasing


class Races:
    """Two contenders that live as long as the study; a killed one is replaced."""

    def __init__(self, scratch: Path) -> None:
        self._scratch, self._gate = scratch, scratch / "gate"
        self._rivals: list[JsonProgram] = []
        self._shown: mmap.mmap | None = None

    def run(self, number: int) -> dict[str, Any]:
        """One race, from a predecessor's leftover to the loser's second try."""
        rivals, root = self._both(), self._scratch / "raced"
        root.mkdir()
        stale = STALE[stale_of(number)]
        if stale is not None:
            (root / ".lock").write_bytes(stale.replace(b"%s", socket.gethostname().encode()))
        try:
            return self._race(rivals, root, number)
        finally:
            shutil.rmtree(root)

    def close(self) -> None:
        for rival in self._rivals:
            rival.close(kill=True)
        self._rivals = []
        if self._shown:
            self._shown.close()

    def _race(self, rivals: list[JsonProgram], root: Path, number: int) -> dict[str, Any]:
        assert self._shown is not None
        turn = 1 + number % 255
        self._shown[0] = 0
        for rival in rivals[:: 1 if number % 2 else -1]:
            rival.ask({"do": "race", "round": turn, "root": str(root)})  # it says that it is ready
        self._shown[0] = turn
        results = [rival.hear() for rival in rivals]
        winners = [rival for rival, result in zip(rivals, results, strict=True) if result["won"]]
        found = {"winners": len(winners), "codes": [result["code"] for result in results]}
        if len(winners) != 1:
            self.close()
            return found | {"names_holder": False, "names_attempt": False, "freed": False}
        winner, loser = winners[0], next(rival for rival in rivals if rival is not winners[0])
        told = f"pid {winner.process.pid} on {socket.gethostname()}"
        names = all(told in result["said"] for result in results if not result["won"])
        winner.ask({"do": "note", "attempt": ATTEMPT})
        again = loser.ask({"do": "try", "root": str(root)})
        if number % KILLED_EVERY == 0:
            winner.close(kill=True)
        else:
            winner.ask({"do": "release"})
        freed = loser.ask({"do": "try", "root": str(root)})["won"]
        loser.ask({"do": "release"})
        return found | {
            "names_holder": names,
            "names_attempt": f"{told}, attempt {ATTEMPT}" in again["said"],
            "freed": freed,
        }

    def _both(self) -> list[JsonProgram]:
        if self._shown is None:
            self._gate.write_bytes(b"\0")
            with self._gate.open("r+b") as file:
                self._shown = mmap.mmap(file.fileno(), 1)
        self._rivals = [rival for rival in self._rivals if rival.process.poll() is None]
        while len(self._rivals) < 2:
            self._rivals.append(
                JsonProgram(
                    "ecrl_cli.studies.writers.races",
                    str(self._gate),
                    env=child_environment(None, 1),
                )
            )
        return self._rivals


def stale_of(number: int) -> str:
    return list(STALE)[number % len(STALE)]


def sound(found: dict[str, Any]) -> bool:
    """One winner; the loser exited with code 8, was told the owner, and got the lock when the owner
    released it or died.
    """
    told = found["names_holder"] and found["names_attempt"]
    return bool(
        found["winners"] == 1 and sorted(found["codes"]) == [0, 8] and told and found["freed"]
    )


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


if __name__ == "__main__":
    serve(Contestant(Path(sys.argv[1])).answer)
