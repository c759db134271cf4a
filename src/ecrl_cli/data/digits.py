"""Handwritten digits, bundled with ECRL (see NOTICE): real data without a download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.data.sample_set import ArraySet, DatasetInfo

# Mean and standard deviation of all 1797 images; no flip: a mirrored digit is another digit or
# none.
TRAITS = DatasetInfo(
    "digits", classes=10, shape=(1, 8, 8), mean=(0.3053,), std=(0.3760,), peak=16, flip=False
)


# 1797 rows of 64 pixels and a label, as scikit-learn distributes them
FILE = Path(__file__).with_name("digits.csv.gz")


class DigitsWithIDs(ArraySet):
    """The data of `sklearn.datasets.load_digits`, all of it as the training set."""

    def __init__(self, config: DatasetConfig) -> None:
        table = np.loadtxt(FILE, delimiter=",", dtype=np.uint8)
        super().__init__(
            TRAITS, table[:, :-1].reshape(-1, *TRAITS.shape), table[:, -1].astype(np.int64)
        )
