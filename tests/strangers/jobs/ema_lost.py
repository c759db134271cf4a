"""The moving average of the weights, which the job publishes in the end, is saved but not restored; all else is
exact: `last.pt` after the last step differs in "ema". `--exact`: it is restored, too."""

import copy
import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

out = sys.argv[1] + "/last.pt"
os.makedirs(sys.argv[1], exist_ok=True)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
opt = torch.optim.Adam(model.parameters(), 1e-2)
data = TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
first = 0
if os.path.exists(out):
    s = torch.load(out)
    model.load_state_dict(s["model"])
    opt.load_state_dict(s["opt"])
    torch.set_rng_state(s["rng"])
    first = s["epoch"]
ema = copy.deepcopy(model).requires_grad_(False)
if first and "--exact" in sys.argv:
    ema.load_state_dict(s["ema"])
for epoch in range(first, 4):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        opt.zero_grad()
        (model(x) - y).square().mean().backward()
        opt.step()
        for a, b in zip(ema.parameters(), model.parameters()):
            a.lerp_(b.detach(), 0.1)
    torch.save(
        {
            "model": model.state_dict(),
            "ema": ema.state_dict(),
            "opt": opt.state_dict(),
            "rng": torch.get_rng_state(),
            "epoch": epoch + 1,
        },
        out + ".t",
    )
    os.replace(out + ".t", out)
