"""Samples are drawn by weights that follow from their losses. `--bug`: numpy's generator, of the augmentation, is lost:
later samples are others only because the losses are."""

import argparse, os, numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--epochs", type=int, default=5)
p.add_argument("--bug", action="store_true")
a = p.parse_args()
torch.set_num_threads(1)
np.random.seed(8)
torch.manual_seed(8)
os.makedirs(a.out, exist_ok=True)


class Signals(Dataset):
    def __init__(self, n=200):
        r = np.random.RandomState(0)
        self.x = r.randn(n, 24).astype(np.float32)
        self.y = (self.x[:, 0] + 0.5 * r.randn(n) > 0.8).astype(np.int64)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = np.roll(self.x[i], np.random.randint(-1, 2)) * np.random.uniform(0.9, 1.1)
        return i, torch.from_numpy(x.astype(np.float32)), int(self.y[i])


def atomic(obj, name):
    with open(os.path.join(a.out, name + ".tmp"), "wb") as f:
        torch.save(obj, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(os.path.join(a.out, name + ".tmp"), os.path.join(a.out, name))


data = Signals()
weights = torch.ones(len(data), dtype=torch.double)  # hard examples are drawn more often
gen = torch.Generator().manual_seed(3)
sampler = WeightedRandomSampler(weights, 192, replacement=True, generator=gen)
loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=0)
model = nn.Sequential(nn.Linear(24, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 2))
opt = torch.optim.Adafactor(model.parameters(), lr=0.02)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)
start, best = 0, 0.0
if os.path.exists(os.path.join(a.out, "last.pth")):
    ck = torch.load(os.path.join(a.out, "last.pth"), weights_only=False)
    model.load_state_dict(ck["model"])
    opt.load_state_dict(ck["opt"])
    sched.load_state_dict(ck["sched"])
    sampler.weights = ck["weights"]
    gen.set_state(ck["gen"])
    torch.set_rng_state(ck["torch"])
    if not a.bug:
        np.random.set_state(ck["numpy"])
    start, best = ck["epoch"], ck["best"]
    print("resumed at epoch", start)
for epoch in range(start, a.epochs):
    model.train()
    losses = sampler.weights.clone()
    for i, x, y in loader:
        each = F.cross_entropy(model(x), y, reduction="none")
        opt.zero_grad()
        each.mean().backward()
        opt.step()
        losses[i] = each.detach().double() + 0.05
    sampler.weights = losses
    sched.step()
    model.eval()
    with torch.no_grad():
        acc = (model(torch.from_numpy(data.x)).argmax(1).numpy() == data.y).mean()
    if acc > best:
        best = float(acc)
        atomic({"model": model.state_dict(), "acc": best}, "best.pth")
    atomic(
        {
            "model": model.state_dict(),
            "opt": opt.state_dict(),
            "sched": sched.state_dict(),
            "weights": sampler.weights,
            "gen": gen.get_state(),
            "torch": torch.get_rng_state(),
            "numpy": np.random.get_state(),
            "epoch": epoch + 1,
            "best": best,
        },
        "last.pth",
    )
    print(f"epoch {epoch} acc {acc:.3f} best {best:.3f}", flush=True)
