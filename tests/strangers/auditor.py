"""Audits rows of the table, with jobs started warm (warm.py) or as their users start them."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.in_process import ecrl_in_process
from tests.strangers import warm
from tests.strangers.contradictions import contradictions
from tests.strangers.table import Row, answer, command_of, wrong_words

Done = subprocess.CompletedProcess[str]
COLD = ("workers_exact",)  # what outlives its attempt is not seen in a warm one


class Auditor:
    """Audits rows, each in a folder of its own below `folder`."""

    def __init__(self, folder: Path, cold: bool, stack: contextlib.ExitStack) -> None:
        self._folder, self._cold, self._stack = folder, cold, stack
        self._sockets_in = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ecrl-")))
        self._sockets: dict[str, str] = {}

    def audit(self, row: Row, interpreter: str) -> tuple[Done, list[str]]:
        """The finished command, and what is wrong with the words of its answer."""
        folder = self._folder_of(row)
        shutil.rmtree(folder, ignore_errors=True)  # of one that was stopped
        folder.mkdir()
        words = self._words(row, interpreter)
        # warm already, but where rows are started as their users start them
        starts = () if self._cold else ("audit.warm=false",)
        keys = ("audit", *row.keys, *starts, "run_dir=job", "--", *words)
        done = ecrl_in_process(folder, *keys, check=None)
        return done, _wrong(row, folder / "job")

    def judge_again(self, row: Row) -> tuple[Done, list[str]]:
        """As `audit`, of what an earlier one recorded below the same folder; no job is run.
        FileNotFoundError if it did not.
        """
        folder = self._folder_of(row)
        if not self.has(row):
            raise FileNotFoundError(folder)
        done = ecrl_in_process(folder, "audit", "job", check=None)
        return done, _wrong(row, folder / "job")

    def has(self, row: Row) -> bool:
        return (self._folder_of(row) / "job" / "audit.json").is_file()

    def _folder_of(self, row: Row) -> Path:
        return self._folder / hashlib.sha256(row.name.encode()).hexdigest()[:12]

    def _words(self, row: Row, interpreter: str) -> list[str]:
        words = command_of(row, interpreter)
        if self._cold or row.job in COLD:
            return words
        ranks, script = "0", next(i for i, word in enumerate(words) if word.endswith(".py"))
        if "--nproc-per-node" in words:
            ranks = words[words.index("--nproc-per-node") + 1]
        if interpreter not in self._sockets:
            path = self._sockets[interpreter] = str(self._sockets_in / str(len(self._sockets)))
            self._stack.enter_context(warm.serving(interpreter, path))
        return [
            interpreter,
            "-IS",
            warm.__file__,
            self._sockets[interpreter],
            ranks,
            *words[script:],
        ]


def _wrong(row: Row, folder: Path) -> list[str]:
    document = answer(folder)
    return [*wrong_words(row, document), *contradictions(document.get("findings", ()))]
