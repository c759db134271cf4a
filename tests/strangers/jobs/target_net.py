"""Reinforcement learning without a DataLoader: samples come from a replay memory in numpy. `--bug`: the target
network is not restored; it is a copy of the online one until its next update."""

import argparse
import copy
from pathlib import Path

import numpy as np
import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
draw = np.random.default_rng(3)
memory = draw.standard_normal((64, 6)).astype("float32")
net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
target = copy.deepcopy(net)
opt = torch.optim.AdamW(net.parameters(), 0.01)
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file, weights_only=False)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    target.load_state_dict(s["net" if a.bug else "target"])
    draw.bit_generator.state = s["draw"]
    step = s["step"]
while step < 40:
    rows = torch.from_numpy(memory[draw.integers(0, 64, 8)])
    with torch.no_grad():
        wanted = rows[:, 5:] + 0.9 * target(rows[:, :5])
    loss = (net(rows[:, :5]) - wanted).square().mean()
    opt.zero_grad(), loss.backward(), opt.step()
    step += 1
    if step % 8 == 0:
        target.load_state_dict(net.state_dict())
    if step % 5 == 0:
        torch.save(
            {
                "net": net.state_dict(),
                "target": target.state_dict(),
                "opt": opt.state_dict(),
                "step": step,
                "draw": draw.bit_generator.state,
            },
            f"{file}.tmp",
        )
        Path(f"{file}.tmp").replace(file)
