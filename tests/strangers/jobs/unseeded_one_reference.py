"""An unseeded job: nothing can be said about its trajectory. Judged with one undisturbed run, an arm differs in
step 1, before any failure: no restart is the cause.
`--seeded`: exact. `--bug`: every start is a cold one, which needs no determinism to be seen."""

import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.full((8,), float(i)) + torch.randn(8)


out = sys.argv[1] + "/last.pt"
torch.manual_seed(0) if "--seeded" in sys.argv else torch.seed()
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), 1e-4)
first = 0
if os.path.exists(out) and "--bug" not in sys.argv:
    s = torch.load(out)
    model.load_state_dict(s["model"])
    opt.load_state_dict(s["opt"])
    torch.set_rng_state(s["rng"]) if "--seeded" in sys.argv else None
    first = s["epoch"]
for epoch in range(first, 3):
    for x in DataLoader(Noisy(), batch_size=8):
        opt.zero_grad()
        model(x).square().mean().backward()
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
