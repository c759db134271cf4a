"""fastai as its documentation has it: SaveModelCallback every epoch with the optimizer's state, and
`fit(start_epoch=...)` after `learn.load`."""

import argparse
from pathlib import Path

import torch
from fastai.basics import DataLoader, DataLoaders, Learner, set_seed
from fastai.callback.core import Callback
from fastai.callback.tracker import SaveModelCallback
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
options = parser.parse_args()
torch.set_num_threads(1)
points = torch.Generator().manual_seed(1)
rows = list(zip(torch.randn(48, 8, generator=points), torch.arange(48) % 3))
saved = sorted(options.out.glob("models/m_*.pth"), key=lambda path: int(path.stem[2:]))
first = int(saved[-1].stem[2:]) + 1 if saved else 0
set_seed(5)
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
loader = DataLoader(rows, bs=4, shuffle=True, num_workers=0, device=torch.device("cpu"))
loaders = DataLoaders(loader, DataLoader(rows[:8], bs=4, num_workers=0, device=torch.device("cpu")))


class Seeds(Callback):
    """Seeds each epoch by its number: fastai saves no generator."""

    order = 1

    def before_epoch(self):
        set_seed(5 + self.epoch)
        self.dls[0].rng.seed(5 + self.epoch)


learn = Learner(loaders, model, loss_func=nn.CrossEntropyLoss(), path=options.out, cbs=[Seeds()])
saver = SaveModelCallback(fname="m", every_epoch=True, with_opt=True)
with learn.no_bar(), learn.no_logging():
    if saved:
        learn.load(saved[-1].stem, with_opt=True)
    learn.fit(4, lr=0.01, start_epoch=first, cbs=[saver])
