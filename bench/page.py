"""What judging and reporting a whole matrix costs: `python -m bench.page` prints JSON.

72 built runs of the published shape (8 suites, 3 arms, 3 seeds, 1,600 steps, 32 checkpoints, two
failures), all valid, or the sweep named. Measured: `ecrl verify` of all of them and of one, and
`ecrl report`, from start to end, in a process of its own each time; and the page in a headless
Chromium, from the navigation to the end of its load event (the browser's own clock), in a new tab
each time. Medians; the first load warms up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.goals import at_most
from bench.lines import make_run
from bench.program import installed
from tests.e2e.chromium import CHROMIUM, address, chromium
from tests.runs.builder import RunBuilder, config_of

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.prerequisites import lacking

VERIFY_GOAL_S, VERIFY_ONE_GOAL_S, REPORT_GOAL_S, LOAD_GOAL_S = 20.0, 0.6, 5.0, 2.0
LONG_GOAL_S, LONG_STEPS = 2.0, 11_688  # a run of two ranks
CONCLUSIVE = 0.1  # how far the odd and the even verifications of one run may come apart
STEPS, EVERY = 1600, 50
FAILURES = {"base": (400, 1200), "late": (800, 1400)}
# Milliseconds to the end of the load event, elements, and those of them that are in figures.
MEASURE = """(() => {
  const [navigation] = performance.getEntriesByType("navigation");
  const count = (selector) => document.querySelectorAll(selector).length;
  return [navigation.loadEventEnd, count("*"), count("svg, svg *")];
})()"""


def make_sweep(folder: Path) -> Path:
    """The matrix of experiment 4 as valid runs: a failure strikes just after a checkpoint, so that
    steps are replayed.
    """
    folder.mkdir(parents=True)
    for number, suite in enumerate(
        f"{data}-{model}" for data in ("cifar10", "cifar100") for model in ("r18", "r50")
    ):
        for later, (schedule, steps) in enumerate(FAILURES.items()):
            for seed in (1337, 2027, 4242):
                for variant in ("ref", "ref2", "blk"):
                    kills = tuple(step + 3 for step in steps) if variant == "blk" else ()
                    config = config_of(variant, "kill" if kills else "none", kills)
                    config = replace(
                        config,
                        seed=seed,
                        target_steps=STEPS,
                        state_digests="auto",
                        checkpoint=replace(config.checkpoint, every=EVERY),
                        # Suites that end in different states: undisturbed runs of one would count
                        # as copies of the other's.
                        optimizer=replace(config.optimizer, lr=0.1 + number / 10 + later / 20),
                        suite_name=f"{suite}-{schedule}",
                    )
                    RunBuilder(folder / f"{suite}-{schedule}-{variant}-s{seed}", config).build()
    return folder


def seconds_of(rounds: int, *words: str) -> list[float]:
    """Seconds of each `ecrl WORDS...`."""
    took = []
    for _ in range(rounds):
        began = monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "ecrl_cli.cli.main", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            env=installed(),
        )
        took.append(monotonic() - began)
        if done.returncode not in (0, 1, 3):
            raise RuntimeError(f"ecrl {words[0]} ended with {done.returncode}")
    return took


def loaded(page: Path, rounds: int) -> dict[str, Any]:
    """Seconds of each load, and how much there is to load."""
    found: list[list[float]] = []
    with chromium() as browser:
        for _ in range(rounds + 1):
            tab = browser.open(address(page))
            tab.await_two_frames()
            found.append(tab.run(MEASURE))
            complaints = tab.complaints()
            tab.close()
    seconds = [milliseconds / 1e3 for milliseconds, _, _ in found]
    _, elements, drawn = found[-1]
    return {
        "seconds": seconds[1:],
        "first_seconds": seconds[0],
        "elements": elements,
        "in_figures": drawn,
        "complaints": complaints,
    }


def measure(sweep: Path, out: Path, rounds: int) -> dict[str, Any]:
    one = next(path for path in sorted(sweep.iterdir()) if (path / "config.json").exists())
    took = {
        "verify_seconds": seconds_of(rounds, "verify", str(sweep)),
        "verify_one_seconds": seconds_of(2 * rounds + 1, "verify", str(one)),
        "report_seconds": seconds_of(rounds, "report", str(sweep), "--out", str(out)),
        "report_long_run_seconds": of_long_run(out.with_name("long"), rounds),
    }
    page = out / "index.html"
    document: dict[str, Any] = {name: _spread(values) for name, values in took.items()} | {
        "page_bytes": page.stat().st_size
    }
    limits = (VERIFY_GOAL_S, VERIFY_ONE_GOAL_S, REPORT_GOAL_S, LONG_GOAL_S)
    goals = {
        name: at_most(statistics.median(values), limit)
        for (name, values), limit in zip(took.items(), limits, strict=True)
    }
    if CHROMIUM:
        load = loaded(page, 2 * rounds + 1)
        document |= {"load_seconds": _spread(load.pop("seconds")), **load}
        goals["load_seconds"] = at_most(document["load_seconds"]["median"], LOAD_GOAL_S)
    else:
        document["load_seconds"] = lacking("chromium")
    one_s = took["verify_one_seconds"]
    control = statistics.median(one_s[1::2]) / statistics.median(one_s[::2])
    return document | {
        "goals": goals,
        "controls": {"A/A: verify one / verify one": round(control, 4)},
        "conclusive": abs(control - 1) <= CONCLUSIVE,
    }


def of_long_run(folder: Path, rounds: int) -> list[float]:
    """Seconds of each `ecrl report` of a verified run of LONG_STEPS steps on two ranks."""
    run = str(make_run(folder, 2, LONG_STEPS).root)
    seconds_of(1, "verify", run)
    return seconds_of(rounds, "report", run, "--out", str(folder.with_name("long-report")))


def _spread(seconds: list[float]) -> dict[str, float]:
    return {
        name: round(of(seconds), 3)
        for name, of in (("median", statistics.median), ("least", min), ("most", max))
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure the report on 72 runs and how fast its page loads; prints JSON."
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--sweep", type=Path, default=None, help="a sweep to report on (default: 72 simulated runs)"
    )
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-page-"))
    try:
        sweep = options.sweep or make_sweep(root / "sweep")
        document = {"bench": "page", **measure(sweep, root / "report", options.rounds)}
    finally:
        shutil.rmtree(root, ignore_errors=True)
    document["machine"] = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }
    print(json.dumps(document, indent=2))
    return (
        0
        if all(goal["met"] for goal in document["goals"].values())
        and not document.get("complaints")
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
