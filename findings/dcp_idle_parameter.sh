#!/usr/bin/env bash
# A checkpoint of DCP cannot be loaded if one parameter has had no gradient yet.
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
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

logging.disable(logging.WARNING)
print("torch", torch.__version__)
print("expected: what get_optimizer_state_dict gave and dcp.save wrote, the same two calls load")


def restart(experts_used):
    def job():
        torch.manual_seed(0)
        model = torch.nn.ModuleList([torch.nn.Linear(3, 2, bias=False) for _ in range(2)])
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    name = f"used_{experts_used}"
    model, optimizer = job()
    sum(expert(torch.ones(4, 3)).sum() for expert in model[:experts_used]).backward()
    optimizer.step()
    dcp.save({"optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=name, no_dist=True)
    template = {"optimizer": get_optimizer_state_dict(*job())}
    try:
        dcp.load(template, checkpoint_id=name, no_dist=True)
    except dcp.api.CheckpointException as error:
        return str(next(iter(error.failures.values()))[0])
    return "loaded"


both, one = restart(2), restart(1)
print("seen: two experts, both used:", both)
print("      one not used before the save:", one)
if both != "loaded" or "Missing key" not in one:
    sys.exit("changed")
PY
