#!/usr/bin/env bash
# A load_state_dict that raises has replaced the parameters that did fit.
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

print("torch", torch.__version__)
print("expected: a strict load that raises leaves the model as it was, for a fallback or a fresh start")


def model(width):
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, width))


torch.manual_seed(0)
fresh = model(2)
before = [parameter.detach().clone() for parameter in fresh.parameters()]
raised = False
try:
    fresh.load_state_dict(model(3).state_dict())
except RuntimeError:
    raised = True
kept = [torch.equal(old, new) for old, new in zip(before, fresh.parameters())]
print("seen: raised", raised, "; parameters still the model's own:", kept)
optimizer = torch.optim.AdamW(model(2).parameters())
groups = [dict(group) for group in optimizer.param_groups]
try:
    optimizer.load_state_dict(torch.optim.SGD(torch.nn.Linear(3, 4).parameters()).state_dict())
except ValueError:
    print("      an optimizer's load that raises changes nothing:", groups == optimizer.param_groups)
if not raised or kept != [False, False, True, True]:
    sys.exit("changed")
PY
