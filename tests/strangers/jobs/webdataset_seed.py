"""webdataset 1.0.2: a seed given to WebDataset does not reach `.shuffle()`, which draws from the process number and the
clock. Default: the seed goes there, and the job cannot be judged. `--seeded`: `.shuffle(n, seed=...)`, at the price of
one order for all epochs. `--bug` (with it): a resumed epoch begins anew."""

import argparse
import io
import tarfile
from pathlib import Path

import torch
import webdataset

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a.add_argument("--seeded", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
a.out.mkdir(parents=True, exist_ok=True)
shard = a.out / "data.tar"
if not shard.exists():
    with tarfile.open(f"{shard}.tmp", "w") as tar:
        for number in range(32):
            entry = tarfile.TarInfo(f"{number:03d}.txt")
            entry.size = 3
            tar.addfile(entry, io.BytesIO(b"%3d" % number))
    Path(f"{shard}.tmp").replace(shard)
stream = webdataset.WebDataset(str(shard), shardshuffle=False, seed=3)
stream = stream.shuffle(16, seed=3) if a.seeded else stream.shuffle(16)
stream = stream.map(lambda sample: torch.tensor([float(sample["txt"]), 1.0]))
net = torch.nn.Linear(2, 1)
opt = torch.optim.AdamW(net.parameters(), 0.02)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step = s["step"]
for epoch in range(step // 8, 3):
    done = 0 if a.bug else max(0, step - epoch * 8)
    loader = torch.utils.data.DataLoader(stream, 4, generator=torch.Generator())
    for number, batch in enumerate(loader):
        if number < done:
            continue
        loss = net(batch / 30).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
        step += 1
        if step % 3 == 0:
            torch.save(
                {"net": net.state_dict(), "opt": opt.state_dict(), "step": step}, f"{file}.tmp"
            )
            Path(f"{file}.tmp").replace(file)
