"""Audits rows of jobs.yaml and counts false alarms and misses, a line for each row as it ends.

    python -m tests.strangers [--cold] [--keep DIR] [WORD ...]
    python -m tests.strangers --again DIR [WORD ...]

Rows whose name holds one of the words, or all. Jobs are started warm (warm.py), which takes a tenth
of the time; `--cold`: as their users start them. `--keep`: the recordings stay in DIR, and what is
there already is only judged; `--again`: so is everything, and no job is run.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from tests.strangers.auditor import Auditor
from tests.strangers.table import Row, interpreter_of, read_table


def parser() -> ArgumentParser:
    made = ArgumentParser(prog="python -m tests.strangers")
    made.add_argument("words", nargs="*")
    made.add_argument("--cold", action="store_true")
    folders = made.add_mutually_exclusive_group()
    folders.add_argument("--keep", type=Path)
    folders.add_argument("--again", type=Path)
    return made


def main(asked: Namespace) -> int:
    rows = [
        row
        for row in read_table()
        if not asked.words or any(word in row.name for word in asked.words)
    ]
    counts = dict.fromkeys(("right", "false alarm", "miss", "wrong words", "skipped"), 0)
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="ecrl-strangers-"))
        folder = (asked.keep or asked.again or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        auditor = Auditor(folder, asked.cold, stack)
        for row in rows:
            there = asked.keep is not None and auditor.has(row)
            verdict, parts = outcome(auditor, row, again=there or asked.again is not None)
            counts[verdict] += 1
            sys.stdout.write("\n    ".join(parts) + "\n")
            sys.stdout.flush()
    sys.stdout.write(", ".join(f"{name} {count}" for name, count in counts.items()) + "\n")
    return int(any(counts[name] for name in ("false alarm", "miss", "wrong words")))


def outcome(auditor: Auditor, row: Row, again: bool) -> tuple[str, list[str]]:
    """What became of the row, and lines that tell it."""
    interpreter, missing = interpreter_of(row)
    try:
        if missing and not again:
            return "skipped", [f"skipped: {row.name}: {missing}"]
        done, wrong = auditor.judge_again(row) if again else auditor.audit(row, interpreter)
    except FileNotFoundError as error:
        return "skipped", [f"skipped: {row.name}: no recording in {error}"]
    verdict = judged(row, done.returncode, wrong)
    line = [*done.stdout.splitlines()[:1], *done.stderr.splitlines()[-1:], ""][0]
    return verdict, [
        f"{verdict}: {row.name}: due {row.code}, got {done.returncode}: {line}",
        *wrong,
    ]


def judged(row: Row, code: int, wrong: list[str]) -> str:
    if code == row.code:
        return "wrong words" if wrong else "right"
    return "miss" if row.kind == "broken" else "false alarm"


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
