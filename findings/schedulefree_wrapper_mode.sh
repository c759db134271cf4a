#!/usr/bin/env bash
# The schedule-free wrapper forgets that it was in training mode.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6 schedulefree==1.4.1
fi
cd "$work"
"$python" -W ignore - <<'PY'
import copy
import importlib.metadata
import sys

import schedulefree
import torch

print("torch", torch.__version__, "schedulefree", importlib.metadata.version("schedulefree"))
print("expected: model and optimizer saved in training mode, loaded, train(): exact, as it is with")
print("          the package's own optimizers")


def wrapped(parameters):
    base = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    return schedulefree.ScheduleFreeWrapper(base, momentum=0.9)


def own(parameters):
    return schedulefree.SGDScheduleFree(parameters, lr=0.01)


def step(parameter, optimizer, number):
    target = torch.randn(8, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    (parameter - target).pow(2).sum().backward()
    optimizer.step()


def exact(make):
    parameter = torch.nn.Parameter(torch.ones(8))
    optimizer = make([parameter])
    optimizer.train()
    for number in range(5):
        step(parameter, optimizer, number)
    saved = copy.deepcopy([parameter.data, optimizer.state_dict()])
    again = torch.nn.Parameter(saved[0].clone())
    resumed = make([again])
    resumed.load_state_dict(saved[1])
    resumed.train()
    step(parameter, optimizer, 5)
    step(again, resumed, 5)
    return torch.equal(parameter, again)


answers = exact(own), exact(wrapped)
print("seen: SGDScheduleFree is exact:", answers[0])
print("      ScheduleFreeWrapper(SGD) is exact:", answers[1], "(train() moves the weights again)")
if answers != (True, False):
    sys.exit("changed")
PY
