"""An optimizer with two sets of weights (schedulefree). `--bug`: the model is saved in one mode, the optimizer's
state in the other. Without it: its README's recipe, eval(), save both, train()."""

import argparse
from pathlib import Path

import schedulefree
import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
x = torch.randn(32, 5)
net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = schedulefree.AdamWScheduleFree(net.parameters(), lr=0.02, warmup_steps=4)
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file, weights_only=False)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step = s["step"]
opt.train()
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
            opt.eval()
            weights = {name: value.clone() for name, value in net.state_dict().items()}
            state = opt.state_dict() if not a.bug else None
            state = (
                None
                if state is None
                else torch.utils._pytree.tree_map(
                    lambda v: v.clone() if isinstance(v, torch.Tensor) else v, state
                )
            )
            opt.train()
            torch.save(
                {"net": weights, "opt": state or opt.state_dict(), "step": step}, f"{file}.tmp"
            )
            Path(f"{file}.tmp").replace(file)
