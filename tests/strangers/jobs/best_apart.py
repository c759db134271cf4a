"""best.pt is saved before the first last.pt, and at other steps: it is no checkpoint to go on from. `--bug`: the
best value is forgotten after a restart. `--in-place`: last.pt is overwritten where it lies."""

import argparse
from pathlib import Path

import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a.add_argument("--in-place", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(4)
data = torch.randn(120, 6)
net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
a.out.mkdir(parents=True, exist_ok=True)
step, best, file = 0, float("inf"), a.out / "last.pt"


def save(state, path, whole=True):
    if whole:
        torch.save(state, f"{path}.tmp")
        Path(f"{path}.tmp").replace(path)
    else:
        torch.save(state, path)


if file.exists():
    state = torch.load(file)
    net.load_state_dict(state["net"]), opt.load_state_dict(state["opt"])
    torch.set_rng_state(state["rng"])
    step, best = state["step"], best if a.bug else state["best"]
while step < 22:
    batch = data[torch.randint(120, (8,))]
    loss = (net(batch) - batch.sum(1, keepdim=True)).square().mean()
    opt.zero_grad(), loss.backward(), opt.step()
    step += 1
    if step % 3 == 0:
        score = float(abs(step - 9))  # of an evaluation: that of step 9 is the best
        if score < best:
            best = score
            save(net.state_dict(), a.out / "best.pt")
    if step % 4 == 0:
        state = {"net": net.state_dict(), "opt": opt.state_dict(), "step": step, "best": best}
        save(state | {"rng": torch.get_rng_state()}, file, whole=not a.in_place)
