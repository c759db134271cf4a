"""Three ranks: rank 0 holds parameters and the optimizer (server), ranks 1 and 2 compute gradients on streams of their own (private generators) and send them; only rank 0 has an optimizer. Each worker saves its stream.
--stream: workers' streams start over. --stale: workers keep the parameters they were initialised with until the second step after a restart (the first broadcast is skipped)."""

import argparse, os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--stream", action="store_true")
p.add_argument("--stale", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(20)
os.makedirs(args.out, exist_ok=True)
net = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 1))
stream = torch.Generator().manual_seed(rank)
opt = torch.optim.Adam(net.parameters(), 0.02) if rank == 0 else None
done, step = os.path.join(args.out, "newest"), 0
if os.path.exists(done):
    step = int(open(done).read())
    s = torch.load(os.path.join(args.out, f"{step}.rank{rank}"))
    if opt:
        net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    elif not args.stream:
        stream.set_state(s["stream"])
resumed = step
while step < 20:
    flat = parameters_to_vector(net.parameters()).detach()
    dist.broadcast(flat, 0)
    if not (args.stale and resumed and step == resumed):
        vector_to_parameters(flat, net.parameters())
    grad = torch.zeros_like(flat)
    if rank:
        x = torch.randn(8, 5, generator=stream)
        net.zero_grad()
        loss = (net(x) - x.sin().sum(1, keepdim=True)).square().mean()
        loss.backward()
        grad = parameters_to_vector([q.grad for q in net.parameters()])
    dist.reduce(grad, 0)
    if opt:
        opt.zero_grad()
        at = 0
        for q in net.parameters():
            q.grad = grad[at : at + q.numel()].view_as(q) / 2
            at += q.numel()
        opt.step()
    step += 1
    if step % 4 == 0:
        what = (
            {"net": net.state_dict(), "opt": opt.state_dict()}
            if opt
            else {"stream": stream.get_state()}
        )
        torch.save(what, os.path.join(args.out, f"{step}.rank{rank}"))
        dist.barrier()
        if rank == 0:
            with open(done + ".tmp", "w") as f:
                f.write(str(step))
            os.replace(done + ".tmp", done)
        dist.barrier()
dist.barrier()
dist.destroy_process_group()
