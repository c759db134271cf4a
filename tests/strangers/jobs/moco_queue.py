"""Contrastive learning with a momentum encoder and a queue of keys: queue and pointer are buffers (persistent, or not with --queue); two augmented views with noise from a generator seeded per step; checkpoint folder renamed into place.
--queue: the queue is a buffer with persistent=False, so it is new after a restart. --key: the momentum encoder is copied from the query encoder at restart. --pointer: the queue's write position is 0 again."""

import argparse, copy, os, shutil
import torch
from torch import nn
from torch.nn import functional as F

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("queue", "key", "pointer"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(55)
os.makedirs(args.out, exist_ok=True)


class MoCo(nn.Module):
    def __init__(self, n=20):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer(
            "keys", F.normalize(torch.randn(n, 6), dim=1), persistent=not args.queue
        )
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def forward(self, a, b):
        with torch.no_grad():
            for k, q in zip(self.k.parameters(), self.q.parameters()):
                k.lerp_(q, 0.05)
            key = F.normalize(self.k(b), dim=1)
        query = F.normalize(self.q(a), dim=1)
        logits = (
            torch.cat([(query * key).sum(1, keepdim=True), query @ self.keys.clone().T], 1) / 0.2
        )
        i = int(self.at)
        self.keys[i : i + len(key)] = key
        self.at.fill_((i + len(key)) % len(self.keys))
        return F.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))


net = MoCo()
opt = torch.optim.SGD(net.q.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 24)
data, step, final = torch.randn(48, 8), 0, os.path.join(args.out, "checkpoint")
if not os.path.isdir(final) and os.path.isdir(final + ".old"):
    os.rename(final + ".old", final)  # died between the two renames
if os.path.isdir(final):
    net.load_state_dict(torch.load(final + "/model.pt"))
    opt.load_state_dict(torch.load(final + "/optimizer.pt"))
    t = torch.load(final + "/trainer.pt")
    sched.load_state_dict(t["sched"])
    step = t["step"]
    if args.key:
        net.k.load_state_dict(net.q.state_dict())
    if args.pointer:
        net.at.zero_()
while step < 24:
    epoch, b = divmod(step, 12)
    x = data[torch.randperm(48, generator=torch.Generator().manual_seed(epoch))[4 * b : 4 * b + 4]]
    g = torch.Generator().manual_seed(10_000 + step)
    loss = net(
        x + 0.1 * torch.randn(x.shape, generator=g), x + 0.1 * torch.randn(x.shape, generator=g)
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    step += 1
    if step % 4 == 0:
        new = final + ".new"
        shutil.rmtree(new, ignore_errors=True)
        os.mkdir(new)
        torch.save(net.state_dict(), new + "/model.pt")
        torch.save(opt.state_dict(), new + "/optimizer.pt")
        torch.save({"sched": sched.state_dict(), "step": step}, new + "/trainer.pt")
        shutil.rmtree(final + ".old", ignore_errors=True)
        if os.path.isdir(final):
            os.rename(final, final + ".old")
        os.rename(new, final)
        shutil.rmtree(final + ".old", ignore_errors=True)
