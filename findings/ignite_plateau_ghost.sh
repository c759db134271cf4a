#!/usr/bin/env bash
# Ignite's plateau schedule, once restored, lowers the rate of an optimizer that is gone.
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
import io
import sys

import ignite
import torch
from ignite.engine import Engine, Events
from ignite.handlers import ReduceLROnPlateauScheduler

print("torch", torch.__version__, "ignite", ignite.__version__)
print("expected: optimizer and schedule restored: the rate drops where it drops undisturbed")


def start():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = ReduceLROnPlateauScheduler(optimizer, "loss", factor=0.5, patience=2)
    return optimizer, schedule


def rates(optimizer, schedule, epochs):
    seen = []
    engine = Engine(lambda engine, batch: None)

    @engine.on(Events.EPOCH_COMPLETED)
    def _():
        engine.state.metrics["loss"] = 1.0  # never better

    engine.add_event_handler(Events.EPOCH_COMPLETED, schedule)
    engine.add_event_handler(
        Events.EPOCH_COMPLETED, lambda: seen.append(optimizer.param_groups[0]["lr"])
    )
    engine.run([0], max_epochs=epochs)
    return seen


optimizer, schedule = start()
rates(optimizer, schedule, 3)
saved = io.BytesIO()
torch.save([optimizer.state_dict(), schedule.state_dict()], saved)
due = rates(optimizer, schedule, 6)
again, resumed = start()
saved.seek(0)
states = torch.load(saved, weights_only=False)
again.load_state_dict(states[0])
resumed.load_state_dict(states[1])
got = rates(again, resumed, 6)
print("seen: due", due)
print("      got", got)
print("      the state holds a bound method of the old handler:", end=" ")
print(callable(states[1]["scheduler"].get("_reduce_lr")))
if due == got or set(got) != {1.0}:
    sys.exit("changed")
PY
