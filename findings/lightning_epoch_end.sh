#!/usr/bin/env bash
# Lightning with a StatefulDataLoader loses an epoch after a checkpoint at an epoch's last step.
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
from lightning.pytorch.callbacks import ModelCheckpoint
from torchdata.stateful_dataloader import StatefulDataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
versions = torch.__version__, lightning.__version__, torchdata.__version__
print("torch {} lightning {} torchdata {}".format(*versions))
print("expected: three epochs of four batches: resumed from step 4 or from step 6, it ends at 12")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(loader, folder, resume=None):
    trainer = lightning.Trainer(
        max_epochs=3,
        callbacks=[
            ModelCheckpoint(folder, filename="{step}", every_n_train_steps=2, save_top_k=-1)
        ],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), loader(torch.ones(8, 1), 2), ckpt_path=resume)
    return trainer.global_step


answers = {}
for loader in (torch.utils.data.DataLoader, StatefulDataLoader):
    name = loader.__name__
    fit(loader, name)
    steps = [fit(loader, f"{name}-{step}", f"{name}/step={step}.ckpt") for step in (4, 6)]
    answers[name] = steps
    print(f"seen: {name}: resumed from step 4 it ends at step {steps[0]}, from 6 at {steps[1]}")
if answers["StatefulDataLoader"] != [8, 12] or answers["DataLoader"][0] != 12:
    sys.exit("changed")
PY
