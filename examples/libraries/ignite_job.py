"""PyTorch-Ignite as its guide to resuming has it: `Checkpoint` of trainer, model, optimizer after
each epoch, `Checkpoint.load_objects`, the seed set by the epoch's number when it starts."""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from ignite.utils import manual_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
points = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(48, 8, generator=points), torch.arange(48) % 3)
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def update(engine, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


trainer = Engine(update)
objects = {"trainer": trainer, "model": model, "optimizer": optimizer}
saver = Checkpoint(objects, DiskSaver(str(options.out), require_empty=False), n_saved=None)
loader = DataLoader(data, 4, shuffle=True)


@trainer.on(Events.EPOCH_STARTED)
def seed(engine):
    manual_seed(engine.state.epoch)


trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)
saved = sorted(options.out.glob("*.pt"), key=lambda path: int(path.stem.rpartition("_")[2]))
if saved:
    Checkpoint.load_objects(objects, torch.load(saved[-1], weights_only=False))
trainer.run(loader, max_epochs=4)
