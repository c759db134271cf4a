"""The data sets by name. A data set's module is imported on demand only: digits works without torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecrl_cli.config.registry import Registry
from ecrl_cli.config.schema import DatasetConfig

if TYPE_CHECKING:
    from ecrl_cli.data.sample_set import SampleSet

# name -> builder: (DatasetConfig) -> SampleSet, or a map-style data set of tuples (x, y, id).
# An installed package adds its own under the entry-point group.
REGISTRY = Registry(
    kind="dataset",
    group="ecrl.datasets",
    builtin={
        "digits": "ecrl_cli.data.digits:DigitsWithIDs",
        "cifar10": "ecrl_cli.data.torchvision_sets:CIFAR10WithIDs",
        "cifar100": "ecrl_cli.data.torchvision_sets:CIFAR100WithIDs",
        "imagefolder": "ecrl_cli.data.torchvision_sets:ImageFolderWithIDs",
        "tinyimagenet": "ecrl_cli.data.tinyimagenet:TinyImageNetWithIDs",
        "nt3": "ecrl_cli.data.nt3:NT3WithIDs",
        "fake": "ecrl_cli.data.torchvision_sets:FakeDataWithIDs",
    },
)


def build_dataset(config: DatasetConfig) -> SampleSet:
    """The training set that `config` describes. Downloads nothing: `preflight.prepare` does that before, in one process."""
    from ecrl_cli.data.sample_set import SampleSet  # imports torch
    from ecrl_cli.data.tuple_set import TupleSet

    dataset = REGISTRY.load(config.name)(config)
    return dataset if isinstance(dataset, SampleSet) else TupleSet(config.name, dataset)
