"""TrainState: everything a step depends on, and how it is named, gathered, digested, restored and
sent to a rank that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ecrl_cli.checkpoint.capture.loading import load_checkpoint
from ecrl_cli.checkpoint.capture.rng import capture_rng, restore_rng
from ecrl_cli.checkpoint.capture.tensor_sources import (
    TensorSource,
    dtype_of,
    model_sources,
    optimizer_sources,
    parameter_names,
    raw,
    signature,
    spec_of,
)
from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest, parse
from ecrl_cli.checkpoint.format.hashing import tensor_digest
from ecrl_cli.checkpoint.format.image import TensorSpec
from ecrl_cli.checkpoint.format.manifest import Components, components_of
from ecrl_cli.checkpoint.format.names import DIGEST, TRAIN_VERSION
from ecrl_cli.checkpoint.format.train_document import (
    NOWHERE,
    TrainPosition,
    rng_digest,
    train_digest,
)
from ecrl_cli.errors import ConfigError, StorageError
from ecrl_cli.records.state_digests import RankState

_CHAIN = 64  # hex digits of a rank's line chain; zeros before the first line
_DIGEST = 32  # bytes of a digest


class Collectives(Protocol):
    """Barrier and all-gather; not called with a world size of 1."""

    def barrier(self) -> None:
        """Return once every rank has called it."""

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """`own` of every rank, in rank order."""


class DefaultGroup:
    """The default process group."""

    def barrier(self) -> None:
        dist.barrier()

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, own)
        return rows


class Sampler(Protocol):
    """The data order's cursor."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Stateful(Protocol):
    """A scheduler or a gradient scaler: its state is JSON."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class RankStates:
    """Each rank's own state: RNG states (`rng.rankR.*`; `rng.shared.*` if equal on all ranks) and
    line chains. Gathering it is a barrier.
    """

    rng: dict[str, torch.Tensor]
    line_chain: list[str]


@dataclass(frozen=True)
class StepSettings:
    """The settings of the next step: learning rate; with a gradient scaler, its scale and growth
    tracker.
    """

    lr: float
    loss_scale: float | None = None
    growth_tracker: int | None = None


@dataclass(frozen=True)
class StateDigests:
    """`state`: one digest of parameters, buffers and optimizer; `rank`: one for each component."""

    state: str
    rank: RankState


@dataclass
class TrainState:
    """The live objects of one rank. `model`: not wrapped in DDP; `peers`: the collectives of its
    attempt.
    `shared_rng`: all ranks have the same RNG state whenever it is gathered, so it is saved once,
    whatever the world size.
    `digest`: the run's checkpoint.digest.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Stateful
    scaler: Stateful | None
    sampler: Sampler
    rank: int
    world_size: int
    peers: Collectives = field(default_factory=DefaultGroup)
    shared_rng: bool = False
    digest: str = DIGEST

    def __post_init__(self) -> None:
        self._names = parameter_names(self.model, self.optimizer)
        self._known: tuple[tuple[int, int], list[TensorSource]] | None = None
        # line chains of ranks dropped when the world shrank, carried along for verify
        self._departed: list[str] = []
        self.device = next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def sources(self) -> list[TensorSource]:
        """The tensors that model and optimizer have now."""
        return model_sources(self.model) + optimizer_sources(self.optimizer, self._names)

    def signature(self) -> tuple[int, int]:
        return signature(self.optimizer)

    def gather(self, progress: TrainPosition) -> RankStates:
        """RNG states and line chain of every rank, on every rank, by one all-gather, which is also
        a barrier.
        """
        own = capture_rng(self.device)
        chain = torch.tensor(
            list(progress.line_chain.ljust(_CHAIN, "\0").encode()), dtype=torch.uint8
        )
        row = torch.cat([*own.values(), chain])
        rows = self.peers.all_gather(row) if self.world_size > 1 else [row]
        sizes = [state.numel() for state in own.values()]
        split = [torch.split(each, [*sizes, _CHAIN]) for each in rows]
        owners = (
            {"shared": split[self.rank]}
            if self.shared_rng
            else {f"rank{r}": parts for r, parts in enumerate(split)}
        )
        rng = {
            f"rng.{owner}.{name}": part
            for owner, parts in owners.items()
            for name, part in zip(own, parts, strict=False)
        }
        return RankStates(
            rng, [bytes(parts[-1].tolist()).rstrip(b"\0").decode() for parts in split]
        )

    def barrier(self) -> None:
        if self.world_size > 1:
            self.peers.barrier()

    def train_document(self, progress: TrainPosition, line_chain: list[str]) -> bytes:
        """The bytes of train.json: all state that is not a tensor. ConfigError if some of it is not
        JSON.
        """
        document = {
            "schema_version": TRAIN_VERSION,
            "world_size": self.world_size,
            "line_chain": [*line_chain, *self._departed],
            "loss": progress.loss,
            **self._train_state(progress),
        }
        try:
            return canonical_json(document)
        except (TypeError, ValueError) as error:
            raise _not_json(error) from error

    def _train_state(self, progress: TrainPosition) -> dict[str, Any]:
        """The part of train.json that is the same on all ranks (`train_document.TRAIN_STATE`)."""
        return {
            "global_step": progress.global_step,
            "sampler": {
                "epoch": progress.epoch,
                "cursor_step": progress.cursor_step,
                "seed": progress.seed,
            },
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler is not None else None,
            "optimizer": self._optimizer_document(),
        }

    def digests(self) -> Components:
        """The digests of the current state, defined as in the manifest. Collective."""
        gathered = self.gather(NOWHERE)
        return components_of(
            self._tensor_digests({})
            | {name: self._digest_of(name, tensor) for name, tensor in gathered.rng.items()}
        )

    def step_settings(self) -> StepSettings:
        scaler = (self.scaler.state_dict() if self.scaler is not None else None) or {}
        return StepSettings(
            float(self.optimizer.param_groups[0]["lr"]),
            scaler.get("scale"),
            scaler.get("_growth_tracker"),
        )

    def rank_digests(self, progress: TrainPosition) -> StateDigests:
        """Digests of this rank's current state. Not collective. Tensors are looked up again only if
        the optimizer's `signature` has changed.
        """
        signature = self.signature()
        if self._known is None or self._known[0] != signature:
            self._known = signature, self.sources()
        tensors = {
            source.name: self._digest_of(source.name, source.find()) for source in self._known[1]
        }
        rng = {
            name: self._digest_of(name, state) for name, state in capture_rng(self.device).items()
        }
        try:
            train = train_digest(self._train_state(progress))
        except (TypeError, ValueError) as error:
            raise _not_json(error) from error
        found = components_of(tensors)
        rank = RankState(
            self.rank, found.parameters, found.buffers, found.optimizer, rng_digest(rng), train
        )
        return StateDigests(digest(sorted(tensors.items())), rank)

    def rank_states(self, progress: TrainPosition) -> tuple[RankState, ...]:
        """The digests of every rank, in rank order. Collective."""
        own = self.rank_digests(progress).rank
        if self.world_size == 1:
            return (own,)
        texts = (own.parameters, own.buffers, own.optimizer, own.rng, own.train)
        rows = self.peers.all_gather(
            torch.tensor(list(bytes.fromhex("".join(texts))), dtype=torch.uint8)
        )
        hexes = [bytes(row.tolist()).hex() for row in rows]
        width = 2 * _DIGEST
        return tuple(
            RankState(rank, *(text[i : i + width] for i in range(0, len(text), width)))
            for rank, text in enumerate(hexes)
        )

    def state_digest(self, instead: Mapping[torch.Tensor, torch.Tensor] | None = None) -> str:
        """One digest of parameters, buffers and optimizer on this rank; equal on all ranks in sync.
        Not collective. `instead`: by tensor, the one whose values count.
        """
        return digest(sorted(self._tensor_digests(instead or {}).items()))

    def restore(self, path: Path, commit_sha256: str, finite: str = "all") -> TrainPosition:
        """Restore the checkpoint at `path` bit for bit, RNG last; returns this rank's position.

        Every byte is read once and hashed as it is read. StorageError if it is not the checkpoint
        that was committed as `commit_sha256`; ConfigError if it holds the state of another model or
        optimizer.
        """
        loaded = load_checkpoint(path, commit_sha256, finite)
        try:
            return self.become(loaded.tensors, loaded.train)
        except (KeyError, TypeError) as error:
            raise StorageError(
                "restore",
                f"{path.name}: train.json lacks what is needed ({error})",
                "resume from another checkpoint",
            ) from error

    def become(self, tensors: dict[str, torch.Tensor], train: dict[str, Any]) -> TrainPosition:
        """Load a state from its `tensors` by name and its `train_document`, parsed; returns this
        rank's position.
        """
        self._restore_model(tensors)
        self._restore_optimizer(tensors, train["optimizer"])
        self.scheduler.load_state_dict(train["scheduler"])
        self._restore_groups(train["optimizer"]["param_groups"])
        return self._restore_rest(tensors, train)

    def _restore_model(self, tensors: dict[str, torch.Tensor]) -> None:
        sources = {source.name: source for source in model_sources(self.model)}
        expected = {name for name in tensors if name.startswith(("parameters.", "buffers."))}
        if different := sorted(expected ^ sources.keys()):
            raise _other_model(different[0])
        with torch.no_grad():
            for name, source in sources.items():
                target, saved = source.find(), tensors[name]
                if spec_of(name, target) != spec_of(name, saved):
                    raise _other_model(name)
                target.copy_(saved)

    def _restore_optimizer(
        self, tensors: dict[str, torch.Tensor], document: dict[str, Any]
    ) -> None:
        parameters = {name: parameter for parameter, name in self._names.items()}
        host = set(document["host_keys"])
        state: dict[str, dict[str, Any]] = {
            name: dict(scalars) for name, scalars in document["scalars"].items()
        }
        for name, tensor in tensors.items():
            if name.startswith("optimizer."):
                owner, _, key = name.removeprefix("optimizer.").rpartition(".")
                if owner not in parameters:
                    raise _other_optimizer(name)
                state.setdefault(owner, {})[key] = tensor.to(
                    "cpu" if key in host else parameters[owner].device, copy=True
                )
        self.optimizer.state.clear()
        for name, entries in state.items():
            self.optimizer.state[parameters[name]] = entries

    def _restore_groups(self, saved: list[dict[str, Any]]) -> None:
        groups = self.optimizer.param_groups
        if [group["params"] for group in saved] != [
            [self._names[p] for p in group["params"]] for group in groups
        ]:
            raise _other_optimizer("param_groups")
        for group, values in zip(groups, saved, strict=True):
            if group.keys() != values.keys():
                raise _other_optimizer(sorted(group.keys() ^ values.keys())[0])
            group.update(
                {
                    key: tuple(value) if isinstance(group[key], tuple) else value
                    for key, value in values.items()
                    if key != "params"
                }
            )

    def _restore_rest(
        self, tensors: dict[str, torch.Tensor], train: dict[str, Any]
    ) -> TrainPosition:
        if self.scaler is not None and train["scaler"]:
            self.scaler.load_state_dict(train["scaler"])
        self.sampler.load_state_dict(train["sampler"])
        prefix = "rng.shared." if self.shared_rng else f"rng.rank{self.rank}."
        states = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        chain = train["line_chain"]
        if states:  # a rank that did not exist when the checkpoint was taken keeps its own seed
            restore_rng(states, self.device)
        self._departed = chain[self.world_size :]
        own = chain[self.rank] if self.rank < len(chain) else ""
        return TrainPosition(
            global_step=train["global_step"],
            line_chain=own,
            loss=train.get("loss"),
            **train["sampler"],
        )

    def _optimizer_document(self) -> dict[str, Any]:
        names, state = self._names, self.optimizer.state
        groups = [
            {**group, "params": [names[p] for p in group["params"]]}
            for group in self.optimizer.param_groups
        ]
        scalars = {
            names[p]: {k: v for k, v in entries.items() if not isinstance(v, torch.Tensor)}
            for p, entries in state.items()
        }
        pairs = [
            (parameter, key, value)
            for parameter, entries in state.items()
            for key, value in entries.items()
        ]
        host = {
            key
            for parameter, key, value in pairs
            if isinstance(value, torch.Tensor)
            and value.device.type == "cpu" != parameter.device.type
        }
        return {
            "param_groups": groups,
            "scalars": {name: values for name, values in scalars.items() if values},
            "host_keys": sorted(host),
        }

    def _tensor_digests(self, instead: Mapping[torch.Tensor, torch.Tensor]) -> dict[str, str]:
        live = {source.name: source.find() for source in self.sources()}
        return {name: self._digest_of(name, instead.get(each, each)) for name, each in live.items()}

    def _digest_of(self, name: str, tensor: torch.Tensor) -> str:
        spec = spec_of(name, tensor)
        data = raw(tensor).numpy()
        return tensor_digest(spec.dtype, spec.shape, data.data if data.size else b"", self.digest)


