"""DCP with a file for each tensor. Default: each checkpoint in a folder of its own, the newest with metadata is loaded.
--bug: always the same folder. Data files are written in place and `.metadata` is still the older one while they are: after a
death in between, loading gives a mixture of two saves and no error."""

import argparse, logging, warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
torch.set_num_threads(1)
torch.manual_seed(6)
data = torch.randn(32, 5)
net = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
opt = torch.optim.SGD(net.parameters(), 0.05)
whole = sorted(f.parent for f in a.out.glob("*/.metadata"))
step = torch.zeros((), dtype=torch.int64)
if whole:
    state = {**net.state_dict(), "step": step}
    dcp.load(state, checkpoint_id=str(whole[-1]), no_dist=True)
    net.load_state_dict({key: value for key, value in state.items() if key != "step"})
for number in range(int(step), 24):
    order = torch.randperm(32, generator=torch.Generator().manual_seed(number // 8))
    batch = data[order[number % 8 * 4 :][:4]]
    opt.zero_grad()
    (net(batch) - batch[:, :1]).square().mean().backward()
    opt.step()
    if (number + 1) % 3 == 0:
        folder = a.out / ("latest" if a.bug else f"{number + 1:03d}")
        state = {**net.state_dict(), "step": torch.tensor(number + 1)}
        writer = dcp.FileSystemWriter(str(folder), single_file_per_rank=False)
        dcp.save(state, storage_writer=writer, no_dist=True)
