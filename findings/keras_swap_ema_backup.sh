#!/usr/bin/env bash
# The order of two Keras callbacks decides whether a restart is exact.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6 keras==3.15.1
fi
cd "$work"
KERAS_BACKEND=torch KERAS_HOME=$work CUDA_VISIBLE_DEVICES= "$python" -W ignore - <<'PY'
import sys

import keras
import numpy
import torch

print("torch", torch.__version__, "keras", keras.__version__)
print("expected: BackupAndRestore and SwapEMAWeights work in either order")
inputs = numpy.random.default_rng(0).normal(size=(40, 4)).astype("float32")


class Dies(keras.callbacks.Callback):
    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches == 24:
            raise RuntimeError("the process dies")


def fit(*callbacks):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9), "mse")
    model.fit(
        inputs, inputs[:, :1], batch_size=4, epochs=4, shuffle=False, verbose=0, callbacks=callbacks
    )
    return [numpy.asarray(weight) for weight in model.get_weights()]


def exact(order):
    def callbacks():
        both = [
            keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
            keras.callbacks.BackupAndRestore(order),
        ]
        return both if order == "swap first" else both[::-1]

    due = fit(keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
    try:
        fit(*callbacks(), Dies())
    except RuntimeError:
        pass
    got = fit(*callbacks())
    return all(numpy.array_equal(a, b) for a, b in zip(due, got, strict=True))


answers = {order: exact(order) for order in ("backup first", "swap first")}
print("seen: resumed as undisturbed:", answers, "(no error, no warning)")
if answers != {"backup first": True, "swap first": False}:
    sys.exit("changed")
PY
