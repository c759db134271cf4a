"""Texts cut into blocks behind the DataLoader, several batches for one block, with --thread in a
thread that reads ahead; a csv with a row for each update, opened once and flushed."""

import argparse
import os
import queue
import threading
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

TEXTS, BLOCK, STEPS, EVERY = 48, 64, 24, 4
parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
parser.add_argument("--thread", action="store_true")
parser.add_argument("--bug", choices=("rest", "log"))
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)
torch.manual_seed(5)
draw = torch.Generator().manual_seed(1)
texts = [torch.randint(1, 30, (5 + number % 7,), generator=draw) for number in range(TEXTS)]


def blocks(epoch, used, rest):
    """Each block with where the next one begins: epoch, texts used, what is left of them."""
    while True:
        order = torch.randperm(TEXTS, generator=torch.Generator().manual_seed(epoch)).tolist()
        loader = DataLoader(
            texts, 4, sampler=order[used:], collate_fn=list, generator=torch.Generator()
        )
        for batch in loader:
            used += len(batch)
            rest = torch.cat([rest, *batch])
            while len(rest) >= BLOCK:
                block, rest = rest[:BLOCK].view(4, -1), rest[BLOCK:].clone()
                yield block, (epoch, used, rest)
        epoch, used = epoch + 1, 0


def ahead(source):
    waiting = queue.Queue(3)

    def read():
        for item in source:
            waiting.put(item)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield waiting.get()


model = nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 30))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
last, log, step = options.out / "last.pt", options.out / "log.csv", 0
place, rows = (0, 0, torch.empty(0, dtype=torch.long)), []
if last.exists():
    state = torch.load(last)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step, place, rows = (
        state["step"],
        state["place"],
        log.read_text().splitlines()[1 : 1 + state["step"]],
    )
    if options.bug == "rest":
        place = (*place[:2], place[2][:0])
if options.bug == "log":
    rows = []
new = log.with_suffix(".new")
new.write_text("".join(f"{row}\n" for row in ["update,epoch,loss", *rows]))
os.replace(new, log)
source = blocks(*place)
with log.open("a", buffering=1) as file:
    for block, place in ahead(source) if options.thread else source:
        if step == STEPS:
            break
        loss = F.cross_entropy(model(block[:, :-1]).flatten(0, 1), block[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        file.write(f"{step},{place[0]},{loss.item():.6f}\n")
        if step % EVERY == 0:
            whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(whole | {"step": step, "place": place}, last.with_suffix(".new"))
            os.replace(last.with_suffix(".new"), last)
os._exit(0) if options.thread else None
