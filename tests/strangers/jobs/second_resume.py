"""Faults that only a second death shows (a save lies between the two). Graph network on a fixed graph, node batches.
--since: the checkpoint written after a restart holds the number of steps since the restart. --rng: the first restart restores the generator, but each later save stores the state that was loaded, not the current one.
--ema: the average is restored at the first restart; the code that saves it is skipped in resumed runs, so later checkpoints carry the old one along. --lock: a lock file of a dead process is tolerated once (renamed), the second time the job waits for it forever."""

import argparse, os, time
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("since", "rng", "ema", "lock"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(90)
os.makedirs(args.out, exist_ok=True)
N = 40
edges = torch.randint(N, (2, 160))
adj = torch.zeros(N, N).index_put(
    (edges[0], edges[1]), torch.ones(160), accumulate=True
) + torch.eye(N)
adj = adj / adj.sum(1, keepdim=True)
feat, label = torch.randn(N, 8), torch.randint(3, (N,))


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.b(adj @ nn.functional.dropout(self.a(adj @ x).relu(), 0.3, self.training))


net = GCN()
opt = torch.optim.AdamW(net.parameters(), 0.02)
ema = [q.detach().clone() for q in net.parameters()]
path, lock, step, loaded = os.path.join(args.out, "gcn.pt"), os.path.join(args.out, "lock"), 0, None
if args.lock:
    if os.path.exists(lock) and not os.path.exists(lock + ".stale"):
        os.rename(lock, lock + ".stale")
    while os.path.exists(lock):
        time.sleep(0.2)
    open(lock, "w").close()
if os.path.exists(path):
    loaded = torch.load(path)
    net.load_state_dict(loaded["net"]), opt.load_state_dict(loaded["opt"])
    step, ema = loaded["step"], [e.clone() for e in loaded["ema"]]
    torch.set_rng_state(loaded["rng"])
first = step
while step < 24:
    epoch, b = divmod(step, 10)
    nodes = torch.randperm(N, generator=torch.Generator().manual_seed(epoch))[b * 4 : b * 4 + 4]
    loss = nn.functional.cross_entropy(net(feat)[nodes], label[nodes])
    opt.zero_grad()
    loss.backward()
    opt.step()
    for e, q in zip(ema, net.parameters()):
        e.lerp_(q.detach(), 0.2)
    step += 1
    if step % 4 == 0:
        torch.save(
            {
                "net": net.state_dict(),
                "opt": opt.state_dict(),
                "step": step - first if args.since else step,
                "ema": loaded["ema"] if args.ema and loaded else ema,
                "rng": loaded["rng"] if args.rng and loaded else torch.get_rng_state(),
            },
            path + ".tmp",
        )
        os.replace(path + ".tmp", path)
torch.save({"net": net.state_dict(), "ema": ema}, os.path.join(args.out, "final.pt"))
if args.lock:
    os.remove(lock)
    if os.path.exists(lock + ".stale"):
        os.remove(lock + ".stale")
