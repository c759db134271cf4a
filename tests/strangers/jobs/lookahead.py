"""Own optimizer: Lookahead around SGD (fast weights, every 5 steps pulled to slow ones), derived from torch.optim.Optimizer. Saved each 4 steps into npz-free torch files in a folder per step.
--slow: the slow weights are not saved (taken anew from the fast ones). --count: the inner counter starts at 0, so the pull comes at other steps."""

import argparse, json, os, shutil
import torch
from torch import nn


class Lookahead(torch.optim.Optimizer):
    def __init__(self, base, k=5, alpha=0.5):
        self.base, self.k, self.alpha, self.n = base, k, alpha, 0
        super().__init__([q for g in base.param_groups for q in g["params"]], {})
        self.param_groups = base.param_groups
        self.slow = [[q.detach().clone() for q in g["params"]] for g in self.param_groups]

    def step(self, closure=None):
        loss = self.base.step(closure)
        self.n += 1
        if self.n % self.k == 0:
            with torch.no_grad():
                for group, slow in zip(self.param_groups, self.slow):
                    for q, s in zip(group["params"], slow):
                        s.add_(q - s, alpha=self.alpha)
                        q.copy_(s)
        return loss

    def state_dict(self):
        return {"base": self.base.state_dict(), "slow": self.slow, "n": self.n}

    def load_state_dict(self, d, slow=True, count=True):
        self.base.load_state_dict(d["base"])
        self.param_groups = self.base.param_groups
        self.slow = (
            d["slow"]
            if slow
            else [[q.detach().clone() for q in g["params"]] for g in self.param_groups]
        )
        self.n = d["n"] if count else 0


p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--slow", action="store_true")
p.add_argument("--count", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(3)
os.makedirs(args.out, exist_ok=True)
x, y = torch.randn(40, 6), torch.randn(40, 1)
net = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 1))
opt = Lookahead(torch.optim.SGD(net.parameters(), 0.05, momentum=0.9))
pointer, step = os.path.join(args.out, "latest.json"), 0
if os.path.exists(pointer):
    folder = os.path.join(args.out, json.load(open(pointer))["folder"])
    net.load_state_dict(torch.load(folder + "/model.pt"))
    opt.load_state_dict(torch.load(folder + "/optimizer.pt"), not args.slow, not args.count)
    step = json.load(open(folder + "/meta.json"))["step"]
while step < 24:
    epoch, b = divmod(step, 10)
    idx = torch.randperm(40, generator=torch.Generator().manual_seed(epoch))[4 * b : 4 * b + 4]
    opt.zero_grad()
    (net(x[idx]) - y[idx]).abs().mean().backward()
    opt.step()
    step += 1
    if step % 4 == 0:
        name = f"step{step:04d}"
        folder = os.path.join(args.out, name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        torch.save(net.state_dict(), folder + "/model.pt")
        torch.save(opt.state_dict(), folder + "/optimizer.pt")
        json.dump({"step": step}, open(folder + "/meta.json", "w"))
        json.dump({"folder": name}, open(pointer + ".tmp", "w"))
        os.replace(pointer + ".tmp", pointer)
