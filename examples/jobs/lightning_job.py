"""Lightning's Trainer, checkpoints in the middle of an epoch, a loader with a state. It comes back exactly.

    ecrl audit -- python examples/jobs/lightning_job.py --out {dir}

Left to the script: a loader and a sampler with a state (with a plain DataLoader the epoch begins anew), the generators, the choice of the newest
checkpoint, and that none is saved at an epoch's last batch: a run that goes on from such a one does
not count its next epoch as ready, and what it saves in there begins the epoch anew (2.6.6).
"""

import logging
import warnings
from pathlib import Path

import lightning.pytorch as lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from options import parse
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

BUGS = {
    "plain loader": "torch's DataLoader has no state: the resumed epoch begins anew",
    "total steps read": "configure_optimizers reads trainer.estimated_stepping_batches",
    "sampler without state": "the sampler knows its epoch by set_epoch alone",
    "generators": "the generators are not saved: Lightning leaves that to the script",
    "weights only": "only the model's state is read from the checkpoint",
    "oldest checkpoint": "names are sorted as text: an older checkpoint is taken",
    "schedule by epoch": "the schedule is rebuilt from the number of the epoch",
}
FROM_THE_START = ("plain loader", "total steps read", "sampler without state", "generators")
SAMPLES, BATCH, EPOCHS, SAVE_EVERY, SEED = 48, 4, 3, 5, 5


class Shuffled(Sampler):
    """Lightning calls `set_epoch` before each epoch, of a resumed one when the loader's position has been restored already."""

    epoch, done = 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(SEED + self.epoch)).tolist()
        if self.done >= SAMPLES:  # nobody asks for more than an epoch has
            self.done = 0
        for index in order[self.done :]:
            self.done += 1
            yield index

    def __len__(self):
        return SAMPLES


class Kept(Shuffled):
    """With a state of its own, so that the position is restored in the right epoch's order."""

    def state_dict(self):
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state):
        self.epoch, self.done = state["epoch"], state["done"]


class Module(lightning.LightningModule):
    def __init__(self, bug):
        super().__init__()
        self.bug = bug
        self.net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))

    def training_step(self, batch, number):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        if self.bug == "total steps read":
            assert self.trainer.estimated_stepping_batches > 0
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.8)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self):
        if self.bug == "schedule by epoch" and self.global_step:
            self.lr_schedulers().last_epoch = self.current_epoch


class Generators(lightning.Callback):
    """Restored right before the first batch: what Lightning does after the load may draw."""

    state = None

    def on_save_checkpoint(self, trainer, module, checkpoint):
        checkpoint["generator"] = torch.get_rng_state()

    def on_load_checkpoint(self, trainer, module, checkpoint):
        self.state = checkpoint["generator"]

    def on_train_batch_start(self, trainer, module, batch, number):
        if self.state is not None:
            torch.set_rng_state(self.state)
            self.state = None


def main():
    out, bug = parse(BUGS)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(SEED, verbose=False)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(SAMPLES, 8, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator))
    kind = DataLoader if bug == "plain loader" else StatefulDataLoader
    sampler = Shuffled() if bug == "sampler without state" else Kept()
    loader = kind(data, BATCH, sampler=sampler, generator=torch.Generator())
    saver = ModelCheckpoint(dirpath=out, filename="{step}", save_top_k=-1, every_n_train_steps=SAVE_EVERY)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks = [saver] if bug == "generators" else [saver, Generators()]
    trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", devices=1, callbacks=callbacks, use_distributed_sampler=False, **quiet)
    found = sorted(Path(out).glob("*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))
    newest = min(found, key=lambda path: path.name) if found and bug == "oldest checkpoint" else found[-1] if found else None
    module = Module(bug)
    if bug == "weights only" and newest:
        module.load_state_dict(torch.load(newest, weights_only=False)["state_dict"])
        newest = None
    trainer.fit(module, loader, ckpt_path=newest, weights_only=False)


if __name__ == "__main__":
    main()
