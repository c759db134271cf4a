"""What the start of an attempt costs, beside `import torch`: `python -m bench.start` prints JSON.

A run of the digits CNN for three steps on two processes under the default launcher. Measured, on
one clock, from the launch of the attempt: until rank 0's import is over (`imported`: launch and
import, the group not yet formed) and until its first step is committed (`first_step`). Arms, the
order reversed every other round: `torch` (a Python that imports torch and ends), twice (the A/A
control), `needed` (one that imports torch and torch._dynamo, which DDP's constructor imports
whoever uses it), and `start`. Ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.goals import at_most
from bench.program import bench_folder, show
from bench.runs import machine, train

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.events import Span
from ecrl_cli.records.journal import read_journal

GOAL = 1.3
CONCLUSIVE = 0.03
RUN = (
    "device=cpu",
    "dataset=digits",
    "model=small_cnn",
    "world_size=2",
    "target_steps=3",
    "checkpoint=none",
    "failure=none",
    "supervision=torchrun",
)
IMPORTS = {"torch": "import torch", "torch_again": "import torch", "needed": "import torch._dynamo"}
ARMS = (*IMPORTS, "start")


def python(statement: str) -> float:
    began = monotonic()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return monotonic() - began


def start(run_dir: Path) -> dict[str, float]:
    """Seconds from the launch to the end of rank 0's import, and to its first step."""
    records = train(run_dir, *RUN)
    supervisor = records.supervisor
    if supervisor is None:
        raise RuntimeError(f"{run_dir}: no supervisor.json")
    launched = supervisor.attempts[0].launched_at
    spans = read_journal(records.layout.attempt(0).spans(0), Span).events
    imported = max(span.end for span in spans if span.category == "import")
    return {
        "imported": imported - launched,
        "first_step": records.logs(0).ranks[0].events[0].at - launched,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure the start of an attempt beside `import torch`; prints JSON."
    )
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    found: dict[str, list[float]] = {name: [] for name in (*IMPORTS, "imported", "first_step")}
    with bench_folder("start") as root:
        python(IMPORTS["needed"])  # the files are in memory from here on
        for number in range(rounds):
            for arm in ARMS if number % 2 else reversed(ARMS):
                taken = start(root / str(number)) if arm == "start" else {arm: python(IMPORTS[arm])}
                for name, seconds in taken.items():
                    found[name].append(seconds)
    settings = {"rounds": rounds, "run": RUN}
    show("start", {**summary(found), "settings": settings, "machine": machine()})
    return 0


def summary(found: dict[str, list[float]]) -> dict[str, Any]:
    def ratio(over: str, under: str) -> float:
        return statistics.median(a / b for a, b in zip(found[over], found[under], strict=True))

    control = ratio("torch_again", "torch")
    return {
        "goals": {"launch + import / import torch": at_most(ratio("imported", "torch"), GOAL)},
        "ratios": {
            "launch + import / import torch._dynamo": round(ratio("imported", "needed"), 4),
            "to the first step / import torch._dynamo": round(ratio("first_step", "needed"), 4),
        },
        "controls": {"A/A: import torch / import torch": round(control, 4)},
        "conclusive": abs(control - 1) <= CONCLUSIVE,
        "seconds": {name: round(statistics.median(values), 4) for name, values in found.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
