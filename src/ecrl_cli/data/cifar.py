"""CIFAR-10 and CIFAR-100 through torchvision's loader."""

from __future__ import annotations

from typing import Any

import numpy as np
from torchvision import datasets

from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.data import preflight
from ecrl_cli.data.sample_set import ArraySet, DatasetInfo, Labels
from ecrl_cli.errors import DatasetError


def _without_sums(loader: Any) -> Any:
    """torchvision's `loader` without its MD5 check, which `preflight.check` does; all files must still exist."""
    train, test = ([[name, None] for name, _ in files] for files in (loader.train_list, loader.test_list))
    return type(loader.__name__, (loader,), {"train_list": train, "test_list": test, "meta": {**loader.meta, "md5": None}})


class CIFAR10WithIDs(ArraySet):
    """The 50,000 training images, or as many as the copy has (with `checksum=none` it is unpickled unchecked: use only a trusted copy)."""

    loader: Any = _without_sums(datasets.CIFAR10)
    look = DatasetInfo("cifar10", classes=10, shape=(3, 32, 32), mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))

    def __init__(self, config: DatasetConfig) -> None:
        preflight.check(config)
        inner = _read(self.loader, config)
        labels = np.array(inner.targets, dtype=np.int64)
        _check_labels(config, len(inner.data), labels, self.look.classes)
        super().__init__(self.look, np.ascontiguousarray(inner.data.transpose(0, 3, 1, 2)), labels)


class CIFAR100WithIDs(CIFAR10WithIDs):
    """As CIFAR-10, with the 100 fine labels."""

    loader = _without_sums(datasets.CIFAR100)
    look = DatasetInfo("cifar100", classes=100, shape=(3, 32, 32), mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))


def _read(loader: Any, config: DatasetConfig) -> Any:
    folder = preflight.home(config)
    try:
        return loader(folder, train=True)
    except Exception as error:  # unpickling a damaged file may raise anything
        raise DatasetError("dataset.root", f"{folder} cannot be read ({type(error).__name__}: {error})", "restore the files") from error


def _check_labels(config: DatasetConfig, images: int, labels: Labels, classes: int) -> None:
    if len(labels) != images or images == 0 or labels.min() < 0 or labels.max() >= classes:
        fact = f"{preflight.home(config)} has {images} images and {len(labels)} labels, not as many of each in 0..{classes - 1}"
        raise DatasetError("dataset.root", fact, "restore the files")
