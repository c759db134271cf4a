"""Gradient accumulation over 3 micro batches; saves every 4 micro batches, so in the middle of an accumulation: the gradients are part of the checkpoint. One-cycle schedule. pickle through a buffer.
--grads: the half-accumulated gradients are not restored. --micro: the count of micro batches within the accumulation restarts at 0."""

import argparse, io, os, pickle
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--grads", action="store_true")
p.add_argument("--micro", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
os.makedirs(args.out, exist_ok=True)
file = os.path.join(args.out, "train_state.pkl")
ACC, MICRO, EPOCHS = 3, 30, 2
x = torch.randn(60, 8)
y = x @ torch.randn(8, 3)
net = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 3))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.02, total_steps=EPOCHS * MICRO // ACC)
n, step, held = 0, 0, 0
opt.zero_grad(set_to_none=False)
if os.path.exists(file):
    s = pickle.load(open(file, "rb"))
    blob = torch.load(io.BytesIO(s["tensors"]))
    net.load_state_dict(blob["net"])
    opt.load_state_dict(blob["opt"])
    sched.load_state_dict(blob["sched"])
    if not args.grads:
        for q, g in zip(net.parameters(), blob["grads"]):
            q.grad = None if g is None else g.clone()
    n, step, held = s["n"], s["step"], 0 if args.micro else s["held"]
while n < EPOCHS * MICRO:
    epoch, i = divmod(n, MICRO)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(epoch + 50))
    idx = order[2 * i : 2 * i + 2]
    loss = (net(x[idx]) - y[idx]).pow(2).mean() / ACC
    loss.backward()
    n, held = n + 1, held + 1
    if held == ACC:
        opt.step()
        sched.step()
        opt.zero_grad()
        step += 1
        held = 0
    if n % 10 == 0:
        b = io.BytesIO()
        torch.save(
            {
                "net": net.state_dict(),
                "opt": opt.state_dict(),
                "sched": sched.state_dict(),
                "grads": [q.grad for q in net.parameters()],
            },
            b,
        )
        with open(file + ".new", "wb") as f:
            pickle.dump({"tensors": b.getvalue(), "n": n, "step": step, "held": held}, f)
        os.replace(file + ".new", file)
