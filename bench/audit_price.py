"""What an audit costs beside the job: `python -m bench.audit_price` prints JSON.

examples/jobs/plain.py in one process. A round runs it bare (nothing of ECRL around it), bare again
(the A/A control) and under `ecrl audit` with its drawn arms, in another order every time; `--cold`
adds the same audit with `audit.warm=false`. A bare run is the wall time of the command, start and
end included, and so is an audit, the command `ecrl audit` from its start to its verdict. A death is
a failure that is on record. Ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.goals import at_least, at_most
from bench.program import installed
from bench.runs import machine
from bench.stall import median_ratio

from ecrl_cli.audit.records import read_arm
from ecrl_cli.linux.clock import monotonic

JOB = Path(__file__).parents[1] / "examples" / "jobs" / "plain.py"
BARE_RUNS, DEATHS_A_MINUTE, CONCLUSIVE = 4.0, 10.0, 0.1
BARE = ("bare", "bare again")


def bare(folder: Path) -> float:
    """Seconds of one run."""
    began = monotonic()
    subprocess.run(
        [sys.executable, str(JOB), "--out", str(folder)], check=True, stdout=subprocess.DEVNULL
    )
    return monotonic() - began


def audited(folder: Path, warm: bool) -> tuple[float, int]:
    """Seconds of one audit, and how many deaths it tried. RuntimeError unless its verdict is
    valid.
    """
    words = [sys.executable, "-m", "ecrl_cli.cli.main", "audit", f"run_dir={folder}"]
    words += [f"audit.warm={str(warm).lower()}", "--", sys.executable, str(JOB), "--out", "{dir}"]
    began = monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=installed())
    seconds = monotonic() - began
    document = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    if done.returncode or document["status"] != "valid":
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
    arms = [read_arm(folder / arm["name"]) for arm in document["plan"]]
    return seconds, sum(len(arm.happened) for arm in arms)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what an audit costs; prints JSON.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="also with audit.warm=false")
    options = parser.parse_args()
    arms = [*BARE, "audit", *(["cold audit"] if options.cold else [])]
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    deaths = 0
    root = Path(tempfile.mkdtemp(prefix="bench-audit-price-", dir=Path.cwd()))
    try:
        bare(root / "first")  # the files are in memory from here on
        for number in range(options.rounds):
            place = number % len(arms)
            for name in arms[place:] + arms[:place]:
                folder = root / f"{number}-{name.replace(' ', '-')}"
                if name in BARE:
                    seconds[name].append(bare(folder))
                else:
                    taken, deaths = audited(folder, warm=name == "audit")
                    seconds[name].append(taken)
    finally:
        shutil.rmtree(root)
    print(
        json.dumps(
            {
                "bench": "audit_price",
                **summary(seconds, deaths),
                "settings": {"rounds": options.rounds, "job": JOB.name},
                "machine": machine(),
            },
            indent=2,
        )
    )
    return 0


def summary(seconds: dict[str, list[float]], deaths: int) -> dict[str, Any]:
    control = median_ratio(seconds, "bare again", "bare")
    minutes = statistics.median(seconds["audit"]) / 60
    return {
        "goals": {
            "audit / bare run": at_most(median_ratio(seconds, "audit", "bare"), BARE_RUNS),
            "deaths tried a minute": at_least(deaths / minutes, DEATHS_A_MINUTE),
        },
        "ratios": {
            f"{name} / bare run": round(median_ratio(seconds, name, "bare"), 2)
            for name in seconds
            if name not in BARE
        },
        "controls": {"A/A: bare again / bare": round(control, 4)},
        "conclusive": abs(control - 1) <= CONCLUSIVE,
        "seconds": {name: round(statistics.median(taken), 3) for name, taken in seconds.items()},
        "deaths": deaths,
    }


if __name__ == "__main__":
    sys.exit(main())
