"""`python -m tests.mutants.worker`, in a copy of the tree: runs tests against one fault after
another, each in a fork that begins with all imported.

A JSON line in: `file`, `source` (what it becomes for this fault) or null, `tests`, `silence_s` (for
which none of them may end). A JSON line out: `code`, pytest's exit code, or null where it was
silent for longer; `test`, the first that failed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy  # noqa: F401 -- what most tests import, before the fork
import pandas  # noqa: F401
import pytest
import torch.distributed  # noqa: F401
import yaml  # noqa: F401

FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+(?: \S+)*?)(?: - .*)?$", re.MULTILINE)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    written = Path("mutant.log")
    for count, line in enumerate(sys.stdin):
        task = json.loads(line)
        file, original = Path("src") / (task["file"] or "none"), b""
        if task["source"] is not None:
            original = file.read_bytes()
            file.write_text(task["source"])
            # no compiled file is of this time: what was compiled before does not stand for it
            os.utime(file, (count, count))
        if (child := os.fork()) == 0:
            _run_tests(task["tests"], written)
        code = _ended(child, written, task["silence_s"])
        if task["source"] is not None:
            file.write_bytes(original)
        failed = FAILED.search(written.read_text(errors="replace"))
        answers.write(
            json.dumps({"code": code, "test": failed.group(1) if failed else None}) + "\n"
        )
        answers.flush()


def _run_tests(tests: list[str], written: Path) -> None:
    os.setsid()
    log = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        code = int(
            pytest.main(
                [
                    *tests,
                    "-x",
                    "-q",
                    "-p",
                    "no:cacheprovider",
                    "-W",
                    "ignore::pytest.PytestAssertRewriteWarning",
                    "--no-header",
                ]
            )
        )
    except BaseException:
        code = 3
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _ended(child: int, written: Path, silence_s: float) -> int | None:
    """The exit code of `child`; None, and it is killed, where what it writes does not grow for so
    long.
    """
    size, since = -1, time.monotonic()
    while time.monotonic() < since + silence_s:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
        if written.exists() and (now := written.stat().st_size) != size:
            size, since = now, time.monotonic()
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    main()
