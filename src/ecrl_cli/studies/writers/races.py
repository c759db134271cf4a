"""Two supervisors start on one run directory at the same instant: one gets the lock, the other is told the owner, and a death releases it."""

from __future__ import annotations

import json
import mmap
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from ecrl_cli.supervision.launch.child_environment import child_environment

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
        self._rivals: list[subprocess.Popen[str]] = []
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
            rival.kill()
            rival.communicate()
        self._rivals = []
        if self._shown:
            self._shown.close()

    def _race(self, rivals: list[subprocess.Popen[str]], root: Path, number: int) -> dict[str, Any]:
        assert self._shown is not None
        turn = 1 + number % 255
        self._shown[0] = 0
        for rival in rivals[:: 1 if number % 2 else -1]:
            _tell(rival, {"do": "race", "round": turn, "root": str(root)})
            _hear(rival)
        self._shown[0] = turn
        results = [_hear(rival) for rival in rivals]
        winners = [rival for rival, result in zip(rivals, results, strict=True) if result["won"]]
        found = {"winners": len(winners), "codes": [result["code"] for result in results]}
        if len(winners) != 1:
            self.close()
            return found | {"names_holder": False, "names_attempt": False, "freed": False}
        winner, loser = winners[0], next(rival for rival in rivals if rival is not winners[0])
        told = f"pid {winner.pid} on {socket.gethostname()}"
        names = all(told in result["said"] for result in results if not result["won"])
        _ask(winner, {"do": "note", "attempt": ATTEMPT})
        again = _ask(loser, {"do": "try", "root": str(root)})
        if number % KILLED_EVERY == 0:
            winner.kill()
            winner.communicate()
        else:
            _ask(winner, {"do": "release"})
        freed = _ask(loser, {"do": "try", "root": str(root)})["won"]
        _ask(loser, {"do": "release"})
        return found | {"names_holder": names, "names_attempt": f"{told}, attempt {ATTEMPT}" in again["said"], "freed": freed}

    def _both(self) -> list[subprocess.Popen[str]]:
        if self._shown is None:
            self._gate.write_bytes(b"\0")
            with self._gate.open("r+b") as file:
                self._shown = mmap.mmap(file.fileno(), 1)
        self._rivals = [rival for rival in self._rivals if rival.poll() is None]
        command = [sys.executable, "-m", "ecrl_cli.studies.writers.lock_contender", str(self._gate)]
        while len(self._rivals) < 2:
            self._rivals.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment(None, 1)))
        return self._rivals


def stale_of(number: int) -> str:
    return list(STALE)[number % len(STALE)]


def sound(found: dict[str, Any]) -> bool:
    """One winner; the loser exited with code 8, was told the owner, and got the lock when the owner released it or died."""
    told = found["names_holder"] and found["names_attempt"]
    return bool(found["winners"] == 1 and sorted(found["codes"]) == [0, 8] and told and found["freed"])


def _tell(rival: subprocess.Popen[str], order: dict[str, Any]) -> None:
    assert rival.stdin is not None
    rival.stdin.write(json.dumps(order) + "\n")
    rival.stdin.flush()


def _hear(rival: subprocess.Popen[str]) -> dict[str, Any]:
    assert rival.stdout is not None
    said: dict[str, Any] = json.loads(rival.stdout.readline())
    return said


def _ask(rival: subprocess.Popen[str], order: dict[str, Any]) -> dict[str, Any]:
    _tell(rival, order)
    return _hear(rival)
