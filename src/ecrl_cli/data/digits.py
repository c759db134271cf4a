"""Handwritten digits, bundled with scikit-learn: real data without a download."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.data.sample_set import ArraySet, Traits
from ecrl_cli.errors import DatasetError

# Mean and deviation of all 1797 images; no flip: a mirrored digit is another digit or none.
TRAITS = Traits("digits", classes=10, shape=(1, 8, 8), mean=(0.3053,), std=(0.3760,), peak=16, flip=False)


class DigitsWithIDs(ArraySet):
    """What `sklearn.datasets.load_digits` loads, all of it as the training set.

    The file is read as it lies in scikit-learn's folder: importing scikit-learn takes 0.8 s, at every launch of every rank.
    """

    def __init__(self, config: DatasetConfig) -> None:
        table = np.loadtxt(_packaged_file(), delimiter=",", dtype=np.uint8)
        super().__init__(TRAITS, table[:, :-1].reshape(-1, *TRAITS.shape), table[:, -1].astype(np.int64))


def _packaged_file() -> Path:
    spec = importlib.util.find_spec("sklearn")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    path = next((p for p in (Path(folder) / "datasets" / "data" / "digits.csv.gz" for folder in folders) if p.is_file()), None)
    if path is None:
        raise DatasetError("dataset", "digits is not there: scikit-learn's digits.csv.gz was not found", "pip install scikit-learn")
    return path
