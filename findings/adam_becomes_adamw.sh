#!/usr/bin/env bash
# Adam that loads AdamW's state is AdamW from then on; the other way round it is not.
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

print("torch", torch.__version__)
print("expected: the class says how weight decay acts: Adam adds it to the gradient, AdamW does not")


def step(kind, state=None):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1, weight_decay=0.5)
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(state))
    weight.grad = torch.full((3,), 0.01)
    optimizer.step()
    return weight.detach().clone(), optimizer


def loaded(kind, other):
    _, first = step(other)
    crossed, _ = step(kind, first.state_dict())
    as_other, _ = step(other, first.state_dict())
    return torch.equal(crossed, as_other)


adam, adamw = loaded(torch.optim.Adam, torch.optim.AdamW), loaded(torch.optim.AdamW, torch.optim.Adam)
print("seen: Adam with AdamW's state steps as AdamW:", adam)
print("      AdamW with Adam's state steps as Adam:", adamw)
if (adam, adamw) != (True, False):
    sys.exit("changed")
PY
