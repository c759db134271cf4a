"""Audits rows of jobs.yaml and counts false alarms and misses, a line for each row as it ends.

    python -m tests.strangers [--cold] [WORD ...]     rows whose name holds one of the words, or all

Jobs are started warm (warm.py), which takes a tenth of the time; `--cold`: as their users start them.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

from tests.in_process import ecrl_in_process
from tests.strangers import warm
from tests.strangers.contradictions import contradictions
from tests.strangers.table import Row, answer, command_of, interpreter_of, read_table, wrong_words

COLD = ("workers_exact",)  # what outlives its attempt is not seen in a warm one


class Auditor:
    """Audits rows, each in a folder of its own below `folder`."""

    def __init__(self, folder: Path, cold: bool, stack: contextlib.ExitStack) -> None:
        self._folder, self._cold, self._stack = folder, cold, stack
        self._sockets: dict[str, str] = {}

    def audit(self, row: Row, interpreter: str) -> tuple[int, str, list[str]]:
        """(exit code, first line of the answer, what is wrong with it)."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        words = self._words(row, interpreter)
        keys = ("audit", *row.keys, "run_dir=job", "--", *words)
        done = ecrl_in_process(folder, *keys, check=None)
        document = answer(folder / "job")
        wrong = [*wrong_words(row, document), *contradictions(document.get("findings", ()))]
        lines = done.stdout.splitlines() or done.stderr.splitlines()[-1:] or [""]
        return done.returncode, lines[0], wrong

    def _words(self, row: Row, interpreter: str) -> list[str]:
        words = command_of(row, interpreter)
        if self._cold or row.job in COLD:
            return words
        ranks, script = "0", next(i for i, word in enumerate(words) if word.endswith(".py"))
        if "--nproc-per-node" in words:
            ranks = words[words.index("--nproc-per-node") + 1]
        if interpreter not in self._sockets:
            path = self._sockets[interpreter] = str(self._folder / f"socket-{len(self._sockets)}")
            self._stack.enter_context(warm.serving(interpreter, path))
        return [interpreter, "-IS", warm.__file__, self._sockets[interpreter], ranks, *words[script:]]


def main(words: list[str]) -> int:
    asked = [word for word in words if word != "--cold"]
    rows = [row for row in read_table() if not asked or any(word in row.name for word in asked)]
    counts = dict.fromkeys(("right", "false alarm", "miss", "wrong words", "skipped"), 0)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ecrl-strangers-")))
        auditor = Auditor(folder, "--cold" in words, stack)
        for row in rows:
            interpreter, missing = interpreter_of(row)
            code, line, wrong = auditor.audit(row, interpreter) if not missing else (0, missing, [])
            verdict = "skipped" if missing else judged(row, code, wrong)
            counts[verdict] += 1
            parts = [f"{verdict}: {row.name}: due {row.code}, got {code}: {line}", *wrong]
            sys.stdout.write("\n    ".join(parts) + "\n")
            sys.stdout.flush()
    sys.stdout.write(", ".join(f"{name} {count}" for name, count in counts.items()) + "\n")
    return int(any(counts[name] for name in ("false alarm", "miss", "wrong words")))


def judged(row: Row, code: int, wrong: list[str]) -> str:
    if code == row.code:
        return "wrong words" if wrong else "right"
    return "miss" if row.kind == "broken" else "false alarm"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
