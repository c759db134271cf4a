"""Lightning's Trainer with torchdata's loader and a sampler that knows its place; checkpoints in the middle of an epoch.
--bug: one of them falls on an epoch's last batch. A run that goes on from it does not count the next epoch as ready (fit_loop.py, on_advance_start), and
what it saves in there is taken for no place inside an epoch: the second restart begins the epoch anew. --elsewhere: temporary files
lie on another file system, from which a finished checkpoint is not renamed but copied: a death in between leaves a torn one, which is the newest."""

import argparse, atexit, hashlib, logging, os, shutil, tempfile, warnings
from pathlib import Path
import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--bug", action="store_true")
p.add_argument("--elsewhere", action="store_true")
args = p.parse_args()
if args.elsewhere:
    tempfile.tempdir = "/dev/shm/" + hashlib.sha256(args.out.encode()).hexdigest()[:16]
    os.makedirs(tempfile.tempdir, exist_ok=True)
    atexit.register(shutil.rmtree, tempfile.tempdir, True)
torch.set_num_threads(1)
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pl.seed_everything(2, verbose=False)
rows = torch.randn(48, 6)


class Places(torch.utils.data.Sampler):
    epoch, done = 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        if self.done >= len(rows):
            self.done = 0
        order = torch.randperm(
            len(rows), generator=torch.Generator().manual_seed(self.epoch)
        ).tolist()
        for index in order[self.done :]:
            self.done += 1
            yield index

    def __len__(self):
        return len(rows)

    def state_dict(self):
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state):
        self.epoch, self.done = state["epoch"], state["done"]


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 1)

    def training_step(self, batch, number):
        return (self.net(batch) - batch.sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


saver = ModelCheckpoint(
    dirpath=args.out, filename="{step:03d}", save_top_k=-1, every_n_train_steps=4 if args.bug else 5
)
loader = StatefulDataLoader(rows, 4, sampler=Places(), generator=torch.Generator())
trainer = pl.Trainer(
    max_epochs=2,
    accelerator="cpu",
    devices=1,
    callbacks=[saver],
    use_distributed_sampler=False,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
saved = sorted(map(str, Path(args.out).glob("*.ckpt")))
trainer.fit(Net(), loader, ckpt_path=saved[-1] if saved else None, weights_only=False)
