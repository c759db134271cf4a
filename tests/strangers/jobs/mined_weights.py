"""Samples are drawn by weights that follow from their losses. `--bug`: numpy's generator, of the augmentation, is lost:
later samples are others only because the losses are."""

import argparse
import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

a = argparse.ArgumentParser()
a.add_argument("--out")
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
np.random.seed(8)
torch.manual_seed(8)
os.makedirs(a.out, exist_ok=True)


class Signals(Dataset):
    x = np.random.RandomState(0).randn(120, 8).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        return place, torch.from_numpy(self.x[place] * np.float32(np.random.uniform(0.8, 1.2)))


weights, gen = torch.ones(120, dtype=torch.double), torch.Generator().manual_seed(3)
sampler = WeightedRandomSampler(weights, 48, generator=gen)
net = torch.nn.Linear(8, 1)
opt = torch.optim.Adafactor(net.parameters(), lr=0.05)
epoch, path = 0, os.path.join(a.out, "last.pt")
if os.path.exists(path):
    state = torch.load(path, weights_only=False)
    net.load_state_dict(state["net"]), opt.load_state_dict(state["opt"])
    weights.copy_(state["weights"]), gen.set_state(state["gen"])
    torch.set_rng_state(state["rng"])
    epoch = state["epoch"]
    if not a.bug:
        np.random.set_state(state["numpy"])
while epoch < 5:
    for places, batch in DataLoader(Signals(), batch_size=8, sampler=sampler):
        losses = (net(batch) - batch[:, :1].abs()).square()[:, 0]
        opt.zero_grad(), losses.mean().backward(), opt.step()
        weights[places] = losses.detach().double() * 5 + 0.01
    epoch += 1
    state = {"net": net.state_dict(), "opt": opt.state_dict(), "weights": weights, "epoch": epoch}
    state |= {"gen": gen.get_state(), "rng": torch.get_rng_state(), "numpy": np.random.get_state()}
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)
