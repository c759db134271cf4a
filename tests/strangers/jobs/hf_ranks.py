"""The Trainer of transformers on two ranks, dropout, checkpoints in the middle of an epoch; it goes on from the newest checkpoint that has all files.
--bug: it asks for trainer_state.json alone, which rank 0 writes without waiting for the generators of rank 1: killed there, rank 1 goes on with other
dropout masks, and nothing says so but a line of the log."""

import argparse, json, os
from pathlib import Path
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--bug", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(3)


class Rows(torch.utils.data.Dataset):
    x = torch.randn(64, 6)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.x[i].sum().view(1)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))

    def forward(self, x, labels):
        out = self.layers(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


def whole(folder):
    ranks = range(0 if args.bug else int(os.environ["WORLD_SIZE"]))
    try:
        for rank in ranks:
            torch.load(folder / f"rng_state_{rank}.pth", weights_only=False)
        return bool(json.loads((folder / "trainer_state.json").read_text()))
    except Exception:
        return False


saved = sorted(Path(args.out).glob("checkpoint-*"), key=lambda folder: int(folder.name[11:]))
newest = [str(folder) for folder in saved if whole(folder)][-1:]
settings = TrainingArguments(
    output_dir=args.out,
    per_device_train_batch_size=4,
    num_train_epochs=2,
    save_steps=3,
    learning_rate=0.01,
    seed=3,
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
    logging_strategy="no",
)
Trainer(Net(), settings, train_dataset=Rows()).train(
    resume_from_checkpoint=newest[0] if newest else None
)
