"""Autoencoder trained with Adam, swapped for SGD with momentum at the start of epoch 2 (of 3); StepLR on the second; three newest checkpoints kept, names with the step unpadded, `latest` is a symbolic link.
--swap: after a restart it is always Adam again. --velocity: SGD's momentum is not loaded. --lexical: takes the last file in the order of letters instead of the link. --steplr: the learning rate schedule of SGD starts over."""

import argparse, glob, os, re
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("swap", "velocity", "lexical", "steplr"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(17)
os.makedirs(args.out, exist_ok=True)
x = torch.rand(36, 10)
net = nn.Sequential(nn.Linear(10, 4), nn.Sigmoid(), nn.Linear(4, 10))


def make(kind):
    if kind == "adam":
        return torch.optim.Adam(net.parameters(), 0.02, amsgrad=True), None
    o = torch.optim.SGD(net.parameters(), 0.1, momentum=0.8)
    return o, torch.optim.lr_scheduler.StepLR(o, 4, 0.5)


kind, step, link = "adam", 0, os.path.join(args.out, "latest")
opt, sched = make(kind)
if os.path.islink(link):
    name = os.path.join(args.out, os.readlink(link))
    if args.lexical:
        name = sorted(glob.glob(os.path.join(args.out, "ae-*.pt")))[-1]
    s = torch.load(name)
    net.load_state_dict(s["net"])
    kind, step = s["kind"], s["step"]
    if args.swap:
        kind = "adam"
    opt, sched = make(kind)
    if kind == s["kind"] and not (args.velocity and kind == "sgd"):
        opt.load_state_dict(s["opt"])
    if sched and not args.steplr:
        sched.load_state_dict(s["sched"])
    if sched and args.steplr:
        for g in opt.param_groups:
            g["lr"] = 0.1
while step < 27:
    epoch, b = divmod(step, 9)
    if step == 9:
        kind = "sgd"
        opt, sched = make(kind)
    idx = torch.randperm(36, generator=torch.Generator().manual_seed(epoch))[4 * b : 4 * b + 4]
    loss = nn.functional.mse_loss(net(x[idx]), x[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if sched:
        sched.step()
    step += 1
    if step % 4 == 0 or step == 27:
        f = f"ae-{step}.pt"
        torch.save(
            {
                "net": net.state_dict(),
                "opt": opt.state_dict(),
                "sched": sched.state_dict() if sched else None,
                "kind": kind,
                "step": step,
            },
            os.path.join(args.out, "tmp"),
        )
        os.replace(os.path.join(args.out, "tmp"), os.path.join(args.out, f))
        if os.path.lexists(link + ".new"):
            os.remove(link + ".new")
        os.symlink(f, link + ".new")
        os.replace(link + ".new", link)
        for old in sorted(
            glob.glob(os.path.join(args.out, "ae-*.pt")),
            key=lambda n: int(re.findall(r"\d+", os.path.basename(n))[0]),
        )[:-3]:
            os.remove(old)
