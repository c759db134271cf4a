"""torchdata's StatefulDataLoader with a generator of its own and no workers: its state brings back the place and the
order of the epoch that is under way, and loses what the generator drew in between: the next epoch is shuffled
otherwise. `--bug`: the job trusts it. Without it the generator is seeded for each epoch."""

import argparse
from pathlib import Path

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
data = torch.utils.data.TensorDataset(torch.randn(32, 5))
own = torch.Generator().manual_seed(7)
loader = StatefulDataLoader(data, 4, shuffle=True, generator=own, num_workers=0)
net = torch.nn.Linear(5, 1)
opt = torch.optim.AdamW(net.parameters(), 0.02)
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file, weights_only=False)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    loader.load_state_dict(s["loader"])
    step = s["step"]
while step < 24:
    if not a.bug:
        own.manual_seed(step // 8)
    for (batch,) in loader:
        loss = (net(batch) - batch[:, :1]).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
        step += 1
        if step % 3 == 0:
            state = {
                "net": net.state_dict(),
                "opt": opt.state_dict(),
                "loader": loader.state_dict(),
                "step": step,
            }
            torch.save(state, f"{file}.tmp")
            Path(f"{file}.tmp").replace(file)
