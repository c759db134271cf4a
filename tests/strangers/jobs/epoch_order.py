"""Shuffled loader, checkpoints at the end of an epoch only, generators not saved: the restarted job is at the
right place (the start of an epoch) and sees the first epoch's order again, because it seeded anew. Nearly
every public script with --resume does so. `--exact`: the generator is restored, too."""

import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

out = sys.argv[1] + "/last.pt"
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
loader = DataLoader(
    TensorDataset(torch.randn(32, 8), torch.randn(32, 1)), batch_size=8, shuffle=True
)
first = 0
if os.path.exists(out):
    state = torch.load(out)
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    first = state["epoch"]
    if "--exact" in sys.argv:
        torch.set_rng_state(state["rng"])
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
            "epoch": epoch + 1,
        },
        out + ".t",
    )
    os.replace(out + ".t", out)
