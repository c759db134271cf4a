#!/usr/bin/env bash
# An optimizer saves its parameters' names and does not look at them when it loads.
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
print("expected: with names in the state, moments go to the parameter of the same name, or an error")
parameters = {"first": torch.nn.Parameter(torch.zeros(2)), "second": torch.nn.Parameter(torch.zeros(2))}
optimizer = torch.optim.SGD(parameters.items(), lr=0.1, momentum=0.9)
parameters["first"].grad, parameters["second"].grad = torch.ones(2), torch.full((2,), 2.0)
optimizer.step()
state = optimizer.state_dict()
turned = torch.optim.SGD(reversed(parameters.items()), lr=0.1, momentum=0.9)
turned.load_state_dict(state)
names = turned.param_groups[0]["param_names"]
buffers = {name: turned.state[value]["momentum_buffer"][0].item() for name, value in parameters.items()}
actual = [name for value in turned.param_groups[0]["params"] for name in parameters if parameters[name] is value]
print("seen: saved with names", state["param_groups"][0]["param_names"], "momenta 1 and 2")
print("      loaded in the other order:", buffers, "(no error)")
print("      the optimizer now calls", actual, "by the names", names)
if buffers != {"first": 2.0, "second": 1.0} or names != ["first", "second"]:
    sys.exit("changed")
PY
