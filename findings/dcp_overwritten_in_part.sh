#!/usr/bin/env bash
# A DCP folder that was being overwritten loads as a mixture of two saves.
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
import os
import sys

import torch
import torch.distributed.checkpoint as dcp

logging.disable(logging.WARNING)
print("torch", torch.__version__)
print("expected: a process dies while it saves over a finished checkpoint: loading gives the older")
print("          one, or an error")


def save(value):
    state = {"first": torch.full((4,), value), "second": torch.full((4,), value)}
    writer = dcp.FileSystemWriter("latest", single_file_per_rank=False)
    dcp.save(state, storage_writer=writer, no_dist=True)


save(1.0)
child = os.fork()
if child == 0:
    opened = []

    def dies_at_the_second_file(event, arguments):
        if event == "open" and str(arguments[0]).endswith(".distcp"):
            opened.append(arguments[0])
            if len(opened) == 2:
                os._exit(9)

    sys.addaudithook(dies_at_the_second_file)
    save(2.0)
    os._exit(0)
os.waitpid(child, 0)
loaded = {"first": torch.zeros(4), "second": torch.zeros(4)}
dcp.load(loaded, checkpoint_id="latest", no_dist=True)
values = sorted(tensor[0].item() for tensor in loaded.values())
print("seen: no error; one tensor is of the second save and one of the first:", values)
if values != [1.0, 2.0]:
    sys.exit("changed")
PY
