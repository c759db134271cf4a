#!/usr/bin/env bash
# Ignite, gone on inside an epoch: more iterations than there are, or epochs out of step with the data.
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
import sys

import ignite
from ignite.engine import Engine, Events

print("ignite", ignite.__version__)
print("expected: resumed at iteration 5 of 24, two epochs of 12, 19 iterations are left")


def trained(state, anew):
    """(last iteration, batches): a run of two epochs, from `state` on; `anew`: set_data at each
    epoch's start."""
    batches = []
    engine = Engine(lambda engine, batch: batches.append(batch))
    if anew:
        engine.add_event_handler(Events.EPOCH_STARTED, lambda: engine.set_data(list(range(12))))
    if state:
        engine.load_state_dict(state)
    engine.run(list(range(12)), max_epochs=2)
    return engine.state.iteration, batches


state = {"epoch_length": 12, "iteration": 5, "max_epochs": 2}
whole, _ = trained(None, anew=True)
more, _ = trained(state, anew=True)
last, batches = trained(state, anew=False)
print("seen: set_data at each epoch's start: undisturbed", whole, "iterations, resumed", more)
print("      without: the second epoch begins with batch", batches[7], "of the data")
sys.exit(not (whole == 24 and more == 29 and last == 24 and batches[7] == 7))
PY
