"""How the attempts of an audit are started: cold, as the user starts the job, or warm, forked from
processes that have imported what the job imports (ecrl/warm.py).

Two such processes take turns: a restart then has other hash seeds and other addresses than the
attempt that died, as two starts have.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from ecrl.warm import IMPORTS, LENGTH, TAG, TAG_BYTES
from ecrl_cli.linux.pdeathsig import with_pdeathsig

PROGRAM = "from ecrl.warm import main; main()"
_PYTHON = re.compile(r"^python(\d+(\.\d+)?)?$")
_FLAGS = ("-u", "-B", "-O", "-OO", "-P", "-b", "-bb", "-q")
_FLAGS_WITH_VALUE = ("-W", "-X")
_OF_AN_ATTEMPT = (  # variables that differ from one attempt to the next
    "ECRL_RECORD",
    "ECRL_ARM_DIR",
    "ECRL_ATTEMPT",
    "ECRL_STRIKES",
    "ECRL_CONTROL",
    TAG,
    IMPORTS,
)
_TURNS = 2
_PATIENCE_S = 600.0  # until a process has imported


class StartedProcess(Protocol):
    """The part of subprocess.Popen that an attempt needs."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class ScriptCommand:
    """`python FLAGS SCRIPT ...`: the only form of a command that is started warm."""

    interpreter: tuple[str, ...]
    script: str
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[str]) -> Self | None:
        """None for a command of another form: a launcher, a shell, python -m."""
        if not _PYTHON.match(Path(words[0]).name):
            return None
        place = 1
        while place < len(words) and words[place].startswith("-"):
            if words[place] not in (*_FLAGS, *_FLAGS_WITH_VALUE):
                return None
            place += 1 + (words[place] in _FLAGS_WITH_VALUE)
        if place >= len(words) or not words[place].endswith(".py"):
            return None
        return cls(tuple(words[:place]), words[place], tuple(words[place + 1 :]))


class ColdStarts:
    """Each attempt is a new interpreter. `warm`: whether anything is started warm; `why_cold`: why
    nothing is, where that was asked for.
    """

    warm, why_cold = False, ""

    def environment(self) -> dict[str, str]:
        """Variables that an attempt is given for its start's sake."""
        return {}

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], output: BinaryIO, attempt: int
    ) -> StartedProcess:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )

    def warm_up(self) -> None:
        """The first attempt is over."""

    def cool(self, why: str) -> None:
        """Start every attempt cold from now on."""

    def close(self) -> None:
        """Nothing is left to end."""


