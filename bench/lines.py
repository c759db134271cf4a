"""What judging long runs costs: `python -m bench.lines` prints JSON.

Four runs, each twice as long as the one before, of two ranks and of many: lines of ranks judged per
second of processor time, seconds, and the most memory that was in use, each by `ecrl verify` in a
process of its own. The runs are undisturbed (with `--kills`: struck once) and valid; digests of the
state are logged every 128 steps, as `state_digests=auto` does. `--rank-steps` sets the largest.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.runs.builder import PARTS, RunBuilder, Worker, config_of

from ecrl_cli.checkpoint.format.image import TensorSpec
from ecrl_cli.checkpoint.format.names import RNG
from ecrl_cli.config.codec import encode
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.state_digests import digest_due, worked_out
from ecrl_cli.storage.files import write_json

PER_SECOND_GOAL, MILLION_GOAL_S, MILLION_GOAL_MB = 100_000.0, 15.0, 500.0
RANK_STEPS, SIZES = 1_000_000, 4
MANY = 1000  # ranks
SAMPLES, CHECKPOINTS = 50_000, 4
STEP_S = 0.02  # of the steps that are built
DIGEST_S = 100 * 0.005 * STEP_S  # so that digests are due every 128 steps


class LongRun(RunBuilder):
    """A run whose digests are logged at intervals."""

    interval = worked_out(DIGEST_S, STEP_S, 1000)

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
        super().one_step()
        if self.step == 1:
            first = json.loads(self.logs.rank(0).read_text(encoding="utf-8").splitlines()[0])
            interval = worked_out(DIGEST_S, first["seconds"], self.run.config.checkpoint.every)
            LongRun.interval = interval
            write_json(self.run.layout.state_digests, encode(interval))

    def state_of(self, rank: int) -> dict[str, Any]:
        if digest_due(self.run.config, LongRun.interval, self.step, self.first - 1):
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
            global_batch=ranks if 128 % ranks else 128,
            state_digests="auto",
            dataset=replace(config.dataset, size=SAMPLES),
            checkpoint=replace(config.checkpoint, every=every),
            failure=replace(config.failure, steps=strikes),
            variant=replace(config.variant, failures=bool(kills)),
        ),
    ).build()
