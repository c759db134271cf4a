"""The peer of bench/spares.py: a plain DDP script with its own checkpoints, as it is started by
torch.distributed.run. Nothing of ECRL is in it.

`plain_ddp.py MODEL FOLDER STEPS EVERY DIES_AT BATCH`: trains torchvision's ResNet-18, or a small
convolutional network, on torchvision's fake images to step STEPS, takes a checkpoint with
torch.save every EVERY steps, goes on from the newest one. In the first attempt rank 1 kills itself
in step DIES_AT. Each rank notes when what happened in FOLDER/events-RANK.jsonl, on the clock that
all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

MODEL, FOLDER = sys.argv[1], Path(sys.argv[2])
STEPS, EVERY, DIES_AT, BATCH = map(int, sys.argv[3:7])
RANK, RESTARTS = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def note(event: str, step: int = 0) -> None:
    with (FOLDER / f"events-{RANK}.jsonl").open("a") as file:
        file.write(
            json.dumps({"event": event, "attempt": RESTARTS, "step": step, "at": time.monotonic()})
            + "\n"
        )


note("started")  # before torch is imported

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402
from torchvision import transforms  # noqa: E402
from torchvision.datasets import FakeData  # noqa: E402
from torchvision.models import resnet18  # noqa: E402

note("imported")


def build() -> torch.nn.Module:
    if MODEL == "resnet18":
        return resnet18(num_classes=10)
    layers: list[torch.nn.Module] = []
    for inputs, outputs, stride in ((3, 32, 1), (32, 64, 2), (64, 128, 2), (128, 256, 2)):
        layers += [
            torch.nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            torch.nn.BatchNorm2d(outputs),
            torch.nn.ReLU(),
        ]
    return torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(256, 10)
    )


def main() -> None:
    dist.init_process_group("gloo")
    note("group")
    torch.manual_seed(1337)
    ddp = DistributedDataParallel(build())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    step, newest = 0, FOLDER / "newest.pt"
    if newest.exists():
        state = torch.load(newest, weights_only=True)
        ddp.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    note("loaded", step)
    images = FakeData(2048, (3, 32, 32), 10, transforms.ToTensor())
    sampler: DistributedSampler[Any] = DistributedSampler(images, shuffle=True)
    batches = iter(DataLoader(images, BATCH // dist.get_world_size(), sampler=sampler))
    while step < STEPS:
        x, y = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(x), y)
        if RANK == 1 and RESTARTS == 0 and step + 1 == DIES_AT:
            note("killed", DIES_AT)
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        step += 1
        note("step", step)
        if step % EVERY == 0:
            if RANK == 0:
                torch.save(
                    {
                        "model": ddp.module.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "step": step,
                    },
                    FOLDER / "making.pt",
                )
                (FOLDER / "making.pt").replace(newest)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
