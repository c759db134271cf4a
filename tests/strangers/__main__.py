"""Audits rows of jobs.yaml and counts false alarms and misses, a line for each row as it ends.

    python -m tests.strangers [--cold] [WORD ...]     rows whose name holds one of the words, or all

Jobs are started warm (warm.py), which takes a tenth of the time; `--cold`: as their users start
them.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

from tests.strangers.auditor import Auditor
from tests.strangers.table import Row, interpreter_of, read_table


def main(words: list[str]) -> int:
    asked = [word for word in words if word != "--cold"]
    rows = [row for row in read_table() if not asked or any(word in row.name for word in asked)]
    counts = dict.fromkeys(("right", "false alarm", "miss", "wrong words", "skipped"), 0)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ecrl-strangers-")))
        auditor = Auditor(folder, "--cold" in words, stack)
        for row in rows:
            interpreter, missing = interpreter_of(row)
            if missing:
                verdict, parts = "skipped", [f"skipped: {row.name}: {missing}"]
            else:
                done, wrong = auditor.audit(row, interpreter)
                verdict = judged(row, done.returncode, wrong)
                line = [*done.stdout.splitlines()[:1], *done.stderr.splitlines()[-1:], ""][0]
                told = f"{verdict}: {row.name}: due {row.code}, got {done.returncode}: {line}"
                parts = [told, *wrong]
            counts[verdict] += 1
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
