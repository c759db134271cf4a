#!/usr/bin/env bash
# Gradients that are there while DCP's optimizer template is made cost the moments.
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
import logging
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

logging.disable(logging.WARNING)
print("torch", torch.__version__)
print("expected: get_state_dict, dcp.load, set_state_dict restore AdamW, or raise")


def job():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def moments_after_restart(backward_first):
    model, optimizer = job()
    if backward_first:
        model(torch.ones(4, 3)).sum().backward()
        optimizer.zero_grad(set_to_none=False)
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id="saved", no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return len(optimizer.state), optimizer.param_groups[0]["lr"]


model, optimizer = job()
for _ in range(3):
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
optimizer.param_groups[0]["lr"] = 0.05
weights, moments = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": moments}, checkpoint_id="saved", no_dist=True)
plain, warm = moments_after_restart(False), moments_after_restart(True)
print("seen: a fresh model and optimizer: state for", plain[0], "parameters, rate", plain[1])
print("      after a backward pass, its gradients zeroed but there: state for", warm[0], "rate", warm[1])
if plain != (2, 0.05) or warm != (0, 0.05):
    sys.exit("changed")
PY
