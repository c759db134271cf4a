"""An equation's residual at points that each epoch draws anew and whose gradient is asked for; Adam, then SGD.
`--bug`: the points of the epoch under way are not saved, a restart draws others."""

import sys
from pathlib import Path

import torch

file = Path(sys.argv[1]) / "last.pt"
file.parent.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)
torch.manual_seed(2)
net = torch.nn.Sequential(torch.nn.Linear(1, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
opts = [torch.optim.Adam(net.parameters(), 1e-2), torch.optim.SGD(net.parameters(), 1e-3)]
edge, step, points = torch.tensor([[0.0], [1.0]]), 0, None
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"])
    for opt, state in zip(opts, s["opts"]):
        opt.load_state_dict(state)
    step = s["step"]
    points = torch.rand(8, 1) if "--bug" in sys.argv else s["points"]
    torch.set_rng_state(s["rng"])
while step < 24:
    if step % 8 == 0:
        points = torch.rand(8, 1)
    at = points.clone().requires_grad_()
    u = net(at)
    (slope,) = torch.autograd.grad(u.sum(), at, create_graph=True)
    opt = opts[step >= 16]
    opt.zero_grad()
    ((slope + u).square().mean() + (net(edge) - 1).square().mean()).backward()
    opt.step()
    step += 1
    if step % 5 == 0:
        state = {"net": net.state_dict(), "opts": [opt.state_dict() for opt in opts]}
        state |= {"step": step, "points": points, "rng": torch.get_rng_state()}
        torch.save(state, f"{file}.tmp")
        Path(f"{file}.tmp").replace(file)
