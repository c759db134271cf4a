"""Saves on SIGTERM (the handler sets a flag, the loop saves after the step and leaves with code 0... the launcher starts it again) and each 8 steps. SIGUSR1 only saves.
--early: the handler saves at once, inside the step, with a step counter that was already raised for the coming update. --loop: the handler's save forgets the position in the epoch."""

import argparse, os, signal, sys
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--early", action="store_true")
p.add_argument("--loop", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(14)
os.makedirs(args.out, exist_ok=True)
x = torch.randn(48, 7)
net = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 1))
opt = torch.optim.AdamW(net.parameters(), 0.01)
path, epoch, pos, step, wanted = os.path.join(args.out, "run.pt"), 0, 0, 0, set()


def save(forget=False):
    torch.save(
        {
            "net": net.state_dict(),
            "opt": opt.state_dict(),
            "epoch": epoch,
            "pos": 0 if forget else pos,
            "step": step,
        },
        path + ".tmp",
    )
    os.replace(path + ".tmp", path)


def handler(number, frame):
    if args.early and number == signal.SIGTERM:
        save()
        sys.exit(0)
    wanted.add(number)


signal.signal(signal.SIGTERM, handler)
signal.signal(signal.SIGUSR1, handler)
if os.path.exists(path):
    s = torch.load(path)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    epoch, pos, step = s["epoch"], s["pos"], s["step"]
while epoch < 2:
    order = torch.randperm(48, generator=torch.Generator().manual_seed(epoch))
    while pos < 12:
        step += 1
        pos += 1
        batch = x[order[pos * 4 - 4 : pos * 4]]
        loss = (net(batch) - batch.norm(dim=1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if wanted or step % 8 == 0:
            save(forget=args.loop and bool(wanted))
            if signal.SIGTERM in wanted:
                print("saved, leaving at step", step, flush=True)
                sys.exit(0)
            wanted.clear()
    epoch, pos = epoch + 1, 0
save()
