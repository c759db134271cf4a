"""Three real ranks train a small network with several gradient buckets, and train on from a copy of
their state in DDP wrapped anew.

Run as a script: prints JSON, by `find_unused_parameters` and whether the buckets were settled,
whether the step after the copy came out bit for bit.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from ecrl_cli.supervision.launch.forked_ranks import load
from ecrl_cli.training import train_step

RANKS, SHAPE = 3, (1, 8, 8)


class Crossed(nn.Module):
    """Its layers are declared in another order than they are used in, so that gradients arrive in
    another order than DDP's first guess.
    """

    def __init__(self) -> None:
        super().__init__()
        widths = {2: (64, 48), 0: (64, 64), 3: (48, 5), 1: (64, 64)}
        self.layers = nn.ModuleDict(
            {str(place): nn.Linear(*width) for place, width in widths.items()}
        )
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for place in range(3):
            x = torch.tanh(self.layers[str(place)](x))
            x = self.norm(x) if place == 0 else x
        out: torch.Tensor = self.layers["3"](x)
        return out


def one_rank(rank: int, folder: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=RANKS
    )
    found = {}
    for unused in (False, True):
        for settled in (True, False):
            found[f"unused={unused} settled={settled}"] = resumed_alike(rank, unused, settled)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def resumed_alike(rank: int, unused: bool, settled: bool) -> bool:
    """Whether the steps after a copy are those of the processes that go on."""
    patched: Any = (
        nullcontext() if settled else mock.patch.object(train_step, "_iterate", lambda *given: None)
    )
    with patched:
        going_on, optimizer = trainer(unused)
        steps(going_on, optimizer, rank, range(3))
        state, moments = (
            copy.deepcopy(going_on.module.state_dict()),
            copy.deepcopy(optimizer.state_dict()),
        )
        steps(going_on, optimizer, rank, range(3, 5))
        fresh, other = trainer(unused)
        fresh.module.load_state_dict(state)
        other.load_state_dict(moments)
        steps(fresh, other, rank, range(3, 5))
    return digest(going_on) == digest(fresh)


def trainer(unused: bool) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = Crossed()
    before = digest_of(model)
    wrapped = train_step.wrap(
        model,
        train_step.WarmUp(SHAPE, torch.device("cpu"), nullcontext(), unused),
        bucket_cap_mb=0.02,
    )
    assert digest_of(model) == before and all(
        parameter.grad is None for parameter in model.parameters()
    ), "the warm-up left a trace"
    return wrapped, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def steps(model: Any, optimizer: torch.optim.Optimizer, rank: int, numbers: range) -> None:
    for number in numbers:
        generator = torch.Generator().manual_seed(100 * number + rank)
        optimizer.zero_grad(set_to_none=True)
        model(torch.randn(6, *SHAPE, generator=generator)).square().mean().backward()
        optimizer.step()


def digest(model: Any) -> str:
    return digest_of(model.module)


def digest_of(model: nn.Module) -> str:
    return hashlib.sha256(
        b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())
    ).hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    # DDP's constructor imports it, each forked rank anew where its parent has not
    load(("torch._dynamo",))
    with tempfile.TemporaryDirectory() as name:
        children = []
        for rank in range(RANKS):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    one_rank(rank, Path(name))
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            sys.exit(f"ranks ended with {codes}")
        sys.stdout.write(
            json.dumps(
                [json.loads((Path(name) / f"{rank}.json").read_text()) for rank in range(RANKS)]
            )
        )


if __name__ == "__main__":
    main()
