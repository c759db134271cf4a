"""Two loaders of different length, cycled side by side, each with its position. `--bug`: that of the first, which is
asked before the other, is lost."""

import argparse, json, os, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--steps", type=int, default=30)
p.add_argument("--every", type=int, default=7)
p.add_argument("--bug", action="store_true")
a = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(1)
os.makedirs(a.out, exist_ok=True)


class Task(Dataset):
    def __init__(self, n, seed, classes):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 12, generator=g)
        self.y = torch.randint(0, classes, (n,), generator=g) if classes else self.x[:, :3].sum(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Shuffle(Sampler):
    def __init__(self, n, seed):
        self.n, self.seed, self.epoch, self.skip = n, seed, 0, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        order = torch.randperm(
            self.n, generator=torch.Generator().manual_seed(self.seed + self.epoch)
        ).tolist()
        skip, self.skip = self.skip, 0
        return iter(order[skip:])


class Cycle:
    """Goes round a loader for ever; knows its epoch and how many batches of it are gone."""

    def __init__(self, data, batch, seed):
        self.sampler, self.batch, self.done = Shuffle(len(data), seed), batch, 0
        self.loader = DataLoader(data, batch_size=batch, sampler=self.sampler, drop_last=True)
        self.it = None

    def next(self):
        if self.it is None:
            self.sampler.skip = self.done * self.batch
            self.it = iter(self.loader)
        try:
            out = next(self.it)
        except StopIteration:
            self.sampler.epoch, self.done = self.sampler.epoch + 1, 0
            self.it = iter(self.loader)
            out = next(self.it)
        self.done += 1
        return out


tasks = {"class": Cycle(Task(72, 1, 5), 8, 100), "value": Cycle(Task(50, 2, 0), 8, 200)}
trunk = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.1))
model = nn.ModuleDict({"trunk": trunk, "class": nn.Linear(32, 5), "value": nn.Linear(32, 1)})
opt = torch.optim.NAdam(model.parameters(), lr=5e-3)
sched = torch.optim.lr_scheduler.MultiStepLR(opt, [12, 24], gamma=0.3)
path, step = os.path.join(a.out, "state.ckpt"), 0
if os.path.exists(path):
    ck = torch.load(path, weights_only=True)
    model.load_state_dict(ck["model"])
    opt.load_state_dict(ck["opt"])
    sched.load_state_dict(ck["sched"])
    step = ck["step"]
    for name, c in tasks.items():
        c.sampler.epoch, c.done = ck["loaders"][name]
    if a.bug:
        tasks["class"].done = 0
    for c in tasks.values():
        c.sampler.skip = c.done * c.batch
        c.it = iter(c.loader)
    torch.set_rng_state(ck["rng"])
    print("resumed at step", step)
else:
    for c in tasks.values():
        c.it = iter(c.loader)
while step < a.steps:
    x1, y1 = tasks["class"].next()
    x2, y2 = tasks["value"].next()
    l1 = F.cross_entropy(model["class"](model["trunk"](x1)), y1)
    l2 = F.mse_loss(model["value"](model["trunk"](x2))[:, 0], y2)
    opt.zero_grad()
    (l1 + 0.5 * l2).backward()
    opt.step()
    sched.step()
    step += 1
    with open(os.path.join(a.out, "log.jsonl"), "a") as f:
        f.write(json.dumps({"step": step, "l1": l1.item(), "l2": l2.item()}) + "\n")
    if step % a.every == 0 or step == a.steps:
        torch.save(
            {
                "model": model.state_dict(),
                "opt": opt.state_dict(),
                "sched": sched.state_dict(),
                "step": step,
                "loaders": {n: (c.sampler.epoch, c.done) for n, c in tasks.items()},
                "rng": torch.get_rng_state(),
            },
            path + ".tmp",
        )
        os.replace(path + ".tmp", path)
