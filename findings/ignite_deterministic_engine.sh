#!/usr/bin/env bash
# Ignite's DeterministicEngine resumes in mid-epoch with workers, and not without.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6 pytorch-ignite==0.5.5
fi
cd "$work"
"$python" -W ignore - <<'PY'
import copy
import sys

import ignite
import torch
from ignite.engine import Events
from ignite.engine.deterministic import DeterministicEngine

print("torch", torch.__version__, "ignite", ignite.__version__)
print("expected: fewer moving parts resume no worse: num_workers=0 is as exact as num_workers=2")


def run(workers, state=None):
    torch.manual_seed(0)
    batches, states = [], []
    engine = DeterministicEngine(lambda engine, batch: batches.append(batch.tolist()))
    engine.add_event_handler(
        Events.ITERATION_COMPLETED(once=2), lambda: states.append(copy.deepcopy(engine.state_dict()))
    )
    if state is not None:
        engine.load_state_dict(state)
    loader = torch.utils.data.DataLoader(range(10), 2, shuffle=True, num_workers=workers)
    engine.run(loader, max_epochs=1)
    return batches, states


answers = {}
for workers in (2, 0):
    batches, states = run(workers)
    resumed, _ = run(workers, states[0])
    answers[workers] = resumed == batches[2:]
    print(f"seen: {workers} workers: due {batches[2:]}, got {resumed}")
if answers != {2: True, 0: False}:
    sys.exit("changed")
PY
