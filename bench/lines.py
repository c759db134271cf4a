"""What judging long runs costs: `python -m bench.lines` prints JSON.

Runs of two ranks and of a thousand, each shape in four sizes, every one twice as long as the one
before. `ecrl verify` of each in a process of its own, from start to end: seconds of processor time
and of wall time, and the most memory that was in use. The runs are undisturbed and valid; digests
of the state are logged every 128 steps, as `state_digests=auto` does. `--lines`: of ranks, in the
largest run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from bench.goals import at_least, at_most
from bench.program import installed
from tests.runs.builder import PARTS, RunBuilder, Worker, config_of

from ecrl_cli.checkpoint.format.image import TensorSpec
from ecrl_cli.checkpoint.format.names import RNG
from ecrl_cli.config.codec import encode
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.state_digests import MEASURED_STEPS, digests_due, worked_out
from ecrl_cli.storage.files import write_json

PER_SECOND_GOAL, MILLION_GOAL_S, MILLION_GOAL_MB = 100_000.0, 15.0, 500.0
LINES, SIZES = 1_000_000, 4
SHAPES = (2, 1000)  # ranks
CONCLUSIVE = 0.1  # how far two judgements of one run may come apart
SAMPLES, SHARD, CHECKPOINTS = 50_000, 2, 4
STEP_S = 0.02  # of the steps that are built
DIGEST_S = 100 * 0.005 * STEP_S  # so that digests are due every 128 steps
PIECE = 2**14  # bytes written at once


class Appended(Journal):
    """A journal that is written in large pieces, and open only meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path, self._lines, self._bytes = path, list[bytes](), 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, event: object) -> bytes:
        line = msgspec.json.encode(event) + b"\n"
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes > PIECE:
            self.close()
        return line

    def close(self) -> None:
        with self._path.open("ab") as file:
            file.writelines(self._lines)
        self._lines, self._bytes = [], 0


class LongRun(RunBuilder):
    """A run whose digests are logged at intervals."""

    interval = worked_out(DIGEST_S, STEP_S)

    def journal(self, path: Path) -> Journal:
        return Appended(path)

    @property
    def parts(self) -> dict[str, list[TensorSpec]]:
        generators = [
            TensorSpec(f"rng.rank{rank}.torch", "torch.uint8", (16,))
            for rank in range(self.config.world_size)
        ]
        return {**PARTS, RNG: generators}

    def worker(self, number: int, step: int, armed: dict[int, PlannedFailure]) -> Worker:
        return LongWorker(self, number, step, armed)


class LongWorker(Worker):
    """Computes the state only where it is logged, and once for all ranks."""

    held: tuple[int, dict[str, str]] = (-1, {})

    def one_step(self) -> None:
        if self.step == 0:
            step_s = self.run.now + STEP_S - self.run.now  # as the first line will have it
            LongRun.interval = worked_out(DIGEST_S, step_s)
            write_json(self.run.layout.state_digests, encode(LongRun.interval))
        super().one_step()
        if self.step <= MEASURED_STEPS:
            self.spend("sync", DIGEST_S, self.step)  # in which the digest was worked out

    def state_of(self, rank: int) -> dict[str, Any]:
        if digests_due(self.run.config, LongRun.interval, self.first - 1)(self.step):
            return super().state_of(rank)
        return {"lr": self.rate()}

    def rate(self) -> float:
        return float(self.train_state()["optimizer"]["param_groups"][0]["lr"])

    def tensors(self) -> dict[str, str]:
        if self.held[0] != self.step:
            self.held = self.step, super().tensors()
        return self.held[1]


def make_run(folder: Path, ranks: int, steps: int, kills: int = 0) -> RunLayout:
    """A valid run of so many ranks and steps (a multiple of CHECKPOINTS)."""
    config = config_of("blk" if kills else "ref", "kill" if kills else "none")
    every = steps // CHECKPOINTS
    strikes = tuple(every * number + 3 for number in range(1, kills + 1))
    return LongRun(
        folder,
        replace(
            config,
            target_steps=steps,
            world_size=ranks,
            global_batch=SHARD * ranks,
            state_digests="auto",
            dataset=replace(config.dataset, size=SAMPLES),
            checkpoint=replace(config.checkpoint, every=every),
            failure=replace(config.failure, steps=strikes),
            variant=replace(config.variant, failures=bool(kills)),
        ),
    ).build()


def judged(run: Path) -> dict[str, float]:
    """What `ecrl verify` of a run costs; RuntimeError if it breaks a promise. One of 500,000 steps
    is unknown: its metrics.json is larger than what is read.
    """
    began = monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "ecrl_cli.cli.main", "verify", str(run)],
        stdout=subprocess.DEVNULL,
        env=installed(),
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        raise RuntimeError(f"ecrl verify ended with {process.returncode}")
    return {
        "processor_s": round(usage.ru_utime + usage.ru_stime, 2),
        "wall_s": round(monotonic() - began, 2),
        "peak_mb": round(usage.ru_maxrss / 1024, 1),
    }


def curve(ranks: int, lines: int) -> tuple[list[dict[str, float]], float]:
    """What judging costs, by the number of lines of ranks; and the A/A control, by how much two
    judgements of the shortest run differ.
    """
    measured, control = list[dict[str, float]](), 1.0
    for size in reversed(range(SIZES)):
        steps = max(lines // 2**size // ranks // CHECKPOINTS, 1) * CHECKPOINTS
        root = Path(tempfile.mkdtemp(prefix="bench-lines-"))
        try:
            # in a process of its own: what it had in memory would count as memory of the judge
            words = f"make_run(Path({str(root)!r}) / 'run', {ranks}, {steps})"
            build = f"from bench.lines import *; {words}"
            subprocess.run([sys.executable, "-c", build], check=True)
            cost = judged(root / "run")
            if not measured:
                control = judged(root / "run")["processor_s"] / cost["processor_s"]
        finally:
            shutil.rmtree(root, ignore_errors=True)
        per_second = round(ranks * steps / cost["processor_s"])
        measured.append({"lines": ranks * steps, "steps": steps, **cost, "per_second": per_second})
    return measured, round(control, 4)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the judge on long runs; prints JSON.")
    parser.add_argument("--lines", type=int, default=LINES)
    options = parser.parse_args()
    document: dict[str, Any] = {"bench": "lines"}
    goals: dict[str, Any] = {}
    controls: dict[str, float] = {}
    for ranks in SHAPES:
        found, controls[f"A/A: {ranks} ranks"] = curve(ranks, options.lines)
        document[f"{ranks} ranks"] = found
        last = found[-1]
        goals[f"lines of {ranks} ranks per second"] = at_least(last["per_second"], PER_SECOND_GOAL)
        if options.lines >= LINES:
            name = f"{LINES:,} lines of {ranks} ranks"
            goals[f"{name} (s)"] = at_most(last["processor_s"], MILLION_GOAL_S)
            goals[f"{name} (MB)"] = at_most(last["peak_mb"], MILLION_GOAL_MB)
    conclusive = all(abs(control - 1) <= CONCLUSIVE for control in controls.values())
    document |= {"goals": goals, "controls": controls, "conclusive": conclusive}
    document |= {"cores": os.cpu_count(), "python": platform.python_version()}
    print(json.dumps(document, indent=2))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
