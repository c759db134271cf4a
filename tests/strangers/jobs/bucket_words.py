"""Sentences of different length in buckets; Python's random module shuffles the buckets and the batches; padding collate; GRU classifier; Adagrad; a checkpoint per 4 steps as JSON with lists of numbers (exact: repr of float32 as float).
--random: Python's generator is not restored. --round: numbers are written with 6 digits."""

import argparse, json, os, random
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--random", action="store_true")
p.add_argument("--round", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(21)
random.seed(21)
os.makedirs(args.out, exist_ok=True)
make = random.Random(4)
sentences = [
    torch.tensor([make.randrange(1, 20) for _ in range(make.randrange(3, 15))]) for _ in range(40)
]
labels = torch.tensor([int(s.sum()) % 2 for s in sentences])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.g, self.o = (
            nn.Embedding(20, 8, padding_idx=0),
            nn.GRU(8, 8, batch_first=True),
            nn.Linear(8, 2),
        )

    def forward(self, x):
        return self.o(self.g(self.e(x))[0].mean(1))


def batches():
    ids = sorted(range(40), key=lambda i: len(sentences[i]))
    out = []
    for b in range(0, 40, 20):
        bucket = ids[b : b + 20]
        random.shuffle(bucket)
        out += [bucket[i : i + 4] for i in range(0, 20, 4)]
    random.shuffle(out)
    return out


def pack(t):
    return [round(v, 6) if args.round else v for v in t.flatten().tolist()]


net, path = Net(), os.path.join(args.out, "model.json")
opt = torch.optim.Adagrad(net.parameters(), 0.05)
step, epoch, queue = 0, 0, []
if os.path.exists(path):
    s = json.load(open(path))
    with torch.no_grad():
        for q, v, a in zip(net.parameters(), s["weights"], s["sums"]):
            q.copy_(torch.tensor(v).view_as(q))
            opt.state[q]["sum"].copy_(torch.tensor(a).view_as(q))
            opt.state[q]["step"].fill_(s["step"])
    step, epoch, queue = s["step"], s["epoch"], s["queue"]
    if not args.random:
        random.setstate((s["random"][0], tuple(s["random"][1]), s["random"][2]))
while epoch < 2 or queue:
    if not queue:
        queue = batches()
        epoch += 1
    ids = queue.pop(0)
    loss = nn.functional.cross_entropy(
        net(pad_sequence([sentences[i] for i in ids], batch_first=True)), labels[ids]
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    if step % 4 == 0:
        with open(path + ".tmp", "w") as f:
            json.dump(
                {
                    "step": step,
                    "epoch": epoch,
                    "queue": queue,
                    "random": random.getstate(),
                    "weights": [pack(q) for q in net.parameters()],
                    "sums": [pack(opt.state[q]["sum"]) for q in net.parameters()],
                },
                f,
            )
        os.replace(path + ".tmp", path)
