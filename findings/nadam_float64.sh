#!/usr/bin/env bash
# NAdam in float64 goes on otherwise after its state was loaded.
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
print("expected: NAdam.load_state_dict gives back what state_dict gave, dtypes included")


def step(parameter, optimizer, number):
    generator = torch.Generator().manual_seed(number)
    target = torch.randn(8, dtype=torch.float64, generator=generator)
    optimizer.zero_grad()
    (parameter - target).pow(2).sum().backward()
    optimizer.step()


def start():
    parameter = torch.nn.Parameter(torch.ones(8, dtype=torch.float64))
    return parameter, torch.optim.NAdam([parameter], lr=0.01)


parameter, optimizer = start()
for number in range(5):
    step(parameter, optimizer, number)
saved = copy.deepcopy([parameter.data, optimizer.state_dict()])
again, resumed = start()
again.data.copy_(saved[0])
resumed.load_state_dict(saved[1])
before = optimizer.state[parameter]["mu_product"].dtype
after = resumed.state[again]["mu_product"].dtype
first = None
for number in range(5, 40):
    step(parameter, optimizer, number)
    step(again, resumed, number)
    if first is None and not torch.equal(parameter, again):
        first = number
print(f"seen: mu_product was {before}, comes back as {after}: parameters differ from step {first}")
if (before, after) != (torch.float32, torch.float64) or first is None:
    sys.exit("changed")
PY
