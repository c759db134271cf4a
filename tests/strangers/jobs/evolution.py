"""Evolution: no backward pass and no torch optimizer; the job reports its generations by `ecrl.session()`, and
keeps one .npz for every fifth. `--bug`: how far it mutates begins anew."""

import sys
from pathlib import Path

import numpy as np
import torch

import ecrl

out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)
x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
net, rec = torch.nn.Linear(4, 1), ecrl.session()
rec.watch(model=net)
theta, width, generation = np.zeros(5), 0.2, 0
for file in sorted(out.glob("gen-*.npz"))[-1:]:
    s = np.load(file)
    theta, generation = s["theta"], int(s["generation"])
    width = width if "--bug" in sys.argv else float(s["width"])


def score(vector):
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(torch.tensor(vector).float(), net.parameters())
        return -(net(x) - x[:, :1]).square().mean().item()


while generation < 24:
    noise = np.random.default_rng(generation).normal(size=(6, 5))
    gains = [score(theta + width * one) - score(theta - width * one) for one in noise]
    theta = theta + 0.1 * (np.array(gains)[:, None] * noise).mean(0) / width
    width *= 0.95
    generation += 1
    rec.step(generation, loss=-score(theta))
    if generation % 5 == 0:
        with open(out / "part", "wb") as part:
            np.savez(part, theta=theta, width=width, generation=generation)
        (out / "part").replace(out / f"gen-{generation:03d}.npz")
np.save(out / "policy.npy", theta)
