"""timm's loop as its train.py has it: CheckpointSaver after each epoch, `resume_checkpoint`, a
schedule made by `create_scheduler_v2` and set to the epoch that it goes on with. The saver takes up
its list of checkpoints from the newest one (`load_state_dict_from_checkpoint`, timm 1.0.31)."""

import argparse
import random
from pathlib import Path

import numpy as np
import timm.utils
import torch
import torch.nn.functional as F
from timm.models import resume_checkpoint
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
parser.add_argument("--seed-epochs", action="store_true", help="what train.py does not do")
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)
timm.utils.random_seed(5, 0)
points = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(48, 8, generator=points), torch.arange(48) % 3)
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
optimizer = create_optimizer_v2(model, opt="adamw", lr=0.01)
average = timm.utils.ModelEmaV3(model, decay=0.9)
saver = timm.utils.CheckpointSaver(
    model, optimizer, model_ema=average, checkpoint_dir=str(options.out), max_history=10
)
newest, first = options.out / "last.pth.tar", 0
if newest.exists():
    first = resume_checkpoint(model, str(newest), optimizer, log_info=False)
    timm.models.load_checkpoint(average.module, str(newest), use_ema=True)
    saver.load_state_dict_from_checkpoint(str(newest))
schedule, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=4, warmup_epochs=1)
if first:
    schedule.step(first)
for epoch in range(first, 4):
    if options.seed_epochs:
        random.seed(epoch), np.random.seed(epoch), torch.manual_seed(epoch)
    for x, y in DataLoader(data, 4, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        average.update(model)
    schedule.step(epoch + 1)
    saver.save_checkpoint(epoch)
