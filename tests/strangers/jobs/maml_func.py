"""Meta-learning: tasks drawn from a task generator, inner loop of two gradient steps by torch.func (functional_call, grad, vmap), outer Adam; early stopping on a meta-validation loss that ends the run by itself.
--tasks: the task generator starts over. --patience: the count of bad validations is forgotten, so the run ends later. --inner: the learned inner learning rate (a plain tensor beside the model) is not restored."""

import argparse, os
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("tasks", "patience", "inner"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(19)
os.makedirs(args.out, exist_ok=True)
net = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
log_lr = torch.tensor(-3.0, requires_grad=True)
opt = torch.optim.Adam([{"params": net.parameters(), "lr": 5e-3}, {"params": [log_lr], "lr": 2e-2}])
tasks = torch.Generator().manual_seed(4)
path, step, best, bad, over = os.path.join(args.out, "meta.ckpt"), 0, 1e9, 0, False


def draw(g, n=4):
    amp, phase = torch.rand(n, 1, 1, generator=g) * 4 + 1, torch.rand(n, 1, 1, generator=g) * 3
    x = torch.rand(n, 10, 1, generator=g) * 10 - 5
    return x, amp * torch.sin(x + phase)


def inner_loss(w, x, y):
    return (functional_call(net, w, (x,)) - y).square().mean()


def adapted(w, x, y):
    for _ in range(2):
        g = grad(inner_loss)(w, x[:5], y[:5])
        w = {k: v - log_lr.exp() * g[k] for k, v in w.items()}
    return inner_loss(w, x[5:], y[5:])


def meta_loss(x, y):
    return vmap(adapted, in_dims=(None, 0, 0))(dict(net.named_parameters()), x, y).mean()


if os.path.exists(path):
    c = torch.load(path)
    net.load_state_dict(c["net"]), opt.load_state_dict(c["opt"])
    step, best, over = c["step"], c["best"], c["over"]
    bad = 0 if args.patience else c["bad"]
    if not args.inner:
        log_lr.data.copy_(c["log_lr"])
    if not args.tasks:
        tasks.set_state(c["tasks"])
while step < 40 and not over:
    loss = meta_loss(*draw(tasks))
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    if step % 3 == 0:
        with torch.no_grad():
            val = round(
                meta_loss(*draw(torch.Generator().manual_seed(77), 8)).item(), 1
            ) + 0.6 * max(0, step - 9)
        best, bad = (val, 0) if val < best else (best, bad + 1)
        over = bad >= 4
        torch.save(
            {
                "net": net.state_dict(),
                "opt": opt.state_dict(),
                "log_lr": log_lr.detach(),
                "tasks": tasks.get_state(),
                "step": step,
                "best": best,
                "bad": bad,
                "over": over,
            },
            path + ".tmp",
        )
        os.replace(path + ".tmp", path)
    print("step", step, "loss", loss.item(), flush=True)
