"""The dormant-worker arm: real gloo processes, one of which is set aside and rejoins within each mini-batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ecrl_cli.errors import EcrlError

RANKS, SIZE = 4, 25_000
_DEADLINE_S = 300.0


def dormant_arm(folder: Path, averages: int) -> dict[str, Any]:
    """What rank 0 printed. `folder` must be empty; it takes the store and the other ranks' output."""
    folder.mkdir()
    module = "ecrl_cli.replication.mini_batch.dormant_rank"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = []
    try:
        for rank in range(RANKS):
            words = [str(folder), *map(str, (os.getpid(), rank, RANKS, averages, SIZE))]
            with (folder / f"rank{rank}.log").open("wb") as log:
                ranks.append(subprocess.Popen([sys.executable, "-m", module, *words], stdout=subprocess.PIPE, stderr=log, env=environment))
        output, _ = ranks[0].communicate(timeout=_DEADLINE_S)
        codes = [each.wait(timeout=_DEADLINE_S) for each in ranks]
        if any(codes):
            last = (
                (folder / f"rank{codes.index(next(filter(None, codes)))}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            )
            raise EcrlError("dormant", f"a rank ended with {codes}: {' '.join(last)[:200]}", "report this")
        found: dict[str, Any] = json.loads(output)
        return found
    finally:
        for each in ranks:
            each.kill()
            each.wait()
            if each.stdout is not None:
                each.stdout.close()
