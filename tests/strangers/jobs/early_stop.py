"""Early stopping after a plateau, best and last model. `--bug`: the counter of epochs without progress is lost, so that
the job trains on for epochs that the undisturbed run does not have."""

import argparse
import os

import torch
from torch.utils.data import DataLoader, TensorDataset

a = argparse.ArgumentParser()
a.add_argument("--out")
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
os.makedirs(a.out, exist_ok=True)
x = torch.randn(128, 6)
score = [0.9, 0.8, 0.85, 0.86, 0.87, 0.84, 0.83, 0.82, 0.81, 0.85]  # of an evaluation, by epoch
gen = torch.Generator().manual_seed(7)
loader = DataLoader(TensorDataset(x), batch_size=32, shuffle=True, generator=gen)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), lr=0.05)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1)
epoch, best, bad, last = 0, 9.0, 0, os.path.join(a.out, "last.pt")


def save(state, path):
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


if os.path.exists(last):
    state = torch.load(last)
    for name, part in (("net", net), ("opt", opt), ("sched", sched)):
        part.load_state_dict(state[name])
    epoch, best, bad = state["epoch"], state["best"], 0 if a.bug else state["bad"]
    gen.set_state(state["gen"]), torch.set_rng_state(state["rng"])
while epoch < len(score) and bad < 3:
    for (batch,) in loader:
        opt.zero_grad()
        (net(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
        opt.step()
    sched.step(score[epoch])
    bad = 0 if score[epoch] < best else bad + 1
    if not bad:
        best = score[epoch]
        save({"net": net.state_dict(), "epoch": epoch}, os.path.join(a.out, "best.pt"))
    epoch += 1
    state = {"net": net.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict()}
    more = {"epoch": epoch, "best": best, "bad": bad}
    save(state | more | {"gen": gen.get_state(), "rng": torch.get_rng_state()}, last)