def _not_json(error: Exception) -> ConfigError:
    fact = f"optimizer, scheduler or scaler have state that is neither a tensor nor JSON ({error})"
    return ConfigError(
        "checkpoint", fact, "use one whose state_dict holds numbers, strings and tensors"
    )


def _other_model(name: str) -> ConfigError:
    fact = f"the checkpoint holds the state of another model (first difference: {name})"
    return ConfigError("model", fact, "restore the configuration or start a new run")


def _other_optimizer(name: str) -> ConfigError:
    fact = f"the checkpoint holds the state of another optimizer (first difference: {name})"
    return ConfigError("optimizer", fact, "restore the configuration or start a new run")


def pack_state(train_state: TrainState, progress: TrainPosition) -> tuple[bytes, torch.Tensor]:
    """Header and bytes of the state in `train_state`, without RNG states and line chains, which
    belong to each rank.
    """
    tensors = {source.name: source.find() for source in train_state.sources()}
    table = [
        [name, spec.dtype, list(spec.shape)]
        for name, tensor in tensors.items()
        for spec in [spec_of(name, tensor)]
    ]
    header = canonical_json(
        {"train": parse(train_state.train_document(progress, [])), "tensors": table}
    )
    return header, torch.cat([raw(tensor) for tensor in tensors.values()])


def size_of(header: bytes) -> int:
    """Size in bytes of the second message, from the first."""
    return sum(spec.nbytes for spec in _specs(parse(header)))


def unpack_state(train_state: TrainState, header: bytes, data: torch.Tensor) -> TrainPosition:
    """Load the two messages into `train_state`; returns this rank's position."""
    document = parse(header)
    specs = _specs(document)
    parts = torch.split(data, [spec.nbytes for spec in specs])
    tensors = {
        spec.name: part.clone().view(dtype_of(spec)).view(spec.shape)
        for spec, part in zip(specs, parts, strict=True)
    }
    return train_state.become(tensors, document["train"])


def _specs(document: dict[str, Any]) -> list[TensorSpec]:
    return [TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in document["tensors"]]
