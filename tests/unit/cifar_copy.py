"""A tiny copy of CIFAR in the layout of the official archives."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

PER_FILE = 4


def write_cifar10(root: Path) -> Path:
    """root/cifar10 with five training files of PER_FILE images; gives the folder of the files."""
    folder = root / "cifar10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for index, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        _write_rows(folder / name, "labels", index, classes=10)
    _write(folder / "batches.meta", {"label_names": [f"class{i}" for i in range(10)]})
    return folder


def write_cifar100(root: Path) -> Path:
    """root/cifar100 with PER_FILE training images; gives the folder of the files."""
    folder = root / "cifar100" / "cifar-100-python"
    folder.mkdir(parents=True)
    for index, name in enumerate(("train", "test")):
        _write_rows(folder / name, "fine_labels", index, classes=100)
    _write(folder / "meta", {"fine_label_names": [f"class{i}" for i in range(100)]})
    return folder


def _write_rows(path: Path, key: str, index: int, classes: int) -> None:
    rows = np.arange(PER_FILE * 3072, dtype=np.int64).reshape(PER_FILE, 3072) + 1000 * index
    labels = [(index * PER_FILE + row) % classes for row in range(PER_FILE)]
    _write(path, {"data": (rows % 251).astype(np.uint8), key: labels})


def _write(path: Path, value: object) -> None:
    path.write_bytes(pickle.dumps(value, protocol=2))
