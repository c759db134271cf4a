"""MosaicML Streaming: shards written once, read in a shuffled order, a loader with a state. It comes back exactly.

ecrl audit -- python examples/jobs/streaming_job.py --out {dir}
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from options import parse
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch import nn

BUGS = {
    "position": "the loader's state is not loaded: it starts at sample 0",
    "epoch": "the sample in the epoch comes back, the epoch does not",
    "batches for samples": "the position counts batches where samples are due",
    "one epoch too many": "the epochs are counted from one too early",
}
SAMPLES, BATCH, EPOCHS, SAVE_EVERY, SEED = 48, 4, 3, 5, 9


def write(folder):
    """The data, written whole or not at all: a restart in between writes them again."""
    if (folder / "index.json").exists():
        return
    generator = np.random.default_rng(1)
    with MDSWriter(out=str(folder), columns={"x": "ndarray:float32:8", "y": "int"}, size_limit=1024, exist_ok=True) as shards:
        for number in range(SAMPLES):
            shards.write({"x": generator.standard_normal(8, dtype=np.float32), "y": number % 3})


def main():
    out, bug = parse(BUGS)
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    write(Path(out) / "data")
    clean_stale_shared_memory()  # a killed job leaves it
    newest = Path(out) / "last.pt"
    state = torch.load(newest, weights_only=False) if newest.exists() else None
    data = StreamingDataset(local=str(Path(out) / "data"), shuffle=True, shuffle_seed=SEED, batch_size=BATCH, num_canonical_nodes=1)
    loader = StreamingDataLoader(data, batch_size=BATCH, generator=torch.Generator())
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = first = 0
    if state:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["generator"])
        step, first, position = state["step"], state["epoch"], state["loader"]
        if bug == "epoch":
            position["epoch"] = 0
        if bug == "batches for samples":
            position["sample_in_epoch"] //= BATCH
        if bug != "position":
            loader.load_state_dict(position)
    for epoch in range(first - (1 if state and bug == "one epoch too many" else 0), EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
            step += 1
            if step % SAVE_EVERY == 0:
                held = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict(), "epoch": epoch, "step": step}
                torch.save({**held, "generator": torch.get_rng_state()}, f"{newest}.new")
                Path(f"{newest}.new").replace(newest)


if __name__ == "__main__":
    main()
