"""Lightning Fabric as its guide to checkpoints has it: `fabric.save` and `fabric.load` of a state
that holds model, optimizer and step; position and generators are the script's business."""

import argparse
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
options = parser.parse_args()
torch.set_num_threads(1)
fabric = lightning.Fabric(accelerator="cpu", devices=1)
fabric.launch()
fabric.seed_everything(5, verbose=False)
points = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(48, 8, generator=points), torch.arange(48) % 3)
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
state = {"model": model, "optimizer": optimizer, "step": 0, "generator": torch.get_rng_state()}
saved = sorted(options.out.glob("step-*.ckpt"), key=lambda path: int(path.stem[5:]))
if saved:
    fabric.load(saved[-1], state)
    torch.set_rng_state(state["generator"])
step = state["step"]
for epoch in range(step // 12, 3):
    order = torch.randperm(48, generator=torch.Generator().manual_seed(epoch)).tolist()
    rest = order[(step - epoch * 12) * 4 :]
    loader = DataLoader(data, 4, sampler=rest, generator=torch.Generator())
    for x, y in fabric.setup_dataloaders(loader, use_distributed_sampler=False):
        fabric.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 5 == 0:
            state |= {"step": step, "generator": torch.get_rng_state()}
            part = options.out / "part"
            fabric.save(part, state)
            part.rename(options.out / f"step-{step}.ckpt")
