"""A supervisor to be killed: `python -m ecrl_cli.studies.hangs.lone_supervisor RUN_DIR` prints a line once its ranks step."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.studies.fake_ranks.supervisor_harness import Stage, Trigger, TriggeringUI


def main(root: Path) -> None:
    layout = RunLayout(root)

    def tell() -> None:
        sys.stdout.write("steps\n")
        sys.stdout.flush()

    with closing(Stage(root)) as stage:
        stage.supervise(read_run_config(layout).config, layout, TriggeringUI(Trigger("training", 10), tell))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
