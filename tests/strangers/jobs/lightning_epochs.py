"""Lightning's Trainer with torchdata's StatefulDataLoader; no checkpoint falls on an epoch's end.
--epoch-end: some do. Such a one resumes without the epoch that follows: the loader's state says that it has ended, and the trainer
counts an epoch that had no batch. --accumulation: from epoch 1 on a GradientAccumulationScheduler asks for two batches a step. It is
asked at an epoch's start only: the rest of an epoch that is resumed in its middle steps after every batch."""

import argparse, logging, warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from torchdata.stateful_dataloader import StatefulDataLoader

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--epoch-end", action="store_true")
p.add_argument("--accumulation", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pl.seed_everything(2, verbose=False)
rows = torch.randn(32 if args.epoch_end else 40, 6)


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(6, 1)

    def training_step(self, batch, number):
        return (self.net(batch) - batch.sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


saver = ModelCheckpoint(
    dirpath=args.out,
    filename="{step:03d}",
    save_top_k=-1,
    every_n_train_steps=4 if args.epoch_end else 7,
)
scheduled = [GradientAccumulationScheduler({0: 1, 1: 2})] if args.accumulation else []
trainer = pl.Trainer(
    max_epochs=4,
    accelerator="cpu",
    devices=1,
    callbacks=[saver, *scheduled],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
saved = sorted(map(str, Path(args.out).glob("*.ckpt")))
trainer.fit(
    Net(),
    StatefulDataLoader(rows, 4),
    ckpt_path=saved[-1] if saved else None,
    weights_only=False,
)
