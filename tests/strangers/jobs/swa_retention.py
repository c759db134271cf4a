"""SWA with AveragedModel from step 12 on and update_bn at the end; keeps the two newest and the best checkpoint, index.json lists them.
--averaged: n_averaged is lost (weights of the average are kept). --swalr: SWALR's own schedule is not restored. --cleanup: after a restart the retention deletes the newest instead of the oldest. --index: index.json is rebuilt from entries since the restart only."""

import argparse, json, os
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("averaged", "swalr", "cleanup", "index"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(44)
os.makedirs(args.out, exist_ok=True)
x = torch.randn(48, 5) * 2 + 1
net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
swa = AveragedModel(net)
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
swalr = SWALR(opt, swa_lr=0.02, anneal_epochs=6)
index_file, entries, step, resumed = os.path.join(args.out, "index.json"), [], 0, False


def at(e):
    return os.path.join(args.out, f"model-{e['step']}.pt")


if os.path.exists(index_file):
    entries = json.load(open(index_file))
    s = torch.load(at(max(entries, key=lambda e: e["step"])))
    resumed = True
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"]), swa.load_state_dict(s["swa"])
    if args.averaged:
        swa.n_averaged.zero_()
    if not args.swalr:
        swalr.load_state_dict(s["swalr"])
    step = s["step"]
    if args.index:
        entries = []
while step < 24:
    epoch, b = divmod(step, 12)
    i = torch.randperm(48, generator=torch.Generator().manual_seed(epoch))[b * 4 : b * 4 + 4]
    loss = (net(x[i]) - x[i, :1] ** 2).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    if step >= 12:
        swa.update_parameters(net)
        swalr.step()
    if step % 4 == 0:
        new = {"step": step, "score": round(abs(step - 8.5), 2)}
        torch.save(
            {
                "net": net.state_dict(),
                "opt": opt.state_dict(),
                "swa": swa.state_dict(),
                "swalr": swalr.state_dict(),
                "step": step,
            },
            at(new) + ".tmp",
        )
        os.replace(at(new) + ".tmp", at(new))
        entries = [e for e in entries if e["step"] != step] + [new]
        best = min(entries, key=lambda e: e["score"])
        ordered = sorted(entries, key=lambda e: e["step"], reverse=args.cleanup and resumed)
        keep = [e for e in ordered if e in ordered[-2:] or e == best]
        with open(index_file + ".tmp", "w") as f:
            json.dump(sorted(keep, key=lambda e: e["step"]), f)
        os.replace(index_file + ".tmp", index_file)
        for name in os.listdir(args.out):
            if name.startswith("model-") and name not in [os.path.basename(at(e)) for e in keep]:
                os.remove(os.path.join(args.out, name))
update_bn(x.split(8), swa)
torch.save(swa.state_dict(), os.path.join(args.out, "swa_final.pt"))
