"""Children of a study: a program that answers lines of JSON, and a fork that does one thing and is
certain to end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TextIO

from ecrl_cli.linux.pdeathsig import die_with_parent


class JsonProgram:
    """`python -m module args`: it gets each request as a line of JSON and answers with one.
    `options`: of Popen.
    """

    def __init__(self, module: str, *args: str, **options: Any) -> None:
        self._module, command = module, [sys.executable, "-m", module, *args]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )

    def tell(self, request: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def hear(self, seconds: float | None = None) -> dict[str, Any]:
        """The next answer. EOFError if the program has ended, TimeoutError after `seconds` without
        an answer.
        """
        assert self.process.stdout is not None
        if seconds is not None and not select.select([self.process.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"{self._module} gave no answer in {seconds:g} s")
        if not (line := self.process.stdout.readline()):
            raise EOFError(
                f"{self._module} ended without an answer (exit code {self.process.wait()})"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, request: object, seconds: float | None = None) -> dict[str, Any]:
        self.tell(request)
        return self.hear(seconds)

    def close(self, *, kill: bool = False) -> None:
        """End of its input, at which it ends by itself, or a kill; then wait for its end. No error
        if it has ended before.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        if kill:
            self.process.kill()
            self.process.wait()
        with suppress(BrokenPipeError):  # closing writes what the program did not read any more
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def say(answer: object, out: TextIO | None = None) -> None:
    """In the program: one line."""
    out = out or sys.stdout
    out.write(json.dumps(answer) + "\n")
    out.flush()


def serve(answer: Callable[[Any], object], out: TextIO | None = None) -> None:
    """In the program: answer every request until the input ends."""
    for line in sys.stdin:
        say(answer(json.loads(line)), out)


def forked(act: Callable[[], object], seconds: float) -> tuple[Any, str]:
    """Runs `act` in a forked child; returns its result, as JSON, and an empty string; or None and
    `hung` or `died`. The child dies with this process, too.
    """
    back, out = os.pipe()
    parent = os.getpid()
    if (child := os.fork()) == 0:
        _in_child(act, out, parent)
    os.close(out)
    data = b""
    try:
        while not data.endswith(b"\n"):
            if not select.select([back], [], [], seconds)[0]:
                return None, "hung"
            if not (piece := os.read(back, 65536)):
                return None, "died"
            data += piece
        return json.loads(data), ""
    finally:
        os.close(back)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _in_child(act: Callable[[], object], out: int, parent: int) -> NoReturn:
    """Never returns into the parent's code."""
    try:
        die_with_parent(parent)
        os.write(out, json.dumps(act()).encode() + b"\n")
    finally:
        os._exit(0)
