"""NAdam on float64 parameters, model and optimizer saved as their documentation has it. torch 2.14.1 casts
`mu_product`, kept in float32, to the parameter's dtype when it is loaded: the next product is another one.
Default: each `mu_product` is cast back after the load. --bug: not."""

import argparse, os

import torch

a = argparse.ArgumentParser()
a.add_argument("--out")
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(3)
data = torch.randn(24, 5, dtype=torch.float64)
net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
opt = torch.optim.NAdam(net.parameters(), lr=0.01)
os.makedirs(a.out, exist_ok=True)
file, begun = os.path.join(a.out, "last.pt"), 0
if os.path.exists(file):
    begun, weights, moments = torch.load(file)
    net.load_state_dict(weights), opt.load_state_dict(moments)
    if not a.bug:
        for entry in opt.state.values():
            entry["mu_product"] = entry["mu_product"].float()
for step in range(begun, 24):
    order = torch.randperm(24, generator=torch.Generator().manual_seed(step // 6))
    batch = data[order[step % 6 * 4 :][:4]]
    opt.zero_grad()
    (net(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
    opt.step()
    if (step + 1) % 3 == 0:
        torch.save((step + 1, net.state_dict(), opt.state_dict()), file + ".tmp")
        os.replace(file + ".tmp", file)
