"""Early stopping after a plateau, best and last model. `--bug`: the counter of epochs without progress is lost, so that
the job trains on for epochs that the undisturbed run does not have."""

import argparse, os, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--epochs", type=int, default=12)
p.add_argument("--patience", type=int, default=3)
p.add_argument("--bug", action="store_true")
a = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
os.makedirs(a.out, exist_ok=True)

g = torch.Generator().manual_seed(5)
y = torch.randint(0, 4, (160,), generator=g)
x = torch.randn(160, 1, 12, 12, generator=g) + 0.3 * y.view(-1, 1, 1, 1)
y = torch.where(
    torch.rand(160, generator=g) < 0.5, torch.randint(0, 4, (160,), generator=g), y
)  # noisy labels
train, val = random_split(
    TensorDataset(x, y), [128, 32], generator=torch.Generator().manual_seed(1)
)
gen = torch.Generator().manual_seed(7)
loader = DataLoader(train, batch_size=32, shuffle=True, generator=gen)
val_loader = DataLoader(val, batch_size=32)

model = nn.Sequential(
    nn.Conv2d(1, 8, 3),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(32, 4),
)
opt = torch.optim.Adam(model.parameters(), lr=0.05)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1)


def save(obj, name):
    path = os.path.join(a.out, name)
    torch.save(obj, path + ".tmp")
    os.replace(path + ".tmp", path)


start, best, bad = 0, float("inf"), 0
last = os.path.join(a.out, "last.pt")
if os.path.exists(last):
    ck = torch.load(last, weights_only=False)
    model.load_state_dict(ck["model"])
    opt.load_state_dict(ck["opt"])
    sched.load_state_dict(ck["sched"])
    gen.set_state(ck["gen"])
    torch.set_rng_state(ck["rng"])
    start, best = ck["epoch"] + 1, ck["best"]
    if not a.bug:
        bad = ck["bad"]
    print(f"resumed at epoch {start}")

for epoch in range(start, a.epochs):
    if bad >= a.patience:
        print("early stop")
        break
    model.train()
    for xb, yb in loader:
        loss = F.cross_entropy(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        val_loss = sum(
            F.cross_entropy(model(xb), yb, reduction="sum").item() for xb, yb in val_loader
        ) / len(val)
    sched.step(val_loss)
    if val_loss < best:
        best, bad = val_loss, 0
        save({"model": model.state_dict(), "epoch": epoch, "val_loss": val_loss}, "best.pt")
    else:
        bad += 1
    save(
        {
            "model": model.state_dict(),
            "opt": opt.state_dict(),
            "sched": sched.state_dict(),
            "gen": gen.get_state(),
            "rng": torch.get_rng_state(),
            "epoch": epoch,
            "best": best,
            "bad": bad,
        },
        "last.pt",
    )
    print(
        f"epoch {epoch} val {val_loss:.4f} best {best:.4f} bad {bad} lr {opt.param_groups[0]['lr']}"
    )
