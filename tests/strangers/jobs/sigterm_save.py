"""Periodic checkpoints are right. `--bug`: the one that the SIGTERM handler writes names the step before, and
the resumed job does that step again."""

import argparse
import signal
import sys
from pathlib import Path

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
a.out.mkdir(parents=True, exist_ok=True)
step, file, asked = 0, a.out / "last.pt", []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))


def save(number):
    torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "step": number}, f"{file}.tmp")
    Path(f"{file}.tmp").replace(file)


if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step = s["step"]
for epoch in range(step // 8, 4):
    order = torch.Generator().manual_seed(epoch)
    for number, batch in enumerate(
        torch.utils.data.DataLoader(x, 4, shuffle=True, generator=order)
    ):
        if epoch * 8 + number < step:
            continue
        loss = (net(batch) - batch[:, :1]).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
        if asked:
            save(step if a.bug else step + 1)
            sys.exit(143)
        step += 1
        if step % 5 == 0:
            save(step)
