"""No bit of a step depends on where a restored tensor or a batch came from: training only computes
on memory at a multiple of 64 bytes.

Matrix products choose their kernels by the alignment of what they are given, and kernels differ in
the last bit. So whatever a state is restored from is copied into memory that torch allocates, and
so is each batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ecrl_cli.checkpoint.capture import train_state
from ecrl_cli.checkpoint.capture.loading import tensor_at
from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.capture.tensor_sources import spec_of
from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.format.canonical_json import parse
from ecrl_cli.checkpoint.format.image import TensorPlace
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.config.elastic import owned
from ecrl_cli.config.schema import ModelConfig, OptimizerConfig
from ecrl_cli.data import loading
from ecrl_cli.data.loading import BatchLoader, SampleBatch
from ecrl_cli.data.order import ResumableGlobalBatchSampler
from ecrl_cli.data.sample_set import ArraySet, DatasetInfo
from ecrl_cli.models import build
from ecrl_cli.models.optimization import build_optimizer, build_scheduler
from tests.unit.test_training_replicas import learner_of

ALIGNMENT = 64  # of every tensor that torch allocates on a CPU
OFFSETS = (4, 8, 16, 32)
WHERE = TrainPosition(1, 0, 1, 1337, "c" * 64)

MODELS = {
    "small_cnn": (ModelConfig("small_cnn", width=4, depth=2), (1, 8, 8)),
    "resnet18": (ModelConfig("resnet18", width=8, stem="cifar"), (1, 8, 8)),
    "vit": (ModelConfig("vit", width=16, depth=1, dropout=0.1), (1, 8, 8)),
}
OPTIMIZERS = {
    "sgd": OptimizerConfig("sgd", lr=0.1, momentum=0.9),
    "adamw": OptimizerConfig("adamw", lr=1e-3),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    torch.set_rng_state(before[1])


def lying_at(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy that begins `offset` bytes after a multiple of ALIGNMENT, or as near to that as its
    elements allow.
    """
    offset = offset // tensor.element_size() * tensor.element_size()
    room = torch.empty(tensor.nbytes + 2 * ALIGNMENT, dtype=torch.uint8)
    start = -room.data_ptr() % ALIGNMENT + offset
    copy = room[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)


def misaligned(tensors: dict[str, torch.Tensor]) -> list[str]:
    return [
        name for name, tensor in tensors.items() if tensor.numel() and tensor.data_ptr() % ALIGNMENT
    ]


