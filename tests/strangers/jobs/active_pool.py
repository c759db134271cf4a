"""Active learning: every 6 steps the most uncertain pool items are labelled and join the training set; the model is trained on; labelled ids in labelled.csv and in the checkpoint.
--labelled: the labelled set at restart is the initial one. --score: acquisition uses a noise generator that starts over. --rows: labelled.csv gets the rounds that are done again twice."""

import argparse, csv, os
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("labelled", "score", "rows"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(91)
os.makedirs(args.out, exist_ok=True)
x = torch.randn(80, 5)
data = TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.Adam(net.parameters(), 0.01)
noise, ids, step, path, table = (
    torch.Generator().manual_seed(1),
    list(range(12)),
    0,
    os.path.join(args.out, "state.pt"),
    os.path.join(args.out, "labelled.csv"),
)
if os.path.exists(path):
    s = torch.load(path)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step = s["step"]
    if not args.labelled:
        ids = s["ids"]
    if not args.score:
        noise.set_state(s["noise"])
    if not args.rows and os.path.exists(table):
        rows = [r for r in csv.reader(open(table)) if int(r[0]) < step]
        with open(table + ".tmp", "w", newline="") as f:
            csv.writer(f).writerows(rows)
        os.replace(table + ".tmp", table)
while step < 24:
    if step and step % 6 == 0:
        with torch.no_grad():
            rest = [i for i in range(80) if i not in ids]
            score = net(x[rest]).softmax(1).amax(1) + 0.05 * torch.rand(len(rest), generator=noise)
        new = [rest[k] for k in score.argsort()[:6].tolist()]
        ids = ids + new
        with open(table, "a", newline="") as f:
            csv.writer(f).writerow([step, *new])
    loader = DataLoader(
        Subset(data, ids), 4, shuffle=True, generator=torch.Generator().manual_seed(step // 3)
    )
    for k, (bx, by) in enumerate(loader):
        if k < step % 3:
            continue
        loss = nn.functional.cross_entropy(net(bx), by)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 4 == 0:
            torch.save(
                {
                    "net": net.state_dict(),
                    "opt": opt.state_dict(),
                    "ids": ids,
                    "noise": noise.get_state(),
                    "step": step,
                },
                path + ".tmp",
            )
            os.replace(path + ".tmp", path)
        if step % 3 == 0:
            break
