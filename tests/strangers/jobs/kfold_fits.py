"""Three-fold cross validation: three fits in one process, each with its own model, optimizer and 8 steps; results in results.json after each fold; a checkpoint inside a fold.
--folds: results of finished folds are forgotten at restart (the file holds only later ones). --init: the model of a resumed fold's successor is initialised from a generator that was not restored. --same: after a restart the fold's held-out part is that of fold 0."""

import argparse, json, os
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("folds", "init", "same"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(40)
os.makedirs(args.out, exist_ok=True)
x = torch.randn(48, 4)
y = (x.sum(1) > 0).float()
path, table = os.path.join(args.out, "fold.ckpt"), os.path.join(args.out, "results.json")


def put(file, write):
    write(file + ".tmp")
    os.replace(file + ".tmp", file)


def dump(results):
    def write(f):
        with open(f, "w") as h:
            json.dump(results, h, indent=1)

    put(table, write)


state = torch.load(path) if os.path.exists(path) else None
results = json.load(open(table)) if os.path.exists(table) and not args.folds else {}
if state:
    results = {k: v for k, v in results.items() if int(k) < state["fold"]}
    if not args.init:
        torch.set_rng_state(state["rng"])
for fold in range(state["fold"] if state else 0, 3):
    held = 0 if args.same and state else fold
    test = torch.arange(held * 16, held * 16 + 16)
    train = torch.tensor([i for i in range(48) if i not in set(test.tolist())])
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    opt = torch.optim.Adadelta(net.parameters(), 0.5)
    step = 0
    if state:
        net.load_state_dict(state["net"]), opt.load_state_dict(state["opt"])
        step = state["step"]
        if not args.init:
            torch.set_rng_state(state["rng"])
    while step < 8:
        order = torch.randperm(32, generator=torch.Generator().manual_seed(fold * 10 + step // 4))
        idx = train[order[step % 4 * 8 : step % 4 * 8 + 8]]
        loss = nn.functional.binary_cross_entropy_with_logits(net(x[idx])[:, 0], y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 3 == 0:
            s = {
                "net": net.state_dict(),
                "opt": opt.state_dict(),
                "step": step,
                "fold": fold,
                "rng": torch.get_rng_state(),
            }
            put(path, lambda f: torch.save(s, f))
    state = None
    with torch.no_grad():
        results[str(fold)] = (
            (net(x[test])[:, 0] > 0) == y[test].bool()
        ).float().mean().item() + loss.item()
    dump(results)
