"""All benches: `python -m bench` runs each as a program of its own, prints its JSON, and at the end
one table of all goals and, for each one missed, what stands in its way. It takes 25 minutes on two
cores; a bench by itself (`python -m bench.NAME`) does more rounds.

A bench measures ratios of arms that are interleaved, so other work on the machine disturbs both;
but not alike. Whether it did shows in the A/A control: two identical arms. `--only` names benches.
Exit code 1 where a goal is missed, or a bench failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from bench.goals import Figure, figures
from bench.obstacles import obstacles_of

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.report.tables.renderers import terminal_of
from ecrl_cli.report.tables.table import Column, Table

# Each with fewer rounds than it takes alone, so that all of them take 25 minutes on two cores.
BENCHES: dict[str, tuple[str, ...]] = {
    "stall": ("--rounds", "4"),
    "deferred": ("--rounds", "4"),
    "every_step": ("--rounds", "2", "--steps", "20"),
    "store": (),
    "scrub": (),
    "bad_input": (),
    "audit": ("--rounds", "12"),
    "audit_price": ("--rounds", "2"),
    "page": ("--rounds", "1"),
    "lines": (),
    "in_memory": ("--rounds", "4", "--kills", "4"),
    "replicas": ("--rounds", "4"),
    "goodput": ("--seconds", "10"),
    "spares": ("--rounds", "2", "--models", "resnet18"),
    "start": ("--rounds", "5"),
    "step": ("--rounds", "2", "--cases", "resnet18"),
}
# of the cores: with more work than this beside, two identical arms differ by more than the goals
# are worth
BUSY = 0.25


def measure(name: str) -> tuple[list[Figure], str]:
    """The figures of a bench, and why it failed (empty if it did not)."""
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *BENCHES[name]],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(done.stdout, end="", flush=True)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        return [], f"ended with {done.returncode} and printed no JSON"
    return list(figures(name, document)), ""


def table(found: list[Figure]) -> list[str]:
    """The lines of the table: bench, goal, what was reached, its limit, the A/A control, and what
    follows.
    """
    rows = tuple(
        (
            figure.bench,
            figure.name,
            f"{figure.reached:.3g}",
            figure.limit,
            "" if figure.control is None else f"{figure.control:.3f}",
            figure.verdict,
        )
        for figure in found
    )
    labels = ("bench", "figure", "measured", "limit", "A/A", "")
    return terminal_of(Table("", tuple(map(Column, labels)), rows))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run the benches; prints the JSON of each and one table."
    )
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=list(BENCHES))
    options = parser.parse_args()
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > BUSY * cores:
        print(
            f"this machine is busy (load {load:.1f} on {cores} cores): what is measured now will"
            " mostly be inconclusive",
            file=sys.stderr,
        )
    found, failed, began = [], {}, monotonic()
    for number, name in enumerate(options.only, 1):
        print(
            f"bench {name} ({number} of {len(options.only)}), {(monotonic() - began) / 60:.0f} min"
            " so far",
            file=sys.stderr,
            flush=True,
        )
        figures_of, reason = measure(name)
        found += figures_of
        if reason:
            failed[name] = reason
    minutes = f"{len(options.only)} benches in {(monotonic() - began) / 60:.0f} min"
    lines = [
        "",
        minutes,
        "",
        *table(found),
        *(f"{name}: {reason}" for name, reason in failed.items()),
    ]
    obstacles = obstacles_of(found)
    lines += ["", "What stands in the way:", *obstacles] if obstacles else []
    print("\n".join(lines))
    return 1 if failed or any(each.verdict == "missed" for each in found) else 0


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[1])  # benches put their files into the working folder
    sys.exit(main())
