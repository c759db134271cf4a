"""The two applications at the published scale, and at two that fit two cores: hours, and
minutes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ecrl_cli.config.schema import ModelConfig, OptimizerConfig


@dataclass(frozen=True)
class Size:
    """One application at one scale. `batch`: samples per worker and mini-batch. `scenarios`:
    published mini-batch -> the one used for it here.

    `whole`: every worker walks through the whole training set in its own order, so an epoch is as
    long as for one worker (NT3: 1,120 / 20 = 56). Otherwise the workers share the set (ResNet-50:
    100,000 / (8 x 32) = 390). `quiet`: residual branches start at zero (torchvision's
    `zero_init_residual`), so that a ResNet-50 learns within dozens of mini-batches.
    """

    model: ModelConfig
    optimizer: OptimizerConfig
    classes: int
    shape: tuple[int, ...]
    train: int
    held_out: int
    batch: int
    epochs: int
    whole: bool
    scenarios: dict[int, int]
    quiet: bool = False

    def per_epoch(self, workers: int) -> int:
        """Mini-batches in an epoch."""
        return self.train // (self.batch if self.whole else self.batch * workers)

    def mini_batches(self, workers: int) -> int:
        return self.epochs * self.per_epoch(workers)


# Rate, momentum and decay of the published ResNet-50 are not published; these are the usual ones.
# NT3's are the benchmark's: plain SGD, 0.001. The small ones have rates of their own, so that they
# learn something in a few dozen mini-batches.
_IMAGES = OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=5e-4)
_GENES = OptimizerConfig(lr=0.001, momentum=0.0, weight_decay=0.0)
_FASTER_IMAGES = OptimizerConfig(lr=0.02, momentum=0.9, weight_decay=5e-4)
_FASTER_GENES = OptimizerConfig(lr=0.1, momentum=0.0, weight_decay=0.0)
# with 0.1 all is learnt within the first of ten epochs
_SLOWER_GENES = OptimizerConfig(lr=0.02, momentum=0.0, weight_decay=0.0)

PAPER = {
    "resnet50": Size(
        ModelConfig("resnet50", stem="imagenet", width=64),
        _IMAGES,
        classes=200,
        shape=(3, 64, 64),
        train=100_000,
        held_out=10_000,
        batch=32,
        epochs=90,
        whole=False,
        scenarios={200: 200, 4_000: 4_000, 10_000: 10_000, 25_000: 25_000},
    ),
    "nt3": Size(
        ModelConfig("nt3", width=128, dropout=0.1),
        _GENES,
        classes=2,
        shape=(1, 1, 60_483),
        train=1_120,
        held_out=280,
        batch=20,
        epochs=10,
        whole=True,
        scenarios={10: 10, 250: 250, 500: 500},
    ),
}
# Of the published shapes where two cores can: images of 64 x 64 and profiles, learnt to a real
# accuracy. Scenarios lie at the published shares of the run (for ResNet-50 epochs 0, 10, 25 and 64
# of 90), none at an epoch boundary.
MIDDLE = {
    "resnet50": Size(
        ModelConfig("resnet50", stem="imagenet", width=8),
        _FASTER_IMAGES,
        classes=50,
        shape=(3, 64, 64),
        train=2_560,
        held_out=1_000,
        batch=8,
        epochs=18,
        whole=False,
        scenarios={200: 4, 4_000: 82, 10_000: 205, 25_000: 513},
        quiet=True,
    ),
    "nt3": Size(
        ModelConfig("nt3", width=16, dropout=0.1),
        _SLOWER_GENES,
        classes=2,
        shape=(1, 1, 1_200),
        train=1_120,
        held_out=1_000,
        batch=20,
        epochs=10,
        whole=True,
        scenarios={10: 10, 250: 250, 500: 500},
    ),
}
# Scenarios lie at about the same share of the run as the published ones, none at an epoch boundary.
SMALL = {
    "resnet50": Size(
        ModelConfig("resnet50", stem="imagenet", width=4),
        _FASTER_IMAGES,
        classes=8,
        shape=(3, 32, 32),
        train=512,
        held_out=400,
        batch=8,
        epochs=6,
        whole=False,
        scenarios={200: 2, 4_000: 6, 10_000: 14, 25_000: 34},
        quiet=True,
    ),
    "nt3": Size(
        ModelConfig("nt3", width=8, dropout=0.1),
        _FASTER_GENES,
        classes=2,
        shape=(1, 1, 600),
        train=200,
        held_out=400,
        batch=20,
        epochs=10,
        whole=True,
        scenarios={10: 2, 250: 45, 500: 89},
    ),
}
# For smoke tests: a small network with BatchNorm stands in for ResNet-50.
SMOKE = {
    "resnet50": Size(
        ModelConfig("small_cnn", width=4, depth=2),
        _FASTER_IMAGES,
        classes=3,
        shape=(3, 8, 8),
        train=48,
        held_out=24,
        batch=2,
        epochs=1,
        whole=False,
        scenarios={200: 2},
    ),
    "nt3": Size(
        ModelConfig("nt3", width=4, dropout=0.1),
        _FASTER_GENES,
        classes=2,
        shape=(1, 1, 120),
        train=24,
        held_out=24,
        batch=4,
        epochs=1,
        whole=True,
        scenarios={10: 2, 500: 5},
    ),
}
SIZES: dict[str, dict[str, Size]] = {
    "paper": PAPER,
    "middle": MIDDLE,
    "small": SMALL,
    "smoke": SMOKE,
}
