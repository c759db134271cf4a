"""The Trainer of Hugging Face's transformers, gradient accumulation, checkpoints in the middle of an epoch. It comes back exactly, also after a
death inside a save: it chooses its checkpoint itself, because `get_last_checkpoint` takes the highest number, finished or not.
On several ranks nothing waits for the generators that the others write: a checkpoint without them
is resumed from without a word.

ecrl audit -- python examples/jobs/trainer_job.py --out {dir}
ecrl audit -- torchrun --nproc-per-node 2 examples/jobs/trainer_job.py --out {dir}
"""

import json
import os
import pickle
from pathlib import Path

import torch
import torch.nn.functional as F
from options import parse
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

BUGS = {
    "no data skip": "ignore_data_skip: the resumed epoch begins anew",
    "generators lost": "rng_state.pth is missing, and that is tolerated",
    "optimizer lost": "optimizer.pt is missing, and that is tolerated",
    "schedule lost": "scheduler.pt is missing: the optimizer's state is not loaded either",
    "model only": "save_only_model: nothing else is in a checkpoint",
    "older checkpoint": "the oldest checkpoint is named",
    "seed": "the seed of the data is another after the restart",
    "accumulation": "the micro-batches of a step are fewer after the restart",
}
FROM_THE_START = ("model only",)
SAMPLES, BATCH, MICRO, EPOCHS, SAVE_EVERY, SEED = 96, 4, 2, 3, 5, 5


class Points(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x, self.y = torch.randn(SAMPLES, 8, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.y[index]}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def finished(checkpoint, whole):
    """Whether the file that the Trainer writes last is there and whole, and the generators of
    each rank, which may be written later still. `whole`: more than the model is saved.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    names = [f"rng_state_{rank}.pth" for rank in range(ranks)] if ranks > 1 else ["rng_state.pth"]
    try:
        for name in names if whole else ():
            torch.load(checkpoint / name, weights_only=False)
        return bool(json.loads((checkpoint / "trainer_state.json").read_text()))
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError):
        return False


def newest_checkpoint(out, whole=True):
    """The newest finished checkpoint, None if there is none."""
    checkpoints = sorted(Path(out).glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    return next((str(checkpoint) for checkpoint in reversed(checkpoints) if finished(checkpoint, whole)), None)


def broken_checkpoint(out, bug):
    """The checkpoint to go on from; the file that `bug` names is gone."""
    newest = newest_checkpoint(out, whole=bug != "model only")
    if newest and bug == "older checkpoint":
        newest = str(min(Path(out).glob("checkpoint-*"), key=lambda path: int(path.name[11:])))
    lost = {"generators lost": "rng_state.pth", "optimizer lost": "optimizer.pt", "schedule lost": "scheduler.pt"}.get(bug)
    if newest and lost:
        (Path(newest) / lost).unlink()
    return newest


def main():
    out, bug = parse(BUGS)
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    newest = broken_checkpoint(out, bug)
    arguments = TrainingArguments(
        output_dir=out,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=1 if newest and bug == "accumulation" else MICRO,
        num_train_epochs=EPOCHS,
        save_steps=SAVE_EVERY,
        save_only_model=bug == "model only",
        ignore_data_skip=bug == "no data skip",
        learning_rate=0.01,
        seed=SEED,
        data_seed=SEED + 1 if newest and bug == "seed" else SEED,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )
    Trainer(Model(), arguments, train_dataset=Points()).train(resume_from_checkpoint=newest)


if __name__ == "__main__":
    main()
