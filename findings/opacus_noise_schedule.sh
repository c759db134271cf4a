#!/usr/bin/env bash
# Opacus restores a noise schedule's count and not its noise.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6 opacus==1.6.0
fi
cd "$work"
"$python" -W ignore - <<'PY'
import sys

import opacus
import torch
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialNoise

print("torch", torch.__version__, "opacus", opacus.__version__)
print("expected: save_checkpoint and load_checkpoint with noise_scheduler=: noise goes on as it was")


def start():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
    engine = PrivacyEngine()
    model, optimizer, _ = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, 5),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    return engine, model, optimizer, ExponentialNoise(optimizer, gamma=0.5)


engine, model, optimizer, schedule = start()
schedule.step()
schedule.step()
engine.save_checkpoint(
    path="saved", module=model, optimizer=optimizer, noise_scheduler=schedule
)
again, restored, resumed, following = start()
again.load_checkpoint(
    path="saved", module=restored, optimizer=resumed, noise_scheduler=following
)
schedule.step()
following.step()
print("seen: steps of the schedule:", schedule.last_epoch, "and", following.last_epoch)
print("      noise multiplier due", optimizer.noise_multiplier, "got", resumed.noise_multiplier)
same = schedule.last_epoch == following.last_epoch
if not same or (optimizer.noise_multiplier, resumed.noise_multiplier) != (0.125, 0.5):
    sys.exit("changed")
PY
