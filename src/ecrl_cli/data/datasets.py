"""The data sets by name, and the one that comes with ECRL. Another one's module is imported on demand only: digits works without torchvision."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ecrl_cli.config.registry import Registry
from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.data.sample_set import ArraySet, DatasetInfo, SampleSet

# name -> builder: (DatasetConfig) -> SampleSet; an installed package adds its own under the entry-point group.
REGISTRY = Registry(
    kind="dataset",
    group="ecrl.datasets",
    builtin={
        "digits": "ecrl_cli.data.datasets:DigitsWithIDs",
        "cifar10": "ecrl_cli.data.torchvision_sets:CIFAR10WithIDs",
        "cifar100": "ecrl_cli.data.torchvision_sets:CIFAR100WithIDs",
        "imagefolder": "ecrl_cli.data.torchvision_sets:ImageFolderWithIDs",
        "tinyimagenet": "ecrl_cli.data.tinyimagenet:TinyImageNetWithIDs",
        "nt3": "ecrl_cli.data.nt3:NT3WithIDs",
        "fake": "ecrl_cli.data.torchvision_sets:FakeDataWithIDs",
    },
)

DIGITS_FILE = Path(__file__).with_name("digits.csv.gz")  # 1797 rows of 64 pixels and a label, as scikit-learn distributes them
# Mean and standard deviation of all 1797 images; no flip: a mirrored digit is another digit or none.
DIGITS = DatasetInfo("digits", classes=10, shape=(1, 8, 8), mean=(0.3053,), std=(0.3760,), peak=16, flip=False)


def build_dataset(config: DatasetConfig) -> SampleSet:
    """The training set that `config` describes. Downloads nothing: `preflight.prepare` does that before, in one process."""
    dataset: SampleSet = REGISTRY.load(config.name)(config)
    return dataset


class DigitsWithIDs(ArraySet):
    """The data of `sklearn.datasets.load_digits`, all of it as the training set."""

    def __init__(self, config: DatasetConfig) -> None:
        table = np.loadtxt(DIGITS_FILE, delimiter=",", dtype=np.uint8)
        super().__init__(DIGITS, table[:, :-1].reshape(-1, *DIGITS.shape), table[:, -1].astype(np.int64))
