"""Child process that supervises a run whose plan kills its supervisor.

`python -m ecrl_cli.runs.supervisor_main RUN_DIR RESULT_FD`, with the configuration on standard input. `runs.supervisor_restarter` starts it,
reads its error from RESULT_FD and starts it again where planned. Torch-free.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ecrl_cli.config.codec import decode
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import EcrlError
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.supervision.console import make_ui
from ecrl_cli.supervision.supervisor import supervise


def main(argv: list[str]) -> None:
    layout, result = RunLayout(Path(argv[0])), int(argv[1])
    config = decode(RunConfig, json.load(sys.stdin))
    try:
        supervise(config, layout, make_ui(config, layout, None))
    except EcrlError as error:
        error_fields = [type(error).__name__, error.key, error.fact, error.remedy, error.code]
        os.write(result, json.dumps(error_fields).encode())
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(sys.argv[1:])
