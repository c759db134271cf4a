#!/usr/bin/env bash
# AdaLoRA's importances are in no state dict: a restored adapter keeps other ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6 peft==0.21.2
fi
cd "$work"
"$python" -W ignore - <<'PY'
import copy
import logging
import sys

import peft
import torch
from peft import AdaLoraConfig, get_peft_model

logging.disable(logging.WARNING)
print("torch", torch.__version__, "peft", peft.__version__)
print("expected: the whole state of the model and of a plain optimizer restores AdaLoRA")


def job():
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16))
    config = AdaLoraConfig(
        init_r=8, target_r=3, tinit=2, tfinal=3, deltaT=2, total_step=24, target_modules=["0", "2"]
    )
    model = get_peft_model(base, config)
    return model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)


def train(model, optimizer, steps):
    for step in steps:
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
        (model(inputs) - inputs.roll(1, 1)).square().mean().backward()
        optimizer.step()
        model.base_model.update_and_allocate(step)
        optimizer.zero_grad()


def kept(model):
    return {
        name.split(".")[-3]: [int(value != 0) for value in parameter.flatten()]
        for name, parameter in model.named_parameters()
        if "lora_E" in name
    }


model, optimizer = job()
train(model, optimizer, range(1, 12))
state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
unbroken, _ = job()
unbroken.load_state_dict(state[0])
same = all(torch.equal(a, b) for a, b in zip(model.parameters(), unbroken.parameters()))
train(model, optimizer, range(12, 25))
resumed, optimizer = job()
resumed.load_state_dict(state[0])
optimizer.load_state_dict(state[1])
train(resumed, optimizer, range(12, 25))
print("seen: entries for importances in the state:", sum("ipt" in key for key in state[0]))
print("      parameters restored:", same)
print("      ranks kept at the end, undisturbed:", kept(model))
print("                             resumed:    ", kept(resumed))
if not same or kept(model) == kept(resumed):
    sys.exit("changed")
PY
