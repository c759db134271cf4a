#!/usr/bin/env bash
# torchdata.nodes resumes a later epoch in the order of the first.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6 torchdata==0.11.0
fi
cd "$work"
"$python" -W ignore - <<'PY'
import copy
import sys

import torch
import torchdata
from torchdata.nodes import Loader, SamplerWrapper

print("torch", torch.__version__, "torchdata", torchdata.__version__)
print("expected: a Loader over a seeded sampler, restored in its second epoch, gives what was left")


def loader():
    generator = torch.Generator().manual_seed(3)
    sampler = torch.utils.data.RandomSampler(range(12), generator=generator)
    return Loader(SamplerWrapper(sampler))


def rest(epoch):
    undisturbed = loader()
    for _ in range(epoch):
        list(undisturbed)
    iterator = iter(undisturbed)
    for _ in range(5):
        next(iterator)
    state = copy.deepcopy(undisturbed.state_dict())
    due = list(iterator)
    resumed = loader()
    resumed.load_state_dict(state)
    return due, list(resumed)


first, second = rest(0), rest(1)
print("seen: in the first epoch", "the same" if first[0] == first[1] else "others")
print("      in the second, due", second[0])
print("                     got", second[1])
if first[0] != first[1] or sorted(second[0]) == sorted(second[1]):
    sys.exit("changed")
PY
