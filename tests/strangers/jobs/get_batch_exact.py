"""No DataLoader: a batch is cut out of one array at random places, as nanoGPT and its kin do. Everything is
restored. `--bug`: not the generator that draws the places."""

import os
import sys

import torch

out = sys.argv[1] + "/last.pt"
os.makedirs(sys.argv[1], exist_ok=True)
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
opt = torch.optim.AdamW(model.parameters(), 1e-2)
data, step = torch.randn(4096), 0
if os.path.exists(out):
    s = torch.load(out)
    model.load_state_dict(s["model"])
    opt.load_state_dict(s["opt"])
    if "--bug" not in sys.argv:
        torch.set_rng_state(s["rng"])
    step = s["step"]
while step < 16:
    where = torch.randint(len(data) - 9, (4,))
    x, y = (torch.stack([data[i + k : i + k + 8] for i in where]) for k in (0, 1))
    opt.zero_grad()
    (model(x) - y).square().mean().backward()
    opt.step()
    step += 1
    if step % 4 == 0:
        torch.save(
            {
                "model": model.state_dict(),
                "opt": opt.state_dict(),
                "rng": torch.get_rng_state(),
                "step": step,
            },
            out + ".t",
        )
        os.replace(out + ".t", out)
