"""A language model on text that comes back exactly: a small GPT, documents packed into blocks, warm-up and decay, dropout, torch.save.

    ecrl audit -- python examples/jobs/gpt.py --out {dir}

The text is six of Shakespeare's sonnets (sonnets.txt, in the public domain), character by character.
"""

import math
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from options import parse
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

BUGS = {
    "stream from the start": "the step counter goes on, the text begins anew",
    "packing": "the position counts blocks where the stream counts documents",
    "buffer": "the characters that were left over from the last document are lost",
    "offset in each epoch": "the offset of the resume is applied in every later epoch too",
    "worker anew": "the stream is read one batch ahead when its position is saved",
    "warm-up again": "the schedule is computed from the steps since the restart",
    "weights only": "loading with the optimizer is the same as loading without",
    "untied": "the head comes back as a copy of the embedding and is trained apart from it",
    "evaluation": "an evaluation after the load draws from the restored generator",
}
BLOCK, BATCH, EPOCHS, WIDTH, HEADS, LAYERS, SAVE_EVERY, WARM_UP, SEED = 32, 8, 2, 32, 2, 2, 5, 6, 5


class Packed(IterableDataset):
    """Blocks of BLOCK + 1 characters, documents in an order drawn for each epoch; `state` says where the next block begins."""

    def __init__(self, documents, code):
        self.documents, self.code, self.bug = documents, code, ""
        self.epoch, self.document, self.left = 0, 0, []

    def __iter__(self):
        order = list(range(len(self.documents)))
        random.Random(f"{SEED}-{self.epoch}").shuffle(order)
        while True:
            while len(self.left) <= BLOCK and self.document < len(order):
                self.left += [self.code[c] for c in self.documents[order[self.document]] + "\n"]
                self.document += 1
            if len(self.left) <= BLOCK:
                break
            block = torch.tensor(self.left[: BLOCK + 1])
            self.left = self.left[BLOCK:]
            yield block
        self.epoch, self.document, self.left = self.epoch + 1, 0, []

    def state(self):
        return {"epoch": self.epoch, "document": self.document, "left": list(self.left)}

    def load(self, state):
        self.epoch, self.document, self.left = state["epoch"], state["document"], list(state["left"])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + F.dropout(self.out(mixed), 0.1, self.training)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.tokens, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.layers(x)))


def rate(step):
    return 0.003 * min(1.0, (step + 1) / WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * min(1.0, step / 30)))


def main():
    out, bug = parse(BUGS)
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    text = (Path(__file__).parent / "sonnets.txt").read_text()
    code = {character: number for number, character in enumerate(sorted(set(text)))}
    data = Packed(text.split("\n\n"), code)
    model = GPT(len(code))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    newest, step, since = Path(out) / "last.pt", 0, 0
    offset = 0
    if newest.exists():
        state = torch.load(newest, weights_only=True)
        model.load_state_dict(state["model"])
        step, where = state["step"], state["data"]
        if bug != "weights only":
            optimizer.load_state_dict(state["optimizer"])
        if bug == "untied":
            model.head.weight = nn.Parameter(model.tokens.weight.detach().clone())
            optimizer.add_param_group({"params": [model.head.weight]})
        if bug == "packing":
            where = {**where, "document": min(step * BATCH, len(data.documents) - 1) % len(data.documents), "left": []}
        if bug == "buffer":
            where["left"] = []
        if bug == "stream from the start":
            where = {"epoch": 0, "document": 0, "left": []}
        data.load(where)
        if bug == "worker anew":
            next(iter(data))
        offset = where["document"] if bug == "offset in each epoch" else 0
        torch.set_rng_state(state["generator"])
        if bug == "evaluation":
            model(torch.zeros(1, BLOCK, dtype=torch.long))
    # A generator of the loader's own: without it `iter(loader)` would draw from the one that has just been restored.
    loader = DataLoader(data, BATCH, drop_last=True, generator=torch.Generator())
    while data.epoch < EPOCHS:
        for blocks in loader:
            for group in optimizer.param_groups:
                group["lr"] = rate(since if bug == "warm-up again" else step)
            logits = model(blocks[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), blocks[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step, since = step + 1, since + 1
            if step % SAVE_EVERY == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": data.state(), "step": step}
                torch.save({**state, "generator": torch.get_rng_state()}, f"{newest}.tmp")
                Path(f"{newest}.tmp").replace(newest)
        data.document = offset


if __name__ == "__main__":
    main()
