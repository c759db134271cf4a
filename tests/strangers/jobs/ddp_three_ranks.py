"""DDP on three ranks: each process sums its first step's gradients in the buckets that DDP guessed, later ones in the
order in which gradients arrived, so that the first step after a restart has other bits. `--cure pass`: one forward and
backward before the first step settles the buckets. `--cure unused`: find_unused_parameters never refills them.
`--cure static`: static_graph refills them all the same, and the fault stays. Three ranks (with two, a + b is b + a)."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--cure", choices=["none", "pass", "unused", "static"], default="none")
a = a.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(5)


class Crossed(torch.nn.Module):
    """Declared in another order than it is used in, as many real networks are."""

    def __init__(self):
        super().__init__()
        widths = {2: (64, 48), 0: (64, 64), 3: (48, 5), 1: (64, 64)}
        self.layers = torch.nn.ModuleDict(
            {str(i): torch.nn.Linear(*width) for i, width in widths.items()}
        )

    def forward(self, x):
        for i in range(3):
            x = torch.tanh(self.layers[str(i)](x))
        return self.layers["3"](x)


x = torch.randn(192, 64)
net = Crossed()
settings = {"find_unused_parameters": a.cure == "unused", "static_graph": a.cure == "static"}
model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.02, **settings)
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
if a.cure == "pass":
    for _ in range(2):
        model(torch.zeros(2, 64)).sum().backward()
        net.zero_grad()
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step = s["step"]
while step < 16:
    batch = x[(step % 8 * ranks + rank) * 8 :][:8]
    loss = (model(batch) - batch[:, :5]).square().mean()
    opt.zero_grad(), loss.backward(), opt.step()
    step += 1
    if step % 4 == 0:
        if rank == 0:
            torch.save(
                {"net": net.state_dict(), "opt": opt.state_dict(), "step": step}, f"{file}.tmp"
            )
            Path(f"{file}.tmp").replace(file)
        dist.barrier()
dist.barrier()
dist.destroy_process_group()
