"""The resumed job dies while it reads its checkpoint: numpy scalars in it, and torch.load's default of
weights_only since 2.6. `--exact`: it saves a float."""

import os
import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

out = sys.argv[1] + "/last.pt"
os.makedirs(sys.argv[1], exist_ok=True)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), 1e-2)
first = 0
if os.path.exists(out):
    s = torch.load(out)
    model.load_state_dict(s["model"])
    torch.set_rng_state(s["rng"])
    first = s["epoch"]
for epoch in range(first, 4):
    for (x,) in DataLoader(TensorDataset(torch.randn(32, 8)), batch_size=8, shuffle=True):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
    metric = loss.item() if "--exact" in sys.argv else np.float64(loss.item())
    torch.save(
        {
            "model": model.state_dict(),
            "rng": torch.get_rng_state(),
            "epoch": epoch + 1,
            "metric": metric,
        },
        out + ".t",
    )
    os.replace(out + ".t", out)
