"""Fine-tuning: a frozen backbone with LoRA-like adapters; at step 10 the last backbone layer is thawed and joins as a new parameter group with its own learning rate. Only adapters, head and thawed layer are saved.
--thaw: the thawing happens only when step == 10 is passed, so after a later restart the layer stays frozen. --group: the new group is loaded without its optimizer state. --adapter: adapter B is saved under A's name (both get A... of the right shape: rank 4 by 4)."""

import argparse, os
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("thaw", "group", "adapter"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(31)
os.makedirs(args.out, exist_ok=True)


class LoRA(nn.Module):
    def __init__(self, base, r=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A, self.B = nn.Parameter(torch.randn(8, r) * 0.1), nn.Parameter(torch.zeros(r, 8))

    def forward(self, x):
        return self.base(x) + x @ self.A @ self.B


net = nn.Sequential(
    LoRA(nn.Linear(8, 8)), nn.ReLU(), LoRA(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 3)
)
x, y = torch.randn(60, 8), torch.randint(3, (60,))
adapters = [q for q in net.parameters() if q.requires_grad]
opt = torch.optim.AdamW(adapters, 1e-2)


def thaw():
    layer = net[2].base.requires_grad_(True)
    opt.add_param_group({"params": list(layer.parameters()), "lr": 1e-3})


step, path = 0, os.path.join(args.out, "adapter.pt")
if os.path.exists(path):
    s = torch.load(path)
    if s["step"] >= 10 and not args.thaw:
        thaw()
    net.load_state_dict(s["weights"], strict=False)
    if args.adapter:
        net[0].B.data.copy_(s["weights"]["0.A"])
    o = s["opt"]
    if args.thaw:
        o = {
            "state": {k: v for k, v in o["state"].items() if k < len(adapters)},
            "param_groups": o["param_groups"][:1],
        }
    if args.group and len(o["param_groups"]) > 1:
        o["state"] = {k: v for k, v in o["state"].items() if k < len(adapters)}
    opt.load_state_dict(o)
    step = s["step"]
while step < 25:
    if step == 10:
        thaw() if len(opt.param_groups) == 1 else None
    epoch, b = divmod(step, 12)
    idx = torch.randperm(60, generator=torch.Generator().manual_seed(epoch))[5 * b : 5 * b + 5]
    loss = nn.functional.cross_entropy(net(x[idx]), y[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    if step % 4 == 0 or step == 25:
        keep = {
            n: q for n, q in net.state_dict().items() if ".base." not in n or n.startswith("2.base")
        }
        torch.save({"weights": keep, "opt": opt.state_dict(), "step": step}, path + ".tmp")
        os.replace(path + ".tmp", path)
