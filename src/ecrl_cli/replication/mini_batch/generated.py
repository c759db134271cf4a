"""Synthetic data of the published shapes: images of any number of classes, and gene expression profiles of two tissues.

Both are learnable and neither is trivial. An image is its class's smooth colour pattern, shifted cyclically by up to an eighth of the side,
randomly mirrored and of random contrast, with a weaker pattern of another class and noise added: no single pixel tells the class. In a profile
each gene has its own level times the sample's depth, log-normal; in tumours one gene in twenty, in runs of neighbours, is shifted by less than its
spread within a class, so that only many genes together tell the class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ecrl_cli.data.sample_set import ArraySet, DatasetInfo

Floats = npt.NDArray[np.float32]
_WAVES, _NOISE, _OTHER = 4, 0.4, 0.3
_MOVED, _RUN, _SHIFT, _SPREAD, _DEPTH = 0.1, 10, 0.7, 0.8, 0.1


@dataclass(frozen=True)
class Split:
    """Training and held-out samples from the same distribution."""

    train: ArraySet
    held_out: ArraySet


def pictures(seed: int, classes: int, shape: tuple[int, int, int], train: int, held_out: int) -> Split:
    """`shape`: (channels, side, side). Class sizes differ by at most one."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, 1]))
    patterns = np.stack([_pattern(rng, shape) for _ in range(classes)])
    traits = DatasetInfo("pictures", classes, shape, mean=(0.5,) * shape[0], std=(0.25,) * shape[0])
    sets = []
    for size in (train, held_out):
        labels = rng.permutation(size) % classes
        pixels = np.stack([_picture(rng, patterns, int(label)) for label in labels])
        sets.append(ArraySet(traits, pixels, labels.astype(np.int64)))
    return Split(*sets)


def profiles(seed: int, features: int, train: int, held_out: int) -> Split:
    """Profiles like NT3's: half normal, half tumour; each gene divided by its maximum, as in the benchmark."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, 2]))
    level = rng.normal(0.0, 1.0, features)
    moved = np.zeros(features)
    for start in rng.integers(0, max(1, features - _RUN), max(1, round(features * _MOVED / _RUN))):
        moved[start : start + _RUN] = rng.choice((-1.0, 1.0)) * _SHIFT
    labels = np.concatenate([rng.permutation(size) % 2 for size in (train, held_out)])
    depth = rng.normal(0.0, _DEPTH, (len(labels), 1))
    values = np.exp(level + depth + labels[:, None] * moved + rng.normal(0.0, _SPREAD, (len(labels), features)))
    scaled = np.log1p(values) / np.log1p(values).max(axis=0)
    traits = DatasetInfo("profiles", 2, (1, 1, features), mean=(float(scaled.mean()),), std=(float(scaled.std()),), peak=1, flip=False)
    whole = scaled.astype(np.float32).reshape(-1, 1, 1, features)
    return Split(*(ArraySet(traits, whole[part], labels[part].astype(np.int64)) for part in (slice(0, train), slice(train, None))))


def _pattern(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Low-frequency waves per channel, with standard deviation one."""
    channels, height, width = shape
    y, x = np.meshgrid(np.linspace(0, 2 * np.pi, height, endpoint=False), np.linspace(0, 2 * np.pi, width, endpoint=False), indexing="ij")
    found = np.zeros(shape)
    for channel in range(channels):
        for _ in range(_WAVES):
            down, across = rng.integers(-3, 4, 2)
            found[channel] += rng.normal() * np.sin(down * y + across * x + rng.uniform(0, 2 * np.pi))
    pattern: Floats = ((found - found.mean()) / (found.std() + 1e-6)).astype(np.float32)
    return pattern


def _picture(rng: np.random.Generator, patterns: Floats, label: int) -> npt.NDArray[np.uint8]:
    own, other = patterns[label], patterns[rng.integers(len(patterns))]
    mixed = rng.uniform(0.6, 1.4) * _moved(rng, own) + _OTHER * _moved(rng, other) + rng.normal(0.0, _NOISE, own.shape)
    pixels: npt.NDArray[np.uint8] = np.clip(128 + 48 * mixed, 0, 255).astype(np.uint8)
    return pixels


def _moved(rng: np.random.Generator, pattern: Floats) -> Floats:
    most = pattern.shape[1] // 8
    down, across = rng.integers(-most, most + 1, 2)
    moved = np.roll(pattern, (down, across), axis=(1, 2))
    seen: Floats = moved[:, :, ::-1] if rng.integers(2) else moved
    return seen
