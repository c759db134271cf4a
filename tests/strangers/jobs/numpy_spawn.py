"""A numpy generator that is restored from `bit_generator.state` begins its spawned children anew: how many there were is
no part of that state (numpy 2.4.6). `--bug`: each epoch's noise comes from a spawned child, and a restarted job gets
the first child again. Without it the child is seeded by the epoch."""

import argparse
from pathlib import Path

import numpy as np
import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
x = torch.randn(32, 5)
net = torch.nn.Linear(5, 1)
opt = torch.optim.AdamW(net.parameters(), 0.02)
draw = np.random.default_rng(3)
a.out.mkdir(parents=True, exist_ok=True)
epoch, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file, weights_only=False)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    draw.bit_generator.state = s["draw"]
    epoch = s["epoch"]
for epoch in range(epoch, 4):
    noise = draw.spawn(1)[0] if a.bug else np.random.default_rng([3, epoch])
    order = torch.Generator().manual_seed(epoch)
    for batch in torch.utils.data.DataLoader(x, 4, shuffle=True, generator=order):
        inputs = batch + 0.1 * torch.from_numpy(noise.standard_normal((4, 5), dtype=np.float32))
        loss = (net(inputs) - batch[:, :1]).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
    state = {
        "net": net.state_dict(),
        "opt": opt.state_dict(),
        "draw": draw.bit_generator.state,
        "epoch": epoch + 1,
    }
    torch.save(state, f"{file}.tmp")
    Path(f"{file}.tmp").replace(file)
