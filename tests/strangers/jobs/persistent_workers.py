"""Checkpoints at the end of an epoch, every generator restored. `--bug`: persistent workers, a common setting: they draw
their seed once, a restarted job draws one anew, and the next epoch has another order and other noise. Without it
workers are made for each epoch."""

import argparse
from pathlib import Path

import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()


class Points(torch.utils.data.Dataset):
    x = torch.randn(32, 5, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(5)


torch.set_num_threads(1)
torch.manual_seed(5)
loader = torch.utils.data.DataLoader(
    Points(), 4, shuffle=True, num_workers=1, persistent_workers=a.bug
)
net = torch.nn.Linear(5, 1)
opt = torch.optim.AdamW(net.parameters(), 0.02)
a.out.mkdir(parents=True, exist_ok=True)
epoch, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"]), torch.set_rng_state(s["rng"])
    epoch = s["epoch"]
for epoch in range(epoch, 3):
    for batch in loader:
        loss = (net(batch) - batch[:, :1]).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
    state = {
        "net": net.state_dict(),
        "opt": opt.state_dict(),
        "rng": torch.get_rng_state(),
        "epoch": epoch + 1,
    }
    torch.save(state, f"{file}.tmp")
    Path(f"{file}.tmp").replace(file)
