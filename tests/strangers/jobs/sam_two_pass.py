"""SAM: two forward and backward passes per step, an own Optimizer that holds a base SGD; cyclic learning rate; checkpoints written by a background thread from copies.
--momentum: the base optimizer's momentum is not loaded. --view: the thread is given the live tensors, no copies, and is slow, so later steps leak into the file."""

import argparse, copy, os, threading, time
import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kw):
        super().__init__(params, dict(rho=rho, **kw))
        self.base = base(self.param_groups, **kw)
        self.param_groups = self.base.param_groups
        self.e = {}

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([q.grad.norm() for g in self.param_groups for q in g["params"]]).norm()
        for g in self.param_groups:
            for q in g["params"]:
                self.e[q] = q.grad * g["rho"] / (norm + 1e-12)
                q.add_(self.e[q])

    @torch.no_grad()
    def step(self, closure=None):
        for q, e in self.e.items():
            q.sub_(e)
        self.base.step()


p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--momentum", action="store_true")
p.add_argument("--view", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(8)
os.makedirs(args.out, exist_ok=True)
x, y = torch.randn(44, 5), torch.randint(2, (44,))
net = nn.Sequential(nn.Linear(5, 12), nn.ELU(), nn.Linear(12, 2))
sam = SAM(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
sched = torch.optim.lr_scheduler.CyclicLR(sam.base, 0.01, 0.2, step_size_up=3, cycle_momentum=False)
step, path, writer = 0, os.path.join(args.out, "sam.pt"), None


def write(state):
    if args.view:
        time.sleep(0.05)
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


if os.path.exists(path):
    s = torch.load(path)
    net.load_state_dict(s["net"])
    if not args.momentum:
        sam.base.load_state_dict(s["base"])
        sam.param_groups = sam.base.param_groups
    sched.load_state_dict(s["sched"])
    step = s["step"]
    for g, lr in zip(sam.base.param_groups, s["sched"]["_last_lr"]):
        g["lr"] = lr
while step < 22:
    epoch, b = divmod(step, 11)
    idx = torch.randperm(44, generator=torch.Generator().manual_seed(epoch))[4 * b : 4 * b + 4]
    for second in (False, True):
        sam.base.zero_grad()
        nn.functional.cross_entropy(net(x[idx]), y[idx]).backward()
        sam.step() if second else sam.first_step()
    sched.step()
    step += 1
    if args.view:
        time.sleep(0.03)
    if step % 5 == 0 or step == 22:
        state = {
            "net": net.state_dict(),
            "base": sam.base.state_dict(),
            "sched": sched.state_dict(),
            "step": step,
        }
        if writer:
            writer.join()
        writer = threading.Thread(
            target=write, args=(state if args.view else copy.deepcopy(state),)
        )
        writer.start()
writer.join()
