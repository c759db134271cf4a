#!/usr/bin/env bash
# Loading an optimizer's state runs its step hooks once: an average moves at each restart.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6
fi
cd "$work"
"$python" -W ignore - <<'PY'
import copy
import sys

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

print("torch", torch.__version__)
print("expected: set_state_dict puts state back and runs no step")


def job():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))
    return model, average, optimizer


model, average, optimizer = job()
for _ in range(5):
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
weights, moments = copy.deepcopy(get_state_dict(model, optimizer))
averaged = copy.deepcopy(average.state_dict())

model, average, optimizer = job()
average.load_state_dict(averaged)
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
same = torch.equal(average.module.weight, averaged["module.weight"])
print("seen: updates of the average: saved", int(averaged["n_averaged"]), "restored", int(average.n_averaged))
print("      its weights are those that were saved:", same)
if int(average.n_averaged) != 6 or same:
    sys.exit("changed")
PY
