"""Pretraining, then fine-tuning with a new head, a checkpoint file for each phase, and the trunk in a file of its own
between them. `--bug`: the pretrained trunk is loaded over the checkpoint's. `--accuracy`: the one of each epoch that a
restart begins is of other samples, and only the log tells it."""

import argparse
import json
from pathlib import Path

import torch
from torch import nn

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a.add_argument("--accuracy", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(7)
x = torch.randn(48, 6)
y = (x[:, 0] > 0).long()
trunk, decoder, head = nn.Linear(6, 12), nn.Linear(12, 6), nn.Linear(12, 2)
a.out.mkdir(parents=True, exist_ok=True)


def save(state, name):
    torch.save(state, a.out / f"{name}.tmp")
    (a.out / f"{name}.tmp").replace(a.out / name)


def phase(name, head, loss_of, seed):
    parts, file, begin, log = nn.ModuleList([trunk, head]), a.out / f"{name}.pt", 0, []
    opt = torch.optim.Adam(parts.parameters(), 0.01)
    if file.exists():
        state = torch.load(file)
        opt.load_state_dict(state["opt"])
        parts.load_state_dict(state["net"])
        begin, log = state["epoch"], state["log"]
        if a.bug and name == "tune":
            trunk.load_state_dict(torch.load(a.out / "trunk.pt"))
    for epoch in range(begin, 4):
        for i in torch.randperm(48, generator=torch.Generator().manual_seed(seed + epoch)).split(8):
            loss = loss_of(i)
            opt.zero_grad(), loss.backward(), opt.step()
        few = x[: 20 + 9 * (a.accuracy and epoch == begin and epoch > 0)]
        right = head(trunk(few)).argmax(1) % 2 == y[: len(few)]
        log.append({"epoch": epoch, "accuracy": float(right.float().mean())})
        whole = {"net": parts.state_dict(), "opt": opt.state_dict(), "log": log}
        save(whole | {"epoch": epoch + 1}, file.name)
    return log


if not (a.out / "trunk.pt").exists():
    phase("pre", decoder, lambda i: (decoder(trunk(x[i])) - x[i]).square().mean(), 0)
    save(trunk.state_dict(), "trunk.pt")
trunk.load_state_dict(torch.load(a.out / "trunk.pt"))
log = phase("tune", head, lambda i: nn.functional.cross_entropy(head(trunk(x[i])), y[i]), 10)
(a.out / "result.json").write_text(json.dumps(log))
