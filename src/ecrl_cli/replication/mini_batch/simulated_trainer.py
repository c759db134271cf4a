"""The simulated run's model and optimizer, with a state that can be copied, restored, hashed and
saved; and its workers, computed one by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torchvision.models.resnet import Bottleneck

from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.capture.staging_buffer import CapturePlanner, StagingBuffer
from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.format.image import CheckpointImage, CheckpointMeta
from ecrl_cli.checkpoint.format.names import TRAIN
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.checkpoint.store.store import CheckpointStore, Saved, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import RUN_ID
from ecrl_cli.errors import EvidenceMissing
from ecrl_cli.linux.clock import monotonic, processor
from ecrl_cli.models import build
from ecrl_cli.models.optimization import build_optimizer
from ecrl_cli.replication.mini_batch.samples import Samples
from ecrl_cli.replication.mini_batch.sizes import Size


@dataclass(frozen=True)
class State:
    """A deep copy of the state. `moments`: optimizer tensors by parameter."""

    parameters: tuple[torch.Tensor, ...]
    buffers: tuple[torch.Tensor, ...]
    moments: tuple[dict[str, Any], ...]


class Cursor:
    """Progress: `done` mini-batches. The learning rate is constant, so this is also the schedule's
    whole state.
    """

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.done = int(state_dict.get("done", self.done))


class Trainee:
    """The one model that stands for all workers: synchronous workers are identical between
    mini-batches.
    """

    def __init__(self, size: Size, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = build(size.model, size.classes, size.shape)
        if size.quiet:
            _quieten(self.model)
        self.parameters = list(self.model.parameters())
        self.names = tuple(name for name, _ in self.model.named_parameters())
        self.buffers = list(self.model.buffers())
        self.optimizer = build_optimizer(size.optimizer, self.parameters)
        self.cursor = Cursor()
        self.train_state = TrainState(
            self.model, self.optimizer, self.cursor, None, Cursor(), rank=0, world_size=1
        )

    @property
    def nbytes(self) -> int:
        """Size of the parameters in bytes."""
        return sum(parameter.nbytes for parameter in self.parameters)

    def state(self) -> State:
        with torch.no_grad():
            parameters = tuple(parameter.detach().clone() for parameter in self.parameters)
            return State(
                parameters,
                self.buffers_now(),
                tuple(map(_copied, map(self._moments, self.parameters))),
            )

    def restore(self, state: State) -> None:
        """Restore `state` bit for bit; moments that did not exist then are removed."""
        with torch.no_grad():
            for target, saved in zip(self.parameters, state.parameters, strict=True):
                target.copy_(saved)
        self.put_buffers(state.buffers)
        self.optimizer.state.clear()
        for parameter, moments in zip(self.parameters, state.moments, strict=True):
            if moments:
                self.optimizer.state[parameter] = _copied(moments)

    def buffers_now(self) -> tuple[torch.Tensor, ...]:
        return tuple(buffer.detach().clone() for buffer in self.buffers)

    def put_buffers(self, saved: tuple[torch.Tensor, ...]) -> None:
        with torch.no_grad():
            for target, value in zip(self.buffers, saved, strict=True):
                target.copy_(value)

    def update(self, gradients: Mapping[int, torch.Tensor], *, zero_others: bool = False) -> None:
        """One optimizer step on the parameters (by index) in `gradients`.

        The others are left out of the step and stay unchanged. With `zero_others`, the published
        way, they take the step with zero gradients, and momentum and weight decay move them.
        """
        for index, parameter in enumerate(self.parameters):
            found = gradients.get(index)
            parameter.grad = torch.zeros_like(parameter) if found is None and zero_others else found
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def unmoved(self, before: State, indices: list[int]) -> bool:
        """Whether these parameters and their moments are bit for bit as in `before`."""
        return all(
            torch.equal(self.parameters[index], before.parameters[index])
            and _same(self._moments(self.parameters[index]), before.moments[index])
            for index in indices
        )

    def digest(self) -> str:
        """One digest of parameters, buffers and moments."""
        return self.train_state.state_digest()

    def _moments(self, parameter: torch.Tensor) -> dict[str, Any]:
        found: dict[str, Any] = self.optimizer.state.get(parameter, {})
        return found


def _quieten(model: torch.nn.Module) -> None:
    """Zero the weights of the last BatchNorm of every residual branch."""
    for module in model.modules():
        if isinstance(module, Bottleneck):
            torch.nn.init.zeros_(module.bn3.weight)


def _copied(moments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in moments.items()
    }


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    tensors = {
        key
        for moments in (one, other)
        for key, value in moments.items()
        if isinstance(value, torch.Tensor)
    }
    return all(key in one and key in other and torch.equal(one[key], other[key]) for key in tensors)


@dataclass(frozen=True)
class Pass:
    """One worker's result of one mini-batch. `gradients`: in backward order, incomplete if it died.
    `buffers`: after its forward pass.

    `seconds`: processor time.
    """

    worker: int
    gradients: tuple[torch.Tensor, ...]
    buffers: tuple[torch.Tensor, ...]
    loss: float
    seconds: float


class _Died(Exception):
    """Raised inside backward to stop a worker."""


class Workers:
    """`order`: parameter indices in the order in which backward finishes their gradients, observed
    once.
    """

    def __init__(self, trainee: Trainee, samples: Samples) -> None:
        self.trainee, self.samples = trainee, samples
        self._finished: list[int] = []
        self._until = len(trainee.parameters)
        for index, parameter in enumerate(trainee.parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(index))  # type: ignore[no-untyped-call]
        before = trainee.buffers_now()
        self.compute(1, 0)
        trainee.put_buffers(before)
        self.order = tuple(self._finished)

    @property
    def number(self) -> int:
        return self.samples.workers

    def all(self, mini_batch: int) -> list[Pass]:
        return self.some(mini_batch, range(self.number))

    def some(self, mini_batch: int, who: Iterable[int]) -> list[Pass]:
        """Passes of the workers `who` from the current state; afterwards the buffers are those of
        the first, the leader.
        """
        before = self.trainee.buffers_now()
        found = []
        for worker in who:
            self.trainee.put_buffers(before)
            found.append(self.compute(mini_batch, worker))
        self.trainee.put_buffers(found[0].buffers)
        return found

    def compute(self, mini_batch: int, worker: int, until: int | None = None) -> Pass:
        """Forward and backward of one worker, stopped once `until` gradients are there. Randomness
        depends on seed, mini-batch and worker.
        """
        x, y = self.samples.batch(mini_batch, worker)
        torch.manual_seed(_seed(self.samples.seed, mini_batch, worker))
        self._finished.clear()
        self._until = len(self.trainee.parameters) if until is None else until
        began = processor()
        loss = F.cross_entropy(self.trainee.model(x), y)
        if self._until:
            self._backward(loss)
        seconds = processor() - began
        gradients = tuple(self._take(index) for index in self._finished)
        return Pass(worker, gradients, self.trainee.buffers_now(), float(loss.detach()), seconds)

    def _backward(self, loss: torch.Tensor) -> None:
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except _Died:
            return

    def _hook(self, index: int) -> object:
        def finished(parameter: torch.Tensor) -> None:
            self._finished.append(index)
            if len(self._finished) == self._until < len(self.trainee.parameters):
                raise _Died

        return finished

    def _take(self, index: int) -> torch.Tensor:
        gradient = self.trainee.parameters[index].grad
        assert gradient is not None
        self.trainee.parameters[index].grad = None
        return gradient


def average(passes: Sequence[Pass], places: slice, divisor: int) -> list[torch.Tensor]:
    """Sum, from first to last worker, of the gradients at `places` of the backward order, divided
    by `divisor`.
    """
    total = [gradient.clone() for gradient in passes[0].gradients[places]]
    if total:
        for each in passes[1:]:
            torch._foreach_add_(total, list(each.gradients[places]))
        torch._foreach_div_(total, divisor)
    return total


def _seed(seed: int, mini_batch: int, worker: int) -> int:
    digest = hashlib.sha256(f"{seed}/{mini_batch}/{worker}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % 2**63


class SimulatedCheckpoints:
    """`saving_s`, `loading_s`: seconds per save and per load."""

    def __init__(self, folder: Path, trainee: Trainee) -> None:
        self._trainee = trainee
        self._store = CheckpointStore(folder, StoreConfig(keep=2))
        self._store.claim(0)
        self._snapshotter = CapturePlanner(trainee.train_state, "")
        self._slot: StagingBuffer | None = None
        self._latest: Saved | None = None
        self.saving_s: list[float] = []
        self.loading_s: list[float] = []

    def save(self, done: int) -> None:
        """Save the state after `done` mini-batches; returns once it is durable."""
        began = monotonic()
        progress = TrainPosition(done, 0, 0, 0, "")
        gathered = self._trainee.train_state.gather(progress)
        layout = self._snapshotter.refresh(gathered)
        if self._slot is None or self._slot.layout != layout:
            self._drop_slot()
            self._slot = StagingBuffer(
                Memory.create(layout.nbytes), layout, self._trainee.train_state.device
            )
        self._slot.capture(self._snapshotter.found)
        train = self._trainee.train_state.train_document(progress, gathered.line_chain)
        image = CheckpointImage(
            CheckpointMeta(RUN_ID, done, 0, 0, 0, 1),
            self._slot.memory.view,
            layout.parts(done, 0),
            {TRAIN: train},
        )
        self._latest = self._store.save(image, 0)
        self._store.update_pointers_and_retire(self._latest, image)
        self.saving_s.append(monotonic() - began)

    def restore(self) -> int:
        """Load the last saved state; returns the number of mini-batches done by then."""
        if self._latest is None:
            raise EvidenceMissing("checkpoint", "none has been taken", "save one first")
        began = monotonic()
        self._trainee.optimizer.state.clear()
        found = self._trainee.train_state.restore(self._latest.path, self._latest.commit_sha256)
        self.loading_s.append(monotonic() - began)
        return found.global_step

    def close(self) -> None:
        self._drop_slot()
        self._store.close()

    def _drop_slot(self) -> None:
        if self._slot is not None:
            self._slot.close()
            self._slot = None
