"""A writer of attempt 0 that stops itself just before its commit becomes visible: `python -m ecrl_cli.studies.hangs.late_writer RUN_DIR`.

Its process is not marked as belonging to the run, so no cleanup finds it, as if it were on another machine.
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

STEP = 4  # a step at which no attempt saves


def main(root: Path) -> None:
    layout = RunLayout(root)
    stored = read_run_config(layout)

    def stand_still(point: str) -> None:
        if point == "before_rename":
            os.kill(os.getpid(), signal.SIGSTOP)

    with closing(CheckpointStore(layout.checkpoints, StoreConfig.of(stored.config, stored.run_id), points=stand_still)) as store:
        store.claim(0)
        image = synthetic_image(stored.config.seed, STEP, synthetic_plan(4096, 2048), stored.run_id, restorable=True)
        try:
            store.save(image, 0)
        except Fenced:
            sys.stdout.write("fenced\n")
        else:
            sys.stdout.write("saved\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
