"""One optimizer per parameter, stepped from post_accumulate_grad hooks during backward (as for memory saving), transformer encoder layer; one file per optimizer in a folder, pointer file.
--one: the optimizer of one parameter is not loaded. --eps: the settings of the optimizers (betas) that a command line changed at the start are not kept: param_groups are not loaded."""

import argparse, os, shutil
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--one", action="store_true")
p.add_argument("--eps", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
os.makedirs(args.out, exist_ok=True)
net = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    1,
    enable_nested_tensor=False,
)
data = torch.randn(48, 6, 8)
opts = {n: torch.optim.Adam([q], 3e-3) for n, q in net.named_parameters()}


def hook(name):
    def run(q):
        opts[name].step()
        opts[name].zero_grad()

    return run


for n, q in net.named_parameters():
    q.register_post_accumulate_grad_hook(hook(n))
step, pointer = 0, os.path.join(args.out, "LATEST")
if os.path.exists(pointer):
    d = os.path.join(args.out, open(pointer).read())
    net.load_state_dict(torch.load(d + "/net.pt"))
    step = int(open(d + "/step").read())
    for n, o in opts.items():
        s = torch.load(f"{d}/opt.{n}.pt")
        if args.eps:
            s["param_groups"] = o.state_dict()["param_groups"]
        if not (args.one and n.endswith("linear1.weight")):
            o.load_state_dict(s)
while step < 20:
    epoch, b = divmod(step, 10)
    if step == 3:  # decided while training, kept from then on
        for o in opts.values():
            o.param_groups[0]["betas"] = (0.8, 0.95)
    idx = torch.randperm(48, generator=torch.Generator().manual_seed(epoch))[4 * b : 4 * b + 4]
    (net(data[idx]) - data[idx].roll(1, 1)).square().mean().backward()
    step += 1
    if step % 4 == 0:
        d = os.path.join(args.out, f"at{step}")
        shutil.rmtree(d, ignore_errors=True)
        os.mkdir(d)
        torch.save(net.state_dict(), d + "/net.pt")
        for n, o in opts.items():
            torch.save(o.state_dict(), f"{d}/opt.{n}.pt")
        open(d + "/step", "w").write(str(step))
        with open(pointer + ".tmp", "w") as f:
            f.write(f"at{step}")
        os.replace(pointer + ".tmp", pointer)
        for old in range(4, step - 4, 4):
            shutil.rmtree(os.path.join(args.out, f"at{old}"), ignore_errors=True)
