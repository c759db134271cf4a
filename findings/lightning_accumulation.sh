#!/usr/bin/env bash
# Lightning forgets scheduled gradient accumulation for the epoch that it resumes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6 lightning==2.6.6 torchdata==0.11.0
fi
cd "$work"
"$python" -W ignore - <<'PY'
import logging
import sys

import lightning
import torch
import torchdata
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from torchdata.stateful_dataloader import StatefulDataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
versions = torch.__version__, lightning.__version__, torchdata.__version__
print("torch {} lightning {} torchdata {}".format(*versions))
print("expected: from epoch 1 on, three batches a step: resumed in mid-epoch 1, it goes on with three")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.steps = []

    def training_step(self, batch, index):
        return self.layer(batch).pow(2).mean()

    def on_train_batch_end(self, *arguments):
        self.steps.append(self.global_step)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder, resume=None):
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=[
            GradientAccumulationScheduler({0: 1, 1: 3}),
            ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1),
        ],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, StatefulDataLoader(torch.ones(12, 1), 1), ckpt_path=resume)
    return model.steps


due = fit("whole")
got = fit("resumed", "whole/step=14.ckpt")
print("seen: steps counted after each batch, due", due[-len(got) :])
print("                                     got", got)
if due[-1] != 16 or got[-1] <= 16:
    sys.exit("changed")
PY
