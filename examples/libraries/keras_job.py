"""Keras 3 on torch as its documentation has it: `BackupAndRestore` with a save every few batches;
seeds and an order that depend on the epoch alone."""

import argparse
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import numpy as np
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
options = parser.parse_args()
torch.set_num_threads(1)
keras.utils.set_random_seed(5)
draw = np.random.default_rng(1)
x, y = draw.standard_normal((48, 8), dtype=np.float32), np.arange(48) % 3


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        rows = slice(index * 4, index * 4 + 4)
        return x[rows], y[rows]


model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(24, activation="relu"), keras.layers.Dense(3)]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss)
backup = keras.callbacks.BackupAndRestore(
    options.out / "backup", save_freq=5, delete_checkpoint=False, double_checkpoint=True
)
model.fit(Rows(), epochs=3, shuffle=False, verbose=0, callbacks=[backup])
model.save_weights(options.out / "final.weights.h5")
