#!/usr/bin/env bash
# Ignite's moving average begins its warm-up again after every restart.
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
from ignite.engine import Engine, Events
from ignite.handlers import EMAHandler

print("torch", torch.__version__, "ignite", ignite.__version__)
print("expected: engine, model and average restored at iteration 6: the average's momentum goes on")


def trainer():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    average = EMAHandler(model, momentum=0.1, momentum_warmup=0.5, warmup_iters=10)
    momenta = []
    engine = Engine(lambda engine, batch: model.weight.data.add_(0.1))
    average.attach(engine, event=Events.ITERATION_COMPLETED)
    engine.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: momenta.append(round(engine.state.ema_momentum, 3))
    )
    return engine, model, average, momenta


engine, model, average, due = trainer()
saved = []
engine.add_event_handler(
    Events.ITERATION_COMPLETED(once=6),
    lambda: saved.extend(
        copy.deepcopy(
            [engine.state_dict(), model.state_dict(), average.ema_model.state_dict()]
        )
    ),
)
engine.run(range(12), max_epochs=1)
resumed, again, restored, got = trainer()
resumed.load_state_dict(saved[0])
again.load_state_dict(saved[1])
restored.ema_model.load_state_dict(saved[2])
resumed.run(range(12), max_epochs=1)
off = (average.ema_model.weight - restored.ema_model.weight).abs().max().item()
print("seen: momenta due from iteration 7 on", due[6:])
print("      got                            ", got)
print(f"      the average is off by {off:.2g}; EMAHandler has state_dict:", end=" ")
print(hasattr(average, "state_dict"))
if due[6:] == got or off == 0:
    sys.exit("changed")
PY
