"""CNN with BatchNorm, SGD with Nesterov momentum, ReduceLROnPlateau on a validation loss, metrics in a csv file, checkpoint at the end of each epoch and every 3 steps.
--buffers: only the parameters are saved, not BatchNorm's running statistics. --plateau: the schedule's memory (best, bad epochs) is lost. --csv: rows of repeated steps appear twice."""

import argparse, csv, os
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("buffers", "plateau", "csv"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(7)
os.makedirs(args.out, exist_ok=True)
last, log = os.path.join(args.out, "last.ckpt"), os.path.join(args.out, "metrics.csv")


class Pictures(Dataset):
    def __init__(self, n, seed):
        r = np.random.RandomState(seed)
        self.x = r.rand(n, 1, 8, 8).astype("float32")
        self.y = (self.x.mean((1, 2, 3)) > 0.5).astype("int64")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]), int(self.y[i])


train, val = Pictures(40, 0), Pictures(16, 1)
net = nn.Sequential(
    nn.Conv2d(1, 6, 3),
    nn.BatchNorm2d(6),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(24, 2),
)
opt = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9, nesterov=True, weight_decay=1e-4)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
epoch, done, step, rows = 0, 0, 0, []


def save():
    model = dict(net.named_parameters()) if args.buffers else net.state_dict()
    torch.save(
        {
            "model": model,
            "opt": opt.state_dict(),
            "plateau": plateau.state_dict(),
            "epoch": epoch,
            "done": done,
            "step": step,
        },
        last + ".part",
    )
    os.replace(last + ".part", last)


def evaluate():
    net.eval()
    with torch.no_grad():
        v = sum(nn.functional.cross_entropy(net(x), y).item() for x, y in DataLoader(val, 8))
    net.train()
    return v


if os.path.isfile(last):
    ck = torch.load(last)
    net.load_state_dict(ck["model"], strict=not args.buffers)
    opt.load_state_dict(ck["opt"])
    if not args.plateau:
        plateau.load_state_dict(ck["plateau"])
    epoch, done, step = ck["epoch"], ck["done"], ck["step"]
    if not args.csv:  # cut what will be done again
        rows = [r for r in csv.reader(open(log)) if int(r[0]) <= step]
        with open(log + ".part", "w", newline="") as f:
            csv.writer(f).writerows(rows)
        os.replace(log + ".part", log)
while epoch < 4:
    g = torch.Generator().manual_seed(100 + epoch)
    for i, (x, y) in enumerate(DataLoader(train, batch_size=8, shuffle=True, generator=g)):
        if i < done:
            continue
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        step += 1
        done = i + 1
        with open(log, "a", newline="") as f:
            csv.writer(f).writerow([step, loss.item(), opt.param_groups[0]["lr"]])
        if step % 3 == 0:
            save()
    plateau.step(evaluate())
    epoch, done = epoch + 1, 0
    save()
