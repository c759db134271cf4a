"""An exact resume with DataLoader workers. A worker of a rank that SIGKILL took finds that out by itself, after
up to 5 s (torch's MP_STATUS_CHECK_INTERVAL), later on a busy machine. `--bug`: the
shuffle's generator is not restored."""

import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

out = sys.argv[1] + "/last.pt"

if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    opt = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    shuffle = torch.Generator().manual_seed(1)
    loader = DataLoader(
        TensorDataset(torch.randn(32, 8), torch.randn(32, 1)),
        batch_size=8,
        shuffle=True,
        generator=shuffle,
        num_workers=2,
    )
    first = 0
    if os.path.exists(out):
        s = torch.load(out)
        model.load_state_dict(s["model"])
        opt.load_state_dict(s["opt"])
        torch.set_rng_state(s["rng"])
        if "--bug" not in sys.argv:
            shuffle.set_state(s["shuffle"])
        first = s["epoch"]
    for epoch in range(first, 4):
        for x, y in loader:
            opt.zero_grad()
            (model(x) - y).square().mean().backward()
            opt.step()
        torch.save(
            {
                "model": model.state_dict(),
                "opt": opt.state_dict(),
                "rng": torch.get_rng_state(),
                "shuffle": shuffle.get_state(),
                "epoch": epoch + 1,
            },
            out + ".t",
        )
        os.replace(out + ".t", out)
