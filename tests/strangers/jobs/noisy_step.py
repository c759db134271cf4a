"""An optimizer that draws random numbers and writes into its own groups inside `step` (Langevin noise,
stochastic rounding, counters of Prodigy and of schedule-free). `--bug`: the group's counter is not restored.
`--quiet`: no noise."""

import argparse
from pathlib import Path

import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a.add_argument("--quiet", action="store_true", help="no noise: the counter alone")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)


class Langevin(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.05, "k": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                p.sub_(group["lr"] / (1 + 0.1 * group["k"]) * p.grad)
                if not a.quiet:
                    p.add_(0.001 * torch.randn_like(p))


x = torch.randn(32, 5)
net = torch.nn.Linear(5, 1)
opt = Langevin(net.parameters())
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"]), torch.set_rng_state(s["rng"])
    step = s["step"]
    if a.bug:
        opt.param_groups[0]["k"] = 0
for epoch in range(step // 8, 4):
    order = torch.Generator().manual_seed(epoch)
    for number, batch in enumerate(
        torch.utils.data.DataLoader(x, 4, shuffle=True, generator=order)
    ):
        if epoch * 8 + number < step:
            continue
        loss = (net(batch) - batch[:, :1]).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
        step += 1
        if step % 5 == 0:
            torch.save(
                {
                    "net": net.state_dict(),
                    "opt": opt.state_dict(),
                    "rng": torch.get_rng_state(),
                    "step": step,
                },
                f"{file}.tmp",
            )
            Path(f"{file}.tmp").replace(file)
