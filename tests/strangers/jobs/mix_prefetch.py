"""Two data sources mixed by a weighted draw (numpy), a thread that prepares batches ahead through a queue; the state that belongs to each batch travels with it and is what a save takes. Curriculum: sequences grow at steps 8 and 16.
--producer: saves the producer's newest state instead of the consumer's. --source: the second source starts at its beginning. --draw: the weighted draw starts over. --stage: the curriculum starts over (its stage is counted in steps since the start of the process)."""

import argparse, os, queue, threading
import numpy as np
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("producer", "source", "draw", "stage"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(25)
os.makedirs(args.out, exist_ok=True)
sources = [
    torch.randn(30, 12, generator=torch.Generator().manual_seed(1)),
    torch.randn(20, 12, generator=torch.Generator().manual_seed(2)) + 2,
]


class Mixer:
    def __init__(self):
        self.rng, self.at = np.random.default_rng(3), [0, 0]

    def state(self):
        return {"rng": self.rng.bit_generator.state, "at": list(self.at)}

    def next(self):
        rows = []
        for _ in range(4):
            k = int(self.rng.random() < 0.3)
            rows.append(sources[k][self.at[k] % len(sources[k])])
            self.at[k] += 1
        return torch.stack(rows)


net = nn.GRU(1, 10, batch_first=True)
head = nn.Linear(10, 1)
opt = torch.optim.RAdam([*net.parameters(), *head.parameters()], 0.01)
mixer, step, path, begun = Mixer(), 0, os.path.join(args.out, "mix.pt"), 0
if os.path.exists(path):
    s = torch.load(path, weights_only=False)
    net.load_state_dict(s["net"]), head.load_state_dict(s["head"]), opt.load_state_dict(s["opt"])
    step = s["step"]
    begun = step if args.stage else 0
    mixer.at = list(s["data"]["at"])
    if args.source:
        mixer.at[1] = 0
    if not args.draw:
        mixer.rng.bit_generator.state = s["data"]["rng"]
ready = queue.Queue(maxsize=3)


def produce(n):
    for _ in range(n):
        batch = mixer.next()
        ready.put((batch, mixer.state()))


producer = threading.Thread(target=produce, args=(24 - step,), daemon=True)
producer.start()
while step < 24:
    batch, state = ready.get()
    n = 4 + 4 * min(2, (step - begun) // 8)
    seq = batch[:, :n, None]
    loss = (head(net(seq[:, :-1])[0]) - seq[:, 1:]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    if step % 5 == 0 or step == 24:
        if args.producer:
            while ready.qsize() < 3 and producer.is_alive():
                threading.Event().wait(0.002)
            state = mixer.state()
        torch.save(
            {
                "net": net.state_dict(),
                "head": head.state_dict(),
                "opt": opt.state_dict(),
                "step": step,
                "data": state,
            },
            path + ".tmp",
        )
        os.replace(path + ".tmp", path)
