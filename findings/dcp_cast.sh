#!/usr/bin/env bash
# DCP checks shapes, and casts to the template's dtype without a word.
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
print("expected: another dtype in the template is an error, as another shape is")
tokens = 2**40 + 1
saved = {"tokens": torch.tensor([tokens]), "rate": torch.tensor([0.1], dtype=torch.float64)}
dcp.save(saved, checkpoint_id="saved", no_dist=True)
state = {"tokens": torch.zeros(1), "rate": torch.zeros(1, dtype=torch.int64)}
dcp.load(state, checkpoint_id="saved", no_dist=True)
shape = {"tokens": torch.zeros(2, dtype=torch.int64), "rate": torch.zeros(1)}
try:
    dcp.load(shape, checkpoint_id="saved", no_dist=True)
    refused = False
except dcp.api.CheckpointException:
    refused = True
print(f"seen: {tokens} tokens come back as {int(state['tokens'])}, a rate of 0.1 as", end=" ")
print(f"{int(state['rate'])}, without an error; another shape is refused: {refused}")
if int(state["tokens"]) == tokens or int(state["rate"]) != 0 or not refused:
    sys.exit("changed")
PY
