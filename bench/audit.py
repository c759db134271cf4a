"""What recording costs a job: `python -m bench.audit` measures, in one run with interleaved arms,
and prints JSON.

Two jobs of one thread each: steps of 10 ms, recorded without digests; steps of 50 ms with 10
million parameters and AdamW, recorded with digests of parameters and optimizer state after every
step. The second is measured twice: on all cores of the machine (large tensors are hashed on up to
four), and on one. Each job runs as three processes of its own: undisturbed, undisturbed again (the
A/A control) and recorded as `ecrl audit` does it (sitecustomize). The undisturbed one is filled up
until its median step takes what it should; the others are filled alike. A round lets each do a
block of steps while the others wait, in another order every time. Ratios are medians of the rounds'
ratios of medians. The digest is XXH3 where xxhash is installed, else BLAKE3: which one is in the
result. Absolute numbers belong to this machine and this minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.goals import at_most
from bench.program import show
from bench.runs import machine
from bench.stall import median_ratio

from ecrl_cli.audit.runner import install_recorder

ARMS = ("bare", "bare again", "recorded")


@dataclass(frozen=True)
class RecordedCase:
    """`width`: of the three layers; `step_ms`: what a step is filled up to; `goal`: recorded /
    bare; `cores`: that each process may use, 0: all.
    """

    name: str
    width: int
    step_ms: float
    digests: int
    goal: float
    cores: int = 0


CASES = (
    RecordedCase("no digests, 10 ms", 64, 10.0, 0, 1.02),
    RecordedCase("digests every step, 50 ms, 10 M parameters", 1830, 50.0, 1, 1.05),
    RecordedCase(
        "digests every step, 50 ms, 10 M parameters, one core", 1830, 50.0, 1, 1.12, cores=1
    ),
)
# how often the fill is corrected at most, and how near to `step_ms` the median is to come
CALIBRATION, NEAR = 10, 0.02


class Worker:
    """One process of a job."""

    def __init__(self, case: RecordedCase, recorder: Path | None, folder: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        if recorder is not None:
            environment |= {
                "PYTHONPATH": str(recorder),
                "ECRL_RECORD": str(folder),
                "ECRL_DIGESTS": str(case.digests),
                "ECRL_ATTEMPT": "0",
            }
        command = [
            sys.executable,
            str(Path(__file__).with_name("recorded_job.py")),
            str(case.width),
        ]
        if case.cores:
            command = [
                "taskset",
                "--cpu-list",
                ",".join(map(str, sorted(os.sched_getaffinity(0))[: case.cores])),
                *command,
            ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, words: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def calibrated(worker: Worker, step_ms: float, steps: int) -> int:
    """How many multiplications fill the median step of `worker` up to `step_ms`; what one takes
    differs from process to process and minute to minute, so that it is corrected by what the steps
    really took.
    """
    own, one = worker.ask("calibrate")
    fill = round((step_ms / 1000 - own) / one)
    for _ in range(CALIBRATION):
        fill = max(0, fill)
        worker.ask(f"fill {fill}")
        took = statistics.median(worker.ask(f"steps {steps}"))
        if fill:
            one = max(one / 4, (took - own) / fill)
        if abs(1000 * took / step_ms - 1) <= NEAR:
            break
        fill += round((step_ms / 1000 - took) / one)
    return max(0, fill)


def measure(case: RecordedCase, rounds: int, steps: int, folder: Path) -> dict[str, Any]:
    recorder = install_recorder(folder)
    record = folder / "record"
    workers = {arm: Worker(case, recorder if arm == "recorded" else None, record) for arm in ARMS}
    try:
        fill = calibrated(workers["bare"], case.step_ms, 3 * steps)
        for worker in workers.values():
            worker.ask(f"fill {fill}")
            worker.ask(f"steps {steps}")  # warms up
        medians: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for number in range(rounds):
            order = ARMS[number % 3 :] + ARMS[: number % 3]
            for arm in order:
                medians[arm].append(statistics.median(workers[arm].ask(f"steps {steps}")))
    finally:
        for worker in workers.values():
            worker.close()
    lines = [
        json.loads(line)
        for path in record.rglob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    recorded = [line for line in lines if line["type"] == "step"]
    assert len(recorded) == (rounds + 1) * steps and all(
        bool(line.get("params")) == bool(case.digests) for line in recorded
    ), "not recorded as planned"
    ratio, control = (
        median_ratio(medians, "recorded", "bare"),
        median_ratio(medians, "bare again", "bare"),
    )
    return {
        "step_ms": {
            arm: round(1000 * statistics.median(values), 3) for arm, values in medians.items()
        },
        "goals": {"recorded / bare": at_most(ratio, case.goal)},
        "controls": {"A/A: bare again / bare": round(control, 4)},
        "conclusive": abs(control - 1) <= 0.03,
        "cores": case.cores or len(os.sched_getaffinity(0)),
        "multiplications": fill,
        "digest": next(line["digest"] for line in lines if line["type"] == "start"),
        "bytes_per_step": round(sum(len(json.dumps(line)) for line in lines) / len(recorded)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=20, help="of a block")
    options = parser.parse_args()
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found[case.name] = measure(case, options.rounds, options.steps, Path(folder))
    settings = {"rounds": options.rounds, "steps": options.steps}
    show("audit", {"cases": found, **settings, "machine": machine()})


if __name__ == "__main__":
    main()
