"""One loop with the optimizer of a library: `--optimizer muon|torchao|bitsandbytes|schedulefree|
prodigy|lion|lookahead`. Model and optimizers are saved by their `state_dict` in the middle of an
epoch; a schedule-free one in evaluation mode, as its documentation says."""

import argparse
import os
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--optimizer", required=True)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
weights = [p for p in model.parameters() if p.ndim == 2]
biases = [p for p in model.parameters() if p.ndim < 2]


def made(kind):
    if kind == "muon":
        return [torch.optim.Muon(weights, lr=0.01), torch.optim.AdamW(biases, lr=0.01)]
    if kind == "torchao":
        import torchao.optim

        return [torchao.optim.AdamW8bit(model.parameters(), lr=0.01)]
    if kind == "bitsandbytes":
        import bitsandbytes

        return [bitsandbytes.optim.AdamW8bit(model.parameters(), lr=0.01, min_8bit_size=64)]
    if kind == "schedulefree":
        import schedulefree

        return [schedulefree.AdamWScheduleFree(model.parameters(), lr=0.01)]
    if kind == "prodigy":
        import prodigyopt

        return [prodigyopt.Prodigy(model.parameters())]
    if kind == "lion":
        import lion_pytorch

        return [lion_pytorch.Lion(model.parameters(), lr=0.001)]
    import timm.optim

    return [timm.optim.create_optimizer_v2(model, opt="lookahead_adamw", lr=0.01)]


def mode(name):
    for optimizer in optimizers:
        if hasattr(optimizer, name):
            getattr(optimizer, name)()


optimizers = made(options.optimizer)
data = torch.randn(48, 64, generator=torch.Generator().manual_seed(1))
done, path = 0, options.out / "last.pt"
if path.exists():
    saved = torch.load(path, weights_only=False)
    done = saved["done"]
    model.load_state_dict(saved["model"])
    for optimizer, state in zip(optimizers, saved["optimizers"]):
        optimizer.load_state_dict(state)
mode("train")
for epoch in range(done // 12, 3):
    order = torch.randperm(48, generator=torch.Generator().manual_seed(epoch)).tolist()
    loader = torch.utils.data.DataLoader(data, 4, sampler=order[(done - epoch * 12) * 4 :])
    for batch in loader:
        loss = (model(batch) - batch).pow(2).mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        done += 1
        if done % 5 == 0:
            mode("eval")
            states = [optimizer.state_dict() for optimizer in optimizers]
            torch.save(
                {"done": done, "model": model.state_dict(), "optimizers": states}, f"{path}.part"
            )
            os.replace(f"{path}.part", path)
            mode("train")
