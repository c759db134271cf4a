"""Two loaders of different length, cycled side by side, each with its position. `--bug`: that of the first, which is
asked before the other, is lost."""

import argparse
import os

import torch
from torch.utils.data import DataLoader

a = argparse.ArgumentParser()
a.add_argument("--out")
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(1)
os.makedirs(a.out, exist_ok=True)


class Cycle:
    """Goes round a loader for ever, shuffled by the round's number."""

    def __init__(self, data, seed):
        self.data, self.seed, self.taken, self.batches = data, seed, 0, []

    def next(self):
        per = len(self.data) // 4
        round_, place = divmod(self.taken, per)
        if not self.batches:
            order = torch.Generator().manual_seed(self.seed + round_)
            keep = torch.Generator()
            order = torch.randperm(len(self.data), generator=order).tolist()[place * 4 :]
            loader = DataLoader(self.data, batch_size=4, sampler=order, generator=keep)
            self.batches = iter(loader)
            self.left = per - place
        self.taken, self.left = self.taken + 1, self.left - 1
        batch = next(self.batches)
        self.batches = self.batches if self.left else []
        return batch


one, other = Cycle(torch.randn(40, 5), 100), Cycle(torch.randn(24, 5), 200)
net = torch.nn.Sequential(torch.nn.Linear(5, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
opt = torch.optim.NAdam(net.parameters(), lr=5e-3)
step, path = 0, os.path.join(a.out, "state.pt")
if os.path.exists(path):
    state = torch.load(path)
    net.load_state_dict(state["net"]), opt.load_state_dict(state["opt"])
    step, one.taken, other.taken = state["step"], 0 if a.bug else state["one"], state["other"]
while step < 24:
    first, second = one.next(), other.next()
    loss = net(first).square().mean() + (net(second) - second.sum(1, keepdim=True)).abs().mean()
    opt.zero_grad(), loss.backward(), opt.step()
    step += 1
    if step % 7 == 0:
        state = {"net": net.state_dict(), "opt": opt.state_dict(), "step": step}
        torch.save(state | {"one": one.taken, "other": other.taken}, path + ".tmp")
        os.replace(path + ".tmp", path)
