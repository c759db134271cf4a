#!/usr/bin/env bash
# DCP's Hugging Face writer reports success for a file that nobody can read.
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
import logging
import sys
from pathlib import Path

import safetensors
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

logging.disable(logging.WARNING)
print("torch", torch.__version__, "safetensors", safetensors.__version__)
print("expected: a step number beside the weights is saved, or refused by `dcp.save`")


def weight_of(folder, state):
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(folder), no_dist=True)
    template = {"weight": torch.zeros(3)}
    try:
        dcp.load(template, storage_reader=HuggingFaceStorageReader(folder), no_dist=True)
    except dcp.api.CheckpointException as error:
        return str(next(iter(error.failures.values()))[0])
    return template["weight"].tolist()


alone = weight_of("alone", {"weight": torch.ones(3)})
beside = weight_of("beside", {"weight": torch.ones(3), "step": 7})
listed = '"step"' in Path("beside", "model.safetensors.index.json").read_text()
print("seen: the weight alone comes back as", alone)
print("      with a number beside it `dcp.save` returns; the index lists it:", listed)
print("      and no entry can be read, the weight neither:", beside)
if alone != [1.0] * 3 or not isinstance(beside, str) or not listed:
    sys.exit("changed")
PY
