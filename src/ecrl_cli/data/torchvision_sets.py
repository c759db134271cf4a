"""The data sets read through torchvision: CIFAR-10 and CIFAR-100, a folder of images, and noise
without data.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import datasets, transforms

from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.data import preflight
from ecrl_cli.data.sample_set import ArraySet, DatasetInfo, Ids, Labels, Pixels, SampleSet
from ecrl_cli.errors import DatasetError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _without_sums(loader: Any) -> Any:
    """torchvision's `loader` without its MD5 check, which `preflight.check` does; all files must
    still exist.
    """
    train, test = (
        [[name, None] for name, _ in files] for files in (loader.train_list, loader.test_list)
    )
    return type(
        loader.__name__,
        (loader,),
        {"train_list": train, "test_list": test, "meta": {**loader.meta, "md5": None}},
    )


class CIFAR10WithIDs(ArraySet):
    """The 50,000 training images, or as many as the copy has (with `checksum=none` it is unpickled
    unchecked: use only a trusted copy).

    Held out: the official test images.
    """

    loader: Any = _without_sums(datasets.CIFAR10)
    look = DatasetInfo(
        "cifar10",
        classes=10,
        shape=(3, 32, 32),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    )

    def __init__(self, config: DatasetConfig, *, train: bool = True) -> None:
        preflight.check(config)
        self._config, self._train = config, train
        inner = _read_cifar(self.loader, config, train)
        labels = np.array(inner.targets, dtype=np.int64)
        _check_labels(config, len(inner.data), labels, self.look.classes)
        super().__init__(self.look, np.ascontiguousarray(inner.data.transpose(0, 3, 1, 2)), labels)

    def held_out(self) -> SampleSet | None:
        return type(self)(self._config, train=False) if self._train else None


class CIFAR100WithIDs(CIFAR10WithIDs):
    """Like CIFAR-10, with the 100 fine labels."""

    loader = _without_sums(datasets.CIFAR100)
    look = DatasetInfo(
        "cifar100",
        classes=100,
        shape=(3, 32, 32),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    )


def _read_cifar(loader: Any, config: DatasetConfig, train: bool) -> Any:
    folder = preflight.home(config)
    try:
        return loader(folder, train=train)
    except Exception as error:  # unpickling a damaged file may raise anything
        raise DatasetError(
            "dataset.root",
            f"{folder} cannot be read ({type(error).__name__}: {error})",
            "restore the files",
        ) from error


def _check_labels(config: DatasetConfig, images: int, labels: Labels, classes: int) -> None:
    if len(labels) != images or images == 0 or labels.min() < 0 or labels.max() >= classes:
        fact = (
            f"{preflight.home(config)} has {images} images and {len(labels)} labels, not as many of"
            f" each in 0..{classes - 1}"
        )
        raise DatasetError("dataset.root", fact, "restore the files")


class _ReadOneByOne(SampleSet):
    """A data set of torchvision's, `_inner`, whose samples are made one at a time."""

    _inner: Any

    def __len__(self) -> int:
        return len(self._inner)

    def fetch(self, ids: Ids) -> tuple[Pixels, Labels]:
        images, labels = zip(*(self._one(int(sample_id)) for sample_id in ids), strict=True)
        return np.stack(images), np.array(labels, dtype=np.int64)

    @abstractmethod
    def _one(self, sample_id: int) -> tuple[Pixels, int]:
        """Pixels (c, h, w) and the label of one sample."""


class ImageFolderWithIDs(_ReadOneByOne):
    """root/imagefolder/CLASS/... (or root/imagefolder/train/CLASS/...), every image resized to
    `image_size` square, read on demand.

    A sample id is the index in torchvision's order: classes by name, files by path. Held out:
    root/imagefolder/val/CLASS/... beside train/.
    """

    def __init__(self, config: DatasetConfig, folder: Path | None = None) -> None:
        preflight.check(config)
        side, self._config, self._held_out = config.image_size, config, folder is None
        self._inner = datasets.ImageFolder(
            str(folder or preflight.image_folder(config)), transform=transforms.Resize((side, side))
        )
        self.traits = DatasetInfo(
            "imagefolder", len(self._inner.classes), (3, side, side), IMAGENET_MEAN, IMAGENET_STD
        )

    def held_out(self) -> SampleSet | None:
        """DatasetError if its classes are not those of the training images."""
        folder = preflight.held_out_images(self._config) if self._held_out else None
        if folder is None:
            return None
        try:
            found = ImageFolderWithIDs(self._config, folder)
        except FileNotFoundError as error:  # torchvision's, for a class without images
            raise DatasetError(
                "dataset.root", f"{folder}: {error}", "put one folder per class of train/ there"
            ) from error
        if found._inner.classes != self._inner.classes:
            raise DatasetError(
                "dataset.root",
                f"the classes of {folder} are not those trained on",
                "put one folder per class of train/ there",
            )
        return found

    def _one(self, sample_id: int) -> tuple[Pixels, int]:
        try:
            image, label = self._inner[sample_id]
        except OSError as error:  # Pillow's errors too
            path = self._inner.samples[sample_id][0]
            raise DatasetError(
                "dataset.root",
                f"{path} (sample {sample_id}) cannot be read ({error})",
                "restore or remove that file",
            ) from error
        return np.asarray(image).transpose(2, 0, 1), label


class FakeDataWithIDs(_ReadOneByOne):
    """`size` images of noise, generated at each fetch from the sample id.

    torchvision's __getitem__ seeds the global RNG and restores the CPU's state but not the GPUs',
    which would change a run's dropout; here the same numbers come from a separate generator. Held
    out: a fifth as many, which are none of these.
    """

    def __init__(self, config: DatasetConfig, *, train: bool = True) -> None:
        self._config, self._train = config, train
        shape = (config.channels, config.image_size, config.image_size)
        half = (0.5,) * config.channels
        self.traits = DatasetInfo("fake", config.classes, shape, mean=half, std=half)
        size, first = (config.size, 0) if train else (-(-config.size // 5), config.size)
        self._inner = datasets.FakeData(size, shape, config.classes, random_offset=first)

    def held_out(self) -> SampleSet | None:
        return FakeDataWithIDs(self._config, train=False) if self._train else None

    def _one(self, sample_id: int) -> tuple[Pixels, int]:
        generator = torch.Generator().manual_seed(sample_id + self._inner.random_offset)
        image = torch.randn(self._inner.image_size, generator=generator)
        label = torch.randint(0, self._inner.num_classes, (1,), generator=generator)
        pixels: Pixels = image.mul(255).to(torch.int64).bitwise_and(255).to(torch.uint8).numpy()
        return pixels, int(label)
