"""The data sets by name. A data set's module is imported on demand only: digits works without
torchvision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecrl_cli.config.registry import Registry
from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.errors import DatasetError

if TYPE_CHECKING:
    from ecrl_cli.data.sample_set import SampleSet

# name -> builder: (DatasetConfig) -> SampleSet, or a map-style data set of tuples (x, y, id): the
# training set, which may offer held-out samples. An installed package adds its own under the
# entry-point group.
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
    """The training set that `config` describes. Downloads nothing: `preflight.prepare` does that
    before, in one process.
    """
    from ecrl_cli.data.sample_set import SampleSet, TupleSet, without  # imports torch

    built = REGISTRY.load(config.name)(config)
    dataset = built if isinstance(built, SampleSet) else TupleSet(config.name, built)
    return without(dataset, config.held_out) if config.held_out else dataset


def held_out_of(dataset: SampleSet) -> SampleSet:
    """The held-out samples that quality is measured on beside the training set `dataset`.
    DatasetError where there are none, or they are of another kind.
    """
    held_out, name = dataset.held_out(), dataset.traits.name
    if held_out is None or not len(held_out):
        raise no_held_out(name)
    ours, theirs = dataset.traits, held_out.traits
    if (ours.classes, ours.shape) != (theirs.classes, theirs.shape):
        kinds = f"{theirs.classes} classes of {theirs.shape}, {ours.classes} of {ours.shape}"
        raise DatasetError(
            "dataset",
            f"the held-out samples of {name} are not like those it trains on ({kinds})",
            "mend its package, or leave evaluate.every out",
        )
    return held_out


def no_held_out(name: str) -> DatasetError:
    """The error for an evaluation where there is nothing to evaluate on."""
    return DatasetError(
        "evaluate.every",
        f"{name} has no held-out data: every sample is trained on",
        "hold some out: dataset.held_out=N",
    )
