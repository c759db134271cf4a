"""How long bad input waits for its answer: each row of the table as a fresh process, in seconds, as
JSON. Fails above two seconds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.goals import at_most
from bench.program import installed, show
from tests.e2e.bad_input_rows import ROWS, Row

LIMIT_S = 2.0


def seconds(row: Row) -> float:
    """Wall time of `ecrl train ROW`, and an error where the exit code is another than promised."""
    with tempfile.TemporaryDirectory() as folder:
        if row.setup:
            row.setup(Path(folder))
        command = [sys.executable, "-m", "ecrl_cli.cli.main", "train", *row.arguments]
        start = time.perf_counter()
        result = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            env=installed() | row.environment,
        )
        elapsed = time.perf_counter() - start
    if result.returncode != row.code:
        raise SystemExit(
            f"{row.name}: exit {result.returncode}, expected {row.code}\n{result.stderr}"
        )
    return elapsed


def main() -> int:
    times = {f"{index:02d}: {row.name}": round(seconds(row), 3) for index, row in enumerate(ROWS)}
    worst = max(times.values())
    goals = {"seconds to the slowest answer": at_most(worst, LIMIT_S)}
    middle = sorted(times.values())[len(times) // 2]
    return show("bad_input", {"goals": goals, "median_s": middle, "seconds": times})


if __name__ == "__main__":
    sys.exit(main())
