"""A built run with all that is rare: held-out evaluations, a target that was raised, a stop in
between, a reboot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ecrl_cli.config.schema import EvaluateConfig, RunConfig
from ecrl_cli.records.layout import RunLayout
from tests.runs.builder import HELD_OUT, SAMPLES, WALL, RunBuilder, config_of

FIRST = 12


@dataclass
class ContinuedBuilder(RunBuilder):
    """The first session ends at step 12 and the next begins after a reboot, whose monotonic clock
    begins anew; the third has the second's boot.
    """

    def stay(self) -> None:
        super().stay()
        if len(self.sessions) == 1:
            self.ahead, self.boot, self.now = WALL + self.now + 100.0 - 50.0, "another boot", 50.0
        self.tick(7.0)


def evaluated(variant: str, steps: tuple[int, ...] = ()) -> RunConfig:
    config = config_of(variant, "kill", steps, 1) if steps else config_of(variant)
    return replace(
        config,
        evaluate=EvaluateConfig(every=4),
        dataset=replace(config.dataset, size=SAMPLES + HELD_OUT, held_out=HELD_OUT),
    )


def build_continued(folder: Path) -> RunLayout:
    """Rank 1 is killed after step 9, resumed from 6, and done at step 12. Continued to step 24:
    told to stop after step 15, resumed from 12, and rank 1 killed after step 20, resumed from 18.
    """
    config = replace(evaluated("blk", (9, 20)), continued_at=(FIRST,))
    return ContinuedBuilder(folder / "continued", config, stops={2: 15}).build()


def build_first_leg(folder: Path) -> RunLayout:
    """Undisturbed to step 12, which was all that was asked for: the reference of what was continued
    later.
    """
    return RunBuilder(folder / "ref", replace(evaluated("ref"), target_steps=FIRST)).build()


def build_evaluated(folder: Path) -> RunLayout:
    """Rank 1 is killed after steps 9 and 20: what was measured after step 8 is measured again."""
    return RunBuilder(folder / "blk", evaluated("blk", (9, 20))).build()


def build_evaluated_ref(folder: Path) -> RunLayout:
    return RunBuilder(folder / "ref", evaluated("ref")).build()
