#!/usr/bin/env bash
# Whether DCP cuts a list to the template's length depends on what is in the list.
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
print("expected: a list comes back as it was saved, or an error says that the lengths differ")


def returned(name, saved, template):
    dcp.save({"list": saved}, checkpoint_id=name, no_dist=True)
    state = {"list": template}
    dcp.load(state, checkpoint_id=name, no_dist=True)
    return state["list"]


losses = returned("numbers", [1.0, 2.0, 3.0], [0.0])
mixed = returned("tensors", [torch.tensor(1.0), 2.0, 3.0], [torch.tensor(0.0)])
print("seen: of three numbers, into a template of one, come back", len(losses))
print("      of three entries the first of which is a tensor come back", len(mixed), "(no error)")
if (len(losses), len(mixed)) != (3, 1):
    sys.exit("changed")
PY
