"""Two programs of the hang study: `python -m ecrl_cli.studies.hangs.programs supervise RUN_DIR`, a
supervisor to be killed, prints a line once its ranks step; `... write RUN_DIR` is a writer of
attempt 0 that stops itself just before its commit becomes visible.

The writer's process is not marked as belonging to the run, so no cleanup finds it, as if it were on
another machine.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from pathlib import Path

from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import synthetic_image, synthetic_plan
from ecrl_cli.errors import Fenced
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.studies.fake_ranks.supervisor_harness import SupervisorHarness, Trigger, TriggeringUI

STEP = 4  # a step at which no attempt saves


def supervise(root: Path) -> None:
    layout = RunLayout(root)
    ui = TriggeringUI(Trigger("training", 10), lambda: print_line("steps"))
    with closing(SupervisorHarness(root)) as harness:
        harness.supervise(read_run_config(layout).config, layout, ui)


def write(root: Path) -> None:
    layout = RunLayout(root)
    stored = read_run_config(layout)

    def stand_still(point: str) -> None:
        if point == "before_rename":
            os.kill(os.getpid(), signal.SIGSTOP)

    with closing(
        CheckpointStore(
            layout.checkpoints,
            StoreConfig.of(stored.config, stored.run_id),
            crash_point=stand_still,
        )
    ) as store:
        store.claim(0)
        image = synthetic_image(
            stored.config.seed, STEP, synthetic_plan(4096, 2048), stored.run_id, restorable=True
        )
        try:
            store.save(image, 0)
        except Fenced:
            print_line("fenced")
        else:
            print_line("saved")


def print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    {"supervise": supervise, "write": write}[sys.argv[1]](Path(sys.argv[2]))
