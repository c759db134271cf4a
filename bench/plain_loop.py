"""The peer of bench/step.py: a training loop as a plain DDP script writes it, started by
torch.distributed.run.

`plain_loop.py TIMES STEPS KEY=VALUE...` trains STEPS steps and writes the instants at which they
ended on rank 0 to TIMES. Model, data set and the arithmetic of a step are those of `ecrl train`;
nothing of ECRL stands in the loop: no journal, no hashes, no heartbeats, no supervisor.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from ecrl_cli.config.schema import DatasetConfig, ModelConfig
from ecrl_cli.data.datasets import build_dataset
from ecrl_cli.models import build


def main(times: Path, steps: int, keys: dict[str, str]) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    dist.init_process_group("gloo")
    torch.manual_seed(1337)
    data = build_dataset(
        DatasetConfig(keys["dataset"], image_size=int(keys.get("dataset.image_size", 32)))
    )
    traits, (images, labels) = data.traits, data.fetch(np.arange(len(data)))
    model = DistributedDataParallel(
        build(
            ModelConfig(keys["model"], width=int(keys.get("model.width", 32))),
            traits.classes,
            traits.shape,
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    sampler = DistributedSampler(range(len(data)), shuffle=True, drop_last=True)  # type: ignore[var-annotated,arg-type]
    batch, padding = int(keys["global_batch"]) // dist.get_world_size(), traits.shape[1] // 8
    mean, std = (
        np.array(values, dtype=np.float32).reshape(1, -1, 1, 1)
        for values in (traits.mean, traits.std)
    )
    random, epoch = np.random.default_rng(dist.get_rank()), 0
    ends: list[float] = []
    while len(ends) < steps:
        sampler.set_epoch(epoch)
        order, epoch = np.array(list(sampler)), epoch + 1
        for ids in order[: len(order) // batch * batch].reshape(-1, batch)[: steps - len(ends)]:
            pixels = np.pad(images[ids], ((0, 0), (0, 0), (padding, padding), (padding, padding)))
            picked = np.empty_like(images[ids])
            for i, (top, left, mirrored) in enumerate(
                random.integers(0, (2 * padding + 1, 2 * padding + 1, 2), (batch, 3)).tolist()
            ):
                crop = pixels[i, :, top : top + picked.shape[2], left : left + picked.shape[3]]
                picked[i] = crop[:, :, ::-1] if mirrored and traits.flip else crop
            x = torch.from_numpy((picked.astype(np.float32) / traits.peak - mean) / std)
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), torch.from_numpy(labels[ids]))
            loss.backward()
            optimizer.step()
            schedule.step()
            loss.item()  # as every loop that prints it
            ends.append(time.monotonic())
    if dist.get_rank() == 0:
        times.write_text(json.dumps(ends))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        int(sys.argv[2]),
        dict(argument.split("=", 1) for argument in sys.argv[3:]),
    )
