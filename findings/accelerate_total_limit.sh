#!/usr/bin/env bash
# After a restart, Accelerate's retention deletes the new checkpoints and keeps the old.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6 accelerate==1.15.0
fi
cd "$work"
"$python" -W ignore - <<'PY'
import sys
from pathlib import Path

import accelerate
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

print("torch", torch.__version__, "accelerate", accelerate.__version__)
print("expected: automatic names and total_limit=2: the two newest stay, load_state takes the newest")


def start():
    project = ProjectConfiguration("project", automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=True, project_config=project)
    model = accelerator.prepare(torch.nn.Linear(1, 1, bias=False))
    return accelerator, model


def train(accelerator, model, saves):
    for _ in range(saves):
        model.weight.data.add_(1)  # the weight counts the steps
        accelerator.save_state()


accelerator, model = start()
model.weight.data.zero_()
train(accelerator, model, 5)
steps = []
for _ in range(3):
    accelerator, model = start()
    accelerator.load_state()
    steps.append(int(model.weight))
    train(accelerator, model, 2)
left = sorted(path.name for path in Path("project/checkpoints").iterdir())
print("seen: three restarts, each followed by two saves, began at steps", steps)
print("      left over:", left)
if steps != [5, 5, 5]:
    sys.exit("changed")
PY