class Training:
    """A model, its optimizer and samples, one of each by hand: what a rank trains."""

    def __init__(self, model: str, optimizer: str, seed: int = 7) -> None:
        config, self.shape = MODELS[model]
        torch.manual_seed(seed)
        self.model = build(config, 10, self.shape)
        self.optimizer = build_optimizer(OPTIMIZERS[optimizer], self.model.parameters())
        scheduler = build_scheduler(OPTIMIZERS[optimizer], self.optimizer, 50)
        self.train_state = TrainState(
            self.model,
            self.optimizer,
            scheduler,
            None,
            ResumableGlobalBatchSampler(64, 8, 1337),
            0,
            1,
        )

    def step(self, number: int) -> None:
        """Two updates: of a batch of two, and of one sample, where the kernels differ most."""
        draw = torch.Generator().manual_seed(number)
        self.optimizer.zero_grad()
        F.cross_entropy(
            self.model(torch.randn(2, *self.shape, generator=draw)),
            torch.randint(0, 10, (2,), generator=draw),
        ).backward()
        self.optimizer.step()
        self.model.eval()
        F.cross_entropy(
            self.model(torch.randn(1, *self.shape, generator=draw)), torch.tensor([3])
        ).backward()
        self.model.train()
        self.optimizer.step()

    def tensors(self) -> dict[str, torch.Tensor]:
        return {source.name: source.find() for source in self.train_state.sources()}

    def saved(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        gathered = self.train_state.gather(WHERE)
        tensors = {name: tensor.clone() for name, tensor in self.tensors().items()} | gathered.rng
        return tensors, parse(self.train_state.train_document(WHERE, gathered.line_chain))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_what_a_state_is_restored_from_may_lie_anywhere(model: str, optimizer: str) -> None:
    first = Training(model, optimizer)
    first.step(1)
    tensors, train = first.saved()
    first.step(2)
    first.step(3)
    after = first.train_state.digests()
    for offset in OFFSETS:
        found = {name: lying_at(tensor, offset) for name, tensor in tensors.items()}
        assert misaligned(found), "this test would see nothing"
        resumed = Training(model, optimizer, seed=99)
        resumed.train_state.become(found, train)
        assert not misaligned(resumed.tensors())
        resumed.step(2)
        resumed.step(3)
        assert resumed.train_state.digests() == after, offset


def test_a_state_from_shared_memory_or_from_another_rank_lies_aligned() -> None:
    first = Training("small_cnn", "adamw")
    first.step(1)
    tensors, train = first.saved()
    header, data = train_state.pack_state(first.train_state, WHERE)
    first.step(2)

    received = Training("small_cnn", "adamw", seed=99)
    train_state.unpack_state(received.train_state, header, lying_at(data, 4))

    memory, place, found = Memory.create(1 << 20), 12, {}
    for name, tensor in tensors.items():
        place = -(-place // 8) * 8 + 4 * (tensor.element_size() < 8)
        memory.view[place : place + tensor.nbytes] = (
            tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
        found[name] = tensor_at(memory.view, TensorPlace(spec_of(name, tensor), place))
        place += tensor.nbytes
    recalled = Training("small_cnn", "adamw", seed=99)
    recalled.train_state.become(found, train)
    del found
    memory.close()

    for resumed in (received, recalled):
        assert not misaligned(resumed.tensors())
        resumed.step(2)
        assert resumed.train_state.state_digest() == first.train_state.state_digest()


def test_a_batch_lies_aligned_wherever_its_arrays_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    traits = DatasetInfo("pictures", classes=5, shape=(1, 3, 3), mean=(0.5,), std=(0.25,))
    normalised = loading.normalised

    class Elsewhere(ArraySet):
        def fetch(self, ids: Any) -> Any:
            pixels, labels = super().fetch(ids)
            return pixels, lying_at(torch.from_numpy(labels), 8).numpy()

    monkeypatch.setattr(
        loading,
        "normalised",
        lambda *given: lying_at(torch.from_numpy(normalised(*given)), 4).numpy(),
    )
    samples = Elsewhere(
        traits,
        np.arange(144, dtype=np.uint8).reshape(16, 1, 3, 3),
        np.arange(16, dtype=np.int64) % 5,
    )
    for count in (1, 2, 3, 8):
        batch = BatchLoader(samples, 1, augment=False).batch(0, np.arange(count, dtype=np.int64))
        assert not misaligned({"x": batch.x, "y": batch.y})


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_replica_has_its_samples_aligned_under_every_world_size(world_size: int) -> None:
    """Three samples of five numbers: the slices of a batch begin at multiples of 60 bytes. One
    layer, which sees the batch as it is.
    """
    torch.manual_seed(1)
    model, replicas = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)), 4
    seen: list[dict[str, torch.Tensor]] = []
    model.register_forward_pre_hook(lambda module, given: seen.append({"x": given[0]}))
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(2))
    y = torch.arange(12) % 2
    for rank in range(world_size):
        part = owned(replicas, rank, world_size)
        rows = slice(part.start * 3, part.stop * 3)
        batch = SampleBatch(lying_at(x[rows], 4), y[rows], np.arange(12)[rows], "")
        # what this rank has is all there is
        learner_of(model, part=part, exchange=lambda tree: tree.sums[-1][1]).run(batch, 1)
    assert len(seen) == replicas and not [each for each in seen if misaligned(each)]
