#!/usr/bin/env bash
# DCP takes a plain optimizer, saves its moments and does not load them.
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

logging.disable(logging.WARNING)
print("torch", torch.__version__)
print("expected: what has state_dict and load_state_dict is saved and loaded by DCP, or refused")


def job(rate):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=rate)}


saved = job(0.1)
for _ in range(3):
    saved["model"](torch.ones(4, 3)).sum().backward()
    saved["optimizer"].step()
dcp.save(saved, checkpoint_id="saved", no_dist=True)
stored = dcp.FileSystemReader("saved").read_metadata().state_dict_metadata
loaded = job(0.5)
dcp.load(loaded, checkpoint_id="saved", no_dist=True)
weights = torch.equal(saved["model"].weight, loaded["model"].weight)
rate = loaded["optimizer"].param_groups[0]["lr"]
count = len(loaded["optimizer"].state)
stored = sum("exp_avg_sq" in key for key in stored)
print("seen: weights are restored:", weights, "; the rate is", rate)
print("      moments stored for", stored, "parameters, restored for", count, "(no error)")
if (weights, rate, stored, count) != (True, 0.1, 2, 0):
    sys.exit("changed")
PY
