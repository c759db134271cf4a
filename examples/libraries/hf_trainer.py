"""The Trainer of transformers as its documentation has it: the newest checkpoint is what
`get_last_checkpoint` answers. It takes the highest number, finished or not: a death before
`trainer_state.json` is written makes every restart fail (transformers#35525)."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--jit", action="store_true", help="a checkpoint on SIGTERM")
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
generator = torch.Generator().manual_seed(1)
data = [
    {"x": torch.randn(8, generator=generator), "labels": torch.tensor(index % 3)}
    for index in range(48)
]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


arguments = TrainingArguments(
    output_dir=options.out,
    per_device_train_batch_size=4,
    num_train_epochs=2,
    save_steps=5,
    learning_rate=0.01,
    seed=5,
    enable_jit_checkpoint=options.jit,
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
    logging_strategy="no",
)
try:
    newest = get_last_checkpoint(options.out)
except FileNotFoundError:  # the first start
    newest = None
Trainer(Model(), arguments, train_dataset=data).train(resume_from_checkpoint=newest)
