#!/usr/bin/env bash
# skorch restores weights, optimizer and history, and begins the schedule anew.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6 skorch==1.4.0
fi
cd "$work"
"$python" -W ignore - <<'PY'
import sys

import numpy
import skorch
import torch
from skorch import NeuralNetRegressor
from skorch.callbacks import Callback, LoadInitState, LRScheduler, TrainEndCheckpoint

print("torch", torch.__version__, "skorch", skorch.__version__)
print("expected: LoadInitState after TrainEndCheckpoint: rates go on where they were, as they do in")
print("          partial_fit")
inputs = numpy.random.default_rng(0).normal(size=(16, 4)).astype("float32")
rates = []


class Rates(Callback):
    def on_epoch_end(self, net, **arguments):
        rates.append(round(net.optimizer_.param_groups[0]["lr"], 6))


def net(epochs, *callbacks):
    schedule = LRScheduler(policy="LambdaLR", lr_lambda=lambda epoch: 0.5**epoch)
    return NeuralNetRegressor(
        torch.nn.Linear,
        module__in_features=4,
        module__out_features=1,
        max_epochs=epochs,
        lr=0.1,
        train_split=None,
        verbose=0,
        callbacks=[Rates(), schedule, *callbacks],
    )


net(6).fit(inputs, inputs[:, :1])
due = rates[3:]
rates.clear()
net(3, TrainEndCheckpoint(dirname="saved")).fit(inputs, inputs[:, :1])
rates.clear()
checkpoint = TrainEndCheckpoint(dirname="saved").initialize()
resumed = net(3, LoadInitState(checkpoint)).fit(inputs, inputs[:, :1])
print("seen: due", due)
print("      got", rates, "with", len(resumed.history), "epochs in the history")
if due == rates or len(resumed.history) != 6:
    sys.exit("changed")
PY
