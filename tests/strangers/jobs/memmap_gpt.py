"""Small GPT with tied input and output embeddings; batches drawn by get_batch from a memory-mapped token file with numpy's global generator; cosine schedule computed by hand; best validation loss.
--numpy: numpy's generator is not restored. --untied: after loading, the output layer is a copy of the embedding and no longer the same tensor. --best: the best validation loss is forgotten (best.pt is overwritten)."""

import argparse, math, os
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("numpy", "untied", "best"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
np.random.seed(1337)
torch.manual_seed(1337)
os.makedirs(args.out, exist_ok=True)
data_file = os.path.join(args.out, "train.bin")
if not os.path.exists(data_file):
    (np.random.RandomState(0).randint(0, 24, 2000) % 17).astype("uint16").tofile(data_file + ".tmp")
    os.replace(data_file + ".tmp", data_file)
T, C, V = 16, 16, 24


def get_batch(n=4, gen=np.random):
    data = np.memmap(data_file, dtype=np.uint16, mode="r")
    ix = gen.randint(0, len(data) - T, n)
    x = torch.stack([torch.from_numpy(data[i : i + T].astype("int64")) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + T + 1].astype("int64")) for i in ix])
    return x, y


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe, self.ln, self.qkv, self.proj = (
            nn.Embedding(V, C),
            nn.Embedding(T, C),
            nn.LayerNorm(C),
            nn.Linear(C, 3 * C),
            nn.Linear(C, C),
        )
        self.head = nn.Linear(C, V, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, i, y):
        x = self.wte(i) + self.wpe.weight
        q, k, v = self.qkv(self.ln(x)).chunk(3, -1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return F.cross_entropy(self.head(x).view(-1, V), y.view(-1))


model = GPT()
ck_file, it, best = os.path.join(args.out, "ckpt.pt"), 0, 1e9
ck = torch.load(ck_file, weights_only=False) if os.path.exists(ck_file) else None
if ck:
    model.load_state_dict(ck["model"])
    if args.untied:
        model.head.weight = nn.Parameter(model.wte.weight.detach().clone())
    it, best = ck["it"], 1e9 if args.best else ck["best"]
decay = [q for q in model.parameters() if q.dim() > 1]
opt = torch.optim.AdamW(
    [
        {"params": decay, "weight_decay": 0.1},
        {"params": [q for q in model.parameters() if q.dim() < 2], "weight_decay": 0.0},
    ],
    betas=(0.9, 0.95),
)
if ck:
    if not args.untied:
        opt.load_state_dict(ck["opt"])
    else:  # one tensor more: load what fits
        opt.state.update(
            {
                q: s
                for q, s in zip([q for q in decay], ck["opt"]["state"].values())
                if s["exp_avg"].shape == q.shape
            }
        )
    if not args.numpy:
        np.random.set_state(ck["np"])
while it < 24:
    lr = (
        2e-2 * (it + 1) / 6
        if it < 6
        else 2e-3 + 0.5 * 1.8e-2 * (1 + math.cos(math.pi * (it - 6) / 18))
    )
    for g in opt.param_groups:
        g["lr"] = lr
    x, y = get_batch()
    loss = model(x, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    it += 1
    if it % 4 == 0:
        with torch.no_grad():
            val = model(*get_batch(16, np.random.RandomState(5))).item() + (
                5 if it > 12 else 0
            )  # overfits from here on
        if val < best:
            best = val
            torch.save(model.state_dict(), os.path.join(args.out, "best.pt"))
        torch.save(
            {
                "model": model.state_dict(),
                "opt": opt.state_dict(),
                "it": it,
                "best": best,
                "np": np.random.get_state(),
            },
            ck_file + ".tmp",
        )
        os.replace(ck_file + ".tmp", ck_file)
