"""Random images with random labels, equal to torchvision's FakeData: for tests of speed and size without data."""

from __future__ import annotations

import numpy as np
import torch
from torchvision import datasets

from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.data.sample_set import DatasetInfo, Ids, Labels, Pixels, SampleSet


class FakeDataWithIDs(SampleSet):
    """`size` images of noise, generated at each fetch from the sample id.

    torchvision's __getitem__ seeds the global RNG and restores the CPU's state but not the GPUs', which would change a run's dropout;
    here the same numbers come from a separate generator.
    """

    def __init__(self, config: DatasetConfig) -> None:
        shape = (config.channels, config.image_size, config.image_size)
        half = (0.5,) * config.channels
        self.traits = DatasetInfo("fake", config.classes, shape, mean=half, std=half)
        self._inner = datasets.FakeData(config.size, shape, config.classes)

    def __len__(self) -> int:
        return len(self._inner)

    def fetch(self, ids: Ids) -> tuple[Pixels, Labels]:
        images, labels = zip(*(self._one(int(sample_id)) for sample_id in ids), strict=True)
        return np.stack(images), np.array(labels, dtype=np.int64)

    def _one(self, sample_id: int) -> tuple[Pixels, int]:
        generator = torch.Generator().manual_seed(sample_id + self._inner.random_offset)
        image = torch.randn(self._inner.image_size, generator=generator)
        label = torch.randint(0, self._inner.num_classes, (1,), generator=generator)
        pixels: Pixels = image.mul(255).to(torch.int64).bitwise_and(255).to(torch.uint8).numpy()
        return pixels, int(label)
