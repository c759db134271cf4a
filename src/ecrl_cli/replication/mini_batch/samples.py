"""Assigns an application's samples to workers and mini-batches, and keeps the held-out ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.config.studies import MiniBatchFailure
from ecrl_cli.data.nt3 import NT3WithIDs
from ecrl_cli.data.order import Ids, epoch_order, position, shard, window
from ecrl_cli.data.sample_set import SampleSet, normalised
from ecrl_cli.data.tinyimagenet import TinyImageNetWithIDs
from ecrl_cli.errors import DatasetError
from ecrl_cli.replication.mini_batch.generated import Split, pictures, profiles
from ecrl_cli.replication.mini_batch.sizes import Size

_EVALUATED = 256  # evaluation batch size


@dataclass(frozen=True)
class Samples:
    """Samples for `workers` logical workers on `size`; mini-batches count from 1. `train_ids`, `held_out_ids`: indices into the data set. The
    order depends on the seed, the epoch and, where each worker walks through the whole set, the worker: a spare in a dead worker's place assembles
    the same mini-batch."""

    size: Size
    train: SampleSet
    held_out: SampleSet
    train_ids: Ids
    held_out_ids: Ids
    seed: int
    workers: int

    @property
    def per_epoch(self) -> int:
        return self.size.per_epoch(self.workers)

    def ids(self, mini_batch: int, worker: int) -> Ids:
        """The sample ids of `worker` in a mini-batch."""
        epoch, step = position(mini_batch, self.per_epoch)
        if self.size.whole:
            return self.train_ids[window(_own_order(self.seed, epoch, worker, self.size.train), step, self.size.batch)]
        together = self.size.batch * self.workers
        return self.train_ids[shard(window(_common_order(self.seed, epoch, self.size.train, together), step, together), worker, self.workers)]

    def window(self, mini_batch: int) -> tuple[int, ...]:
        """All sample ids of the mini-batch, worker by worker."""
        return tuple(int(each) for worker in range(self.workers) for each in self.ids(mini_batch, worker))

    def batch(self, mini_batch: int, worker: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _tensors(self.train, self.ids(mini_batch, worker))

    @torch.no_grad()
    def accuracy(self, model: torch.nn.Module) -> tuple[float, float | None]:
        """Held-out accuracy of `model`, and its mean loss if finite. Leaves the model's buffers unchanged."""
        model.eval()
        right, loss = 0, 0.0
        for start in range(0, self.size.held_out, _EVALUATED):
            x, y = _tensors(self.held_out, self.held_out_ids[start : start + _EVALUATED])
            scores = model(x)
            right += int((scores.argmax(dim=1) == y).sum())
            loss += float(torch.nn.functional.cross_entropy(scores, y, reduction="sum"))
        model.train()
        return right / self.size.held_out, loss / self.size.held_out if math.isfinite(loss) else None


def samples_of(config: MiniBatchFailure, application: str, size: Size, seed: int) -> Samples:
    """The data of one run. Raises DatasetError with the download address if files are missing."""
    split = _read(config, application) if config.data == "files" else _made(size, seed)
    traits = split.train.traits
    fitting = replace(size, classes=traits.classes, shape=traits.shape)
    chosen = (_chosen(application, split.train, size.train, seed), _chosen(application, split.held_out, size.held_out, seed))
    return Samples(fitting, split.train, split.held_out, *chosen, seed, config.replicas)


def _chosen(application: str, samples: SampleSet, number: int, seed: int) -> Ids:
    """`number` of the samples, drawn at random if there are more."""
    if len(samples) < number:
        fact = f"{application} has {len(samples)} samples, this scale needs {number}"
        raise DatasetError("study.root", fact, "restore the files or use a smaller study.scale")
    if len(samples) == number:
        return np.arange(number, dtype=np.int64)
    return np.sort(epoch_order(seed, 0, len(samples))[:number])


@dataclass(frozen=True)
class _Files:
    train: SampleSet
    held_out: SampleSet


def _made(size: Size, seed: int) -> Split:
    if size.shape[0] == 1:
        return profiles(seed, size.shape[2], size.train, size.held_out)
    return pictures(seed, size.classes, size.shape, size.train, size.held_out)


def _read(config: MiniBatchFailure, application: str) -> _Files:
    if application == "nt3":
        where = DatasetConfig(name="nt3", root=config.root)
        return _Files(NT3WithIDs(where), NT3WithIDs(where, "test"))
    where = DatasetConfig(name="tinyimagenet", root=config.root)
    return _Files(TinyImageNetWithIDs(where), TinyImageNetWithIDs(where, "val"))


def _tensors(samples: SampleSet, ids: Ids) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = samples.fetch(ids)
    return torch.from_numpy(normalised(pixels, samples.traits)), torch.from_numpy(labels)


@lru_cache(maxsize=16)
def _common_order(seed: int, epoch: int, size: int, together: int) -> Ids:
    return epoch_order(seed, epoch, size, together)


@lru_cache(maxsize=64)
def _own_order(seed: int, epoch: int, worker: int, size: int) -> Ids:
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch, worker])))
    return generator.permutation(size).astype(np.int64, copy=False)
