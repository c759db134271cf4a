"""A folder of images, one folder per class, through torchvision's loader."""

from __future__ import annotations

import numpy as np
from torchvision import datasets, transforms

from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.data import preflight
from ecrl_cli.data.sample_set import DatasetInfo, Ids, Labels, Pixels, SampleSet
from ecrl_cli.errors import DatasetError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ImageFolderWithIDs(SampleSet):
    """root/imagefolder/CLASS/... (or root/imagefolder/train/CLASS/...), every image resized to `image_size` square, read on demand.

    A sample id is the index in torchvision's order: classes by name, files by path.
    """

    def __init__(self, config: DatasetConfig) -> None:
        preflight.check(config)
        side = config.image_size
        self._inner = datasets.ImageFolder(str(preflight.image_folder(config)), transform=transforms.Resize((side, side)))
        self.traits = DatasetInfo("imagefolder", len(self._inner.classes), (3, side, side), IMAGENET_MEAN, IMAGENET_STD)

    def __len__(self) -> int:
        return len(self._inner)

    def fetch(self, ids: Ids) -> tuple[Pixels, Labels]:
        images, labels = zip(*(self._one(int(sample_id)) for sample_id in ids), strict=True)
        return np.stack(images), np.array(labels, dtype=np.int64)

    def _one(self, sample_id: int) -> tuple[Pixels, int]:
        try:
            image, label = self._inner[sample_id]
        except OSError as error:  # Pillow's errors too
            path = self._inner.samples[sample_id][0]
            raise DatasetError("dataset.root", f"{path} (sample {sample_id}) cannot be read ({error})", "restore or remove that file") from error
        return np.asarray(image).transpose(2, 0, 1), label
