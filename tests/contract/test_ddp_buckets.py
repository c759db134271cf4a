"""Stock DDP is exact across a restart with three ranks, because each process settles its buckets
before the first step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from ecrl_cli.errors import ConfigError
from ecrl_cli.training.train_step import WarmUp, wrap

HERE = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found() -> list[dict[str, bool]]:
    environment = os.environ | {
        "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.ddp_ranks"],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ranks: list[dict[str, bool]] = json.loads(
        done.stdout.splitlines()[-1]
    )  # before it, gloo of torch 2.10
    return ranks


@pytest.mark.parametrize(
    ("arm", "alike"),
    [
        ("unused=False settled=True", True),
        # what stock DDP does by itself, and what this test would see
        ("unused=False settled=False", False),
        ("unused=True settled=True", True),
        ("unused=True settled=False", True),
    ],
)
def test_a_resumed_step_is_bit_for_bit_the_uninterrupted_one(
    found: list[dict[str, bool]], arm: str, alike: bool
) -> None:
    assert [rank[arm] for rank in found] == [alike] * 3


class Idle(nn.Module):
    """One of its layers takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.used(x)
        return out


def test_a_parameter_that_takes_no_part_is_named_before_the_first_step() -> None:
    group = (
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        if not dist.is_initialized()
        else None
    )
    try:
        with pytest.raises(ConfigError) as raised:
            wrap(
                Idle(),
                WarmUp((4,), torch.device("cpu"), nullcontext(), find_unused_parameters=False),
            )
        wrap(Idle(), WarmUp((4,), torch.device("cpu"), nullcontext(), find_unused_parameters=True))
    finally:
        dist.destroy_process_group(group)
    assert (
        "ddp.find_unused_parameters: is false, and 2 parameters take no part in the loss"
        " (spare.weight, spare.bias)" in raised.value.line()
    )
