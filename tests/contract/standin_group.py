"""A rank that joins the process group as a training rank does, says that it is there, and ends well
when the file `go` appears.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.training.rendezvous import Rendezvous
from ecrl_cli.training.session import join_group


def run_rank(run_dir: Path, attempt: int, rendezvous: Rendezvous, started: float) -> int:
    del attempt, started
    join_group(RunConfig(), rendezvous, torch.device("cpu"))
    dist.barrier()
    (run_dir / f".up{rendezvous.rank}").write_text(str(os.getpid()))
    (run_dir / f".up{rendezvous.rank}").rename(run_dir / f"up{rendezvous.rank}")
    while not (run_dir / "go").exists():
        time.sleep(0.005)
    return 0
