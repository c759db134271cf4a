"""Two loader workers. `--bug`: they draw the augmentation from their own generators, which a resumed mid-epoch
iterator starts anew; without it noise depends on epoch and index."""

import argparse
from pathlib import Path

import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)


class Points(torch.utils.data.Dataset):
    x, epoch = torch.randn(32, 5), 0

    def __len__(self):
        return 32

    def __getitem__(self, index):
        own = None if a.bug else torch.Generator().manual_seed(self.epoch * 1000 + index)
        return self.x[index] + 0.1 * torch.randn(5, generator=own)


class Rest(torch.utils.data.Sampler):
    """The epoch's batches that are still to come."""

    def __init__(self, epoch, done):
        self.rest = torch.randperm(32, generator=torch.Generator().manual_seed(epoch)).tolist()[
            done * 4 :
        ]

    def __iter__(self):
        return iter(self.rest)

    def __len__(self):
        return len(self.rest)


data, net = Points(), torch.nn.Linear(5, 1)
opt = torch.optim.AdamW(net.parameters(), 0.02)
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step = s["step"]
for data.epoch in range(step // 8, 3):
    seeds = torch.Generator().manual_seed(data.epoch)
    for batch in torch.utils.data.DataLoader(
        data, 4, sampler=Rest(data.epoch, step - data.epoch * 8), num_workers=2, generator=seeds
    ):
        loss = (net(batch) - batch[:, :1]).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
        step += 1
        if step % 3 == 0:
            torch.save(
                {"net": net.state_dict(), "opt": opt.state_dict(), "step": step}, f"{file}.tmp"
            )
            Path(f"{file}.tmp").replace(file)
