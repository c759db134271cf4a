#!/usr/bin/env bash
# The same tensors, saved again by safetensors, are another file if there are notes beside them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6 safetensors==0.8.0
fi
cd "$work"
"$python" -W ignore - <<'PY'
import hashlib
import sys

import safetensors
import torch
from safetensors.torch import save

print("torch", torch.__version__, "safetensors", safetensors.__version__)
print("expected: equal tensors and equal metadata give equal bytes, so that a hash names a checkpoint")


def files(notes):
    tensors = {"weight": torch.ones(3), "bias": torch.zeros(2)}
    return len({hashlib.sha256(save(tensors, dict(notes))).hexdigest() for _ in range(20)})


none = files({})
one = files({"format": "pt"})
eight = files({f"note{number}": "same" for number in range(8)})
print("seen: of 20 saves in one process, different files without metadata:", none)
print("      with one entry:", one, "; with eight:", eight)
if none != 1 or one != 1 or eight < 2:
    sys.exit("changed")
PY
