#!/usr/bin/env bash
# Keras restores the training, and its other callbacks begin anew: the best file is overwritten.
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
from pathlib import Path

import keras
import numpy
import torch

print("torch", torch.__version__, "keras", keras.__version__)
print("expected: with BackupAndRestore a restarted fit ends as an undisturbed one")
scores = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


class Score(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["score"] = scores[epoch]


class Interrupt(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt


def fit(name, interrupt=None):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    stopping = keras.callbacks.EarlyStopping(monitor="score", mode="min", patience=6)
    callbacks = [
        Score(),
        keras.callbacks.BackupAndRestore(f"{name}_backup"),
        keras.callbacks.ModelCheckpoint(
            f"{name}.weights.h5", "score", mode="min", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.ReduceLROnPlateau("score", mode="min", factor=0.5, patience=3),
        keras.callbacks.CSVLogger(f"{name}.csv"),
        stopping,
    ]
    if interrupt is not None:
        callbacks.append(Interrupt(interrupt))
    inputs = numpy.linspace(0, 1, 16, dtype="float32").reshape(8, 2)
    try:
        model.fit(inputs, inputs[:, :1], epochs=10, shuffle=False, verbose=0, callbacks=callbacks)
    except KeyboardInterrupt:
        pass
    best = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    best.load_weights(f"{name}.weights.h5")
    rows = [line.split(",")[0] for line in Path(f"{name}.csv").read_text().splitlines()[1:]]
    rate = round(float(model.optimizer.learning_rate), 4)
    return best.get_weights()[0].ravel().tolist(), rate, stopping.stopped_epoch, rows


undisturbed = fit("undisturbed")
fit("restarted", interrupt=4)
restarted = fit("restarted")
print("seen: the best score is the first epoch's; the weights kept as the best are its:")
print("      undisturbed True ; restarted:", undisturbed[0] == restarted[0])
print("      rate at the end:", undisturbed[1], "and", restarted[1])
print("      stopped early in epoch", undisturbed[2], "and", restarted[2] or "never")
print("      epochs in the log:", *undisturbed[3], "and", *restarted[3])
changed = [one != two for one, two in zip(undisturbed, restarted)]
if changed != [True] * 4:
    sys.exit("changed")
PY