class WarmStarts(ColdStarts):
    """Cold until `warm_up`; then the job's script is started warm, and everything else cold.

    `folder`: for what the first attempt notes of its imports.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._first = folder, 0
        self._command: ScriptCommand | None = None
        self._environment: dict[str, str] = {}
        self._importers: list[Importer] = []

    def environment(self) -> dict[str, str]:
        """The first attempt notes its imports."""
        return {} if self.warm or self.why_cold else {IMPORTS: str(self._folder)}

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], output: BinaryIO, attempt: int
    ) -> StartedProcess:
        command = ScriptCommand.of(words)
        if not self.warm and not self.why_cold:
            child = super().start(words, environment, output, attempt)
            self._first, self._command = child.pid, command
            self._environment = _common(environment)
            return child
        if self.warm and command is not None and self._serves(command, environment):
            importer = self._importers[attempt % len(self._importers)]
            forked = importer.fork(words, command, environment, output)
            if forked is not None:
                return forked
            self.cool(importer.why_not() or "a process that had imported for it has died")
        return super().start(words, environment, output, attempt)

    def _serves(self, command: ScriptCommand, environment: Mapping[str, str]) -> bool:
        ours = self._command
        return (
            ours is not None
            and (ours.interpreter, ours.script) == (command.interpreter, command.script)
            and _common(environment) == self._environment
        )

    def warm_up(self) -> None:
        """Start the processes that import what the first attempt has imported."""
        noted = self._folder / f"imports-{self._first}.json"
        if self._command is None:
            self.why_cold = "the command is not `python SCRIPT.py ...`"
            return
        try:
            imports = json.loads(noted.read_text(encoding="utf-8"))
            noted.unlink()
            modules, names = imports["modules"], {name for name, _ in imports["modules"]}
        except (OSError, ValueError, KeyError):
            self.why_cold = "what it imports is not on record"
            return
        if imports["accelerator"]:
            self.why_cold = "it uses an accelerator, where warm starts have not been tried"
            return
        if imports["changed"] and "torch" not in names:
            self.why_cold = "its code changes environment variables before it imports torch"
            return
        for number in range(_TURNS):
            log = self._folder / f"warm-{number}.log"
            self._importers.append(Importer(self._command, self._environment, modules, log))
        self.why_cold = next(filter(None, [one.why_not() for one in self._importers]), "")
        if not self.why_cold and _seeded(*self._importers):
            self.why_cold = "a library that it imports seeds a random number generator"
        self.warm = not self.why_cold
        if self.why_cold:
            self.close()

    def cool(self, why: str) -> None:
        self.why_cold, self.warm = why, False
        self.close()

    def close(self) -> None:
        for importer in self._importers:
            importer.close()
        self._importers.clear()


def _common(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if name not in _OF_AN_ATTEMPT}


def _seeded(one: Importer, other: Importer) -> bool:
    """Whether the imports have seeded a generator: two processes then have the same state."""
    return any(other.generators.get(name) == state for name, state in one.generators.items())


class Importer:
    """A process that imports `modules` and then forks attempts of `command`."""

    def __init__(
        self,
        command: ScriptCommand,
        environment: Mapping[str, str],
        modules: Sequence[Sequence[str]],
        log: Path,
    ) -> None:
        python, *flags = command.interpreter
        # found as subprocess finds it
        python = shutil.which(python, path=environment.get("PATH")) or python
        self._line, theirs = socket.socketpair()
        # a file, as an attempt's output is, from which it reads what its imports have printed
        with log.open("w+b") as output, theirs:
            self._process = subprocess.Popen(
                with_pdeathsig([python, *flags, "-c", PROGRAM, str(theirs.fileno())]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment, TAG: " " * TAG_BYTES},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._line.settimeout(_PATIENCE_S)
        self._answers = self._line.makefile("rb")
        self._refused: str | None = None
        self.generators: dict[str, str] = {}  # digests of their state, where no seed is asked for
        self._order({"script": command.script, "modules": modules}, ())

    def fork(
        self,
        words: Sequence[str],
        command: ScriptCommand,
        environment: Mapping[str, str],
        output: BinaryIO,
    ) -> ForkedProcess | None:
        """An attempt; None if it cannot be had from here."""
        if self.why_not():
            return None
        order = {
            "words": list(words),
            "argv": [command.script, *command.arguments],
            "script": command.script,
            "environment": dict(environment),
            "cwd": str(Path.cwd()),
        }
        with open(os.devnull, "rb") as nothing:
            places = (nothing.fileno(), output.fileno(), output.fileno())
            if not self._order(order, places):
                return None
        pid = self._answer().get("pid")
        return ForkedProcess(pid) if isinstance(pid, int) and pid > 0 else None

    def why_not(self) -> str:
        """Why it forks nothing; empty once it has imported. Waits until it has."""
        if self._refused is None:
            answer = self._answer()
            gone = "the process that was to import for it has died"
            self._refused = str(answer.get("refused", gone))
            generators = answer.get("generators")
            self.generators = generators if isinstance(generators, dict) else {}
        return self._refused

    def _order(self, order: Mapping[str, object], descriptors: Sequence[int]) -> bool:
        body = json.dumps(order).encode()
        try:
            socket.send_fds(self._line, [LENGTH.pack(len(body))], list(descriptors))
            self._line.sendall(body)
        except OSError:
            return False
        return True

    def _answer(self) -> dict[str, object]:
        try:
            text = self._answers.readline()
            answer = json.loads(text) if text else {}
        except (OSError, ValueError):
            answer = {}
        return answer if isinstance(answer, dict) else {}

    def close(self) -> None:
        self._answers.close()
        self._line.close()
        self._process.kill()
        self._process.wait()


class ForkedProcess:
    """A child of this process that another has forked for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        status = self._wait(0)
        return 0 if status is None else status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self._status is None:
            try:
                reaped, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # reaped by somebody else: its status is lost
                self._status = 0
            else:
                if reaped:
                    self._status = os.waitstatus_to_exitcode(status)
        return self._status
