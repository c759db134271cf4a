"""One loop, fed by a library for data that comes as a stream, with the state that the library's
documentation saves: `--data datasets|litdata|webdataset|grain`. Generators and model are saved
beside it in one file."""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SAMPLES, BATCH, EPOCHS = 48, 4, 3
parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
parser.add_argument("--data", required=True)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
shared = options.out.parent / "data"  # made once, outside of what is saved
torch.set_num_threads(1)
torch.manual_seed(5)
draw = np.random.default_rng(1)
rows = [
    {"x": draw.standard_normal(8, dtype=np.float32), "y": number % 3} for number in range(SAMPLES)
]


class Datasets:
    """`IterableDataset.state_dict`, `set_epoch` before each epoch. The order is that of the shards:
    the shuffle buffer is in no state."""

    def __init__(self):
        from datasets import Dataset

        table = Dataset.from_list([{"x": row["x"].tolist(), "y": row["y"]} for row in rows])
        self.batches = table.to_iterable_dataset(num_shards=6).batch(BATCH)

    def epoch(self, number):
        self.batches.set_epoch(number)
        for batch in self.batches:
            yield torch.tensor(batch["x"]), torch.tensor(batch["y"])

    def state_dict(self):
        return self.batches.state_dict()

    def load_state_dict(self, state):
        self.batches.load_state_dict(state)


class LitData:
    """`StreamingDataLoader.state_dict`, no workers; a generator of its own, since a loader draws a seed
    for its workers whenever it begins."""

    def __init__(self):
        import litdata

        folder = shared / "litdata"
        if not (folder / "index.json").exists():
            from litdata.streaming.writer import BinaryWriter

            folder.mkdir(parents=True, exist_ok=True)
            writer = BinaryWriter(str(folder), chunk_size=8)
            for number, row in enumerate(rows):
                writer.add_item(number, {"x": torch.from_numpy(row["x"]), "y": row["y"]})
            writer.done()
            writer.merge()
        data = litdata.StreamingDataset(str(folder), shuffle=True, seed=5)
        self.loader = litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=0, generator=torch.Generator())

    def epoch(self, number):
        for batch in self.loader:
            yield batch["x"], batch["y"]

    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)


class WebDataset:
    """It has no state: the order is that of the shards, and what is done is counted and skipped."""

    def __init__(self):
        import webdataset

        folder = shared / "webdataset"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "rows.tar"
        if not path.exists():
            with webdataset.TarWriter(str(path) + ".part") as writer:
                for number, row in enumerate(rows):
                    values = row["x"].tolist()
                    writer.write({"__key__": f"{number:04d}", "x.json": values, "y.cls": row["y"]})
            os.replace(f"{path}.part", path)
        self.data = (
            webdataset.WebDataset(str(path), shardshuffle=False)
            .decode()
            .to_tuple("x.json", "y.cls")
            .batched(BATCH)
        )
        self.done = 0

    def epoch(self, number):
        skip, self.done = self.done, 0
        for x, y in self.data:
            self.done += 1
            if self.done > skip:
                yield torch.as_tensor(np.asarray(x), dtype=torch.float32), torch.as_tensor(y)
        self.done = 0

    def state_dict(self):
        return {"done": self.done % (SAMPLES // BATCH)}

    def load_state_dict(self, state):
        self.done = state["done"]


class Grain:
    """`get_state` and `set_state` of the iterator of a MapDataset that is shuffled and repeated."""

    def __init__(self):
        import grain

        data = grain.MapDataset.source(rows).seed(5).shuffle().repeat(EPOCHS)
        self.iterator = iter(data.to_iter_dataset().batch(BATCH))

    def epoch(self, number):
        for batch in self.iterator:
            yield torch.from_numpy(batch["x"]), torch.as_tensor(batch["y"])

    def state_dict(self):
        return self.iterator.get_state()

    def load_state_dict(self, state):
        self.iterator.set_state(state)


KINDS = {"datasets": Datasets, "litdata": LitData, "webdataset": WebDataset, "grain": Grain}
source = KINDS[options.data]()
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
last, step = options.out / "last.pt", 0
if last.exists():
    state = torch.load(last, weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    source.load_state_dict(json.loads(state["data"]))
    step = state["step"]
    torch.set_rng_state(state["generator"])
for epoch in range(step * BATCH // SAMPLES, EPOCHS):
    for x, y in source.epoch(epoch):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        if step % 5 == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "data": json.dumps(source.state_dict()),
                "generator": torch.get_rng_state(),
                "step": step,
            }
            torch.save(state, f"{last}.part")
            os.replace(f"{last}.part", last)
