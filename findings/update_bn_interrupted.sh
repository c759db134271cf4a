#!/usr/bin/env bash
# An interrupted update_bn leaves batch norm with another momentum for good.
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
import sys

import torch
from torch.optim.swa_utils import update_bn

print("torch", torch.__version__)
print("expected: when the loader raises (a signal, a bad sample), update_bn puts back what it set")
torch.manual_seed(0)
norm = torch.nn.BatchNorm1d(3, momentum=0.1)
model = torch.nn.Sequential(torch.nn.Linear(3, 3), norm)


def loader():
    yield torch.randn(4, 3)
    raise KeyboardInterrupt


try:
    update_bn(loader(), model)
except KeyboardInterrupt:
    pass
saved = model.state_dict()
print(f"seen: momentum is {norm.momentum} (an average over all batches), was 0.1;", end=" ")
print(f"named in state_dict: {any('momentum' in key for key in saved)}")
if norm.momentum is not None:
    sys.exit("changed")
PY
