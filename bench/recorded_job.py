"""The job that bench/audit.py records: `python -m bench.recorded_job WIDTH` reads orders from
standard input, line by line, and answers each with one line of JSON: `calibrate` (the seconds of an
unfilled step and of one multiplication), `fill N` (do so many of them in each step), `steps N` (the
seconds of each of N).
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(width: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(3)])
    # Fused, and gradients that are kept: otherwise a step of 10 million parameters allocates, and a
    # virtual machine maps, memory for 90 ms.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = TensorDataset(torch.randn(4096, width))
    filler = torch.randn(128, 128)

    def batches() -> Any:
        while True:
            yield from DataLoader(data, batch_size=4)

    source = batches()

    def step(fill: int) -> float:
        began = time.monotonic()
        (x,) = next(source)
        loss = model(x).square().mean()
        loss.backward()
        for _ in range(fill):
            filler @ filler
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return time.monotonic() - began

    def multiplied() -> float:
        began = time.monotonic()
        for _ in range(20):
            filler @ filler
        return (time.monotonic() - began) / 20

    fill = 0
    for line in sys.stdin:
        words = line.split()
        if words[0] == "calibrate":
            seconds = [
                statistics.median(step(0) for _ in range(50)),
                statistics.median(multiplied() for _ in range(50)),
            ]
            sys.stdout.write(json.dumps(seconds) + "\n")
        elif words[0] == "fill":
            fill = int(words[1])
            sys.stdout.write("null\n")
        else:
            sys.stdout.write(json.dumps([step(fill) for _ in range(int(words[1]))]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
