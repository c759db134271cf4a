"""How a state becomes a checkpoint: one object per strategy with all its properties. Torch-free.

From another package: a `StrategyKind` as an entry point in the group `ecrl.strategies`.
tests/contract/test_strategies.py checks each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ecrl_cli.config.checkpointers import (
    DCP,
    DCP_ASYNC,
    TORCH_CHECKPOINTING,
    TORCH_SAVE,
    TORCH_SAVE_DURABLE,
    TORCHSNAPSHOT,
    CheckpointerKind,
)
from ecrl_cli.config.recoveries import recovery_of, survivors_stay
from ecrl_cli.config.registry import VariantRegistry, import_attribute
from ecrl_cli.config.schema import CheckpointConfig, RunConfig
from ecrl_cli.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class StrategyKind:
    """`description`: one sentence, also the first of conf/checkpoint/NAME.yaml.

    `implementation`: "module:attribute" of a class with the methods of
    checkpoint/strategies/strategy.py; its `make(inputs)` gives one for a rank.
    `saves`: checkpoints are written. `background`: by the writer process, while the ranks compute,
    up to `checkpoint.max_inflight` at once; otherwise by rank 0, while the others wait. verify
    derives from it what may cause a missing checkpoint, and which parts a stall can have.
    `snapshots`: how many snapshots are in shared memory that survives the ranks (every
    `checkpoint.memory_every` steps one is replaced): an attempt may resume from them, which verify
    accepts for no other strategy.
    `checkpointer`: who writes the files, in a format of its own; None: ECRL's store.
    `defers`: whether it can leave the copying to the background writer
    (checkpoint.capture=deferred).
    """

    name: str
    description: str
    implementation: str
    saves: bool = True
    background: bool = False
    snapshots: int = 0
    checkpointer: CheckpointerKind | None = None
    defers: bool = False

    @property
    def needs_writer(self) -> bool:
        """Whether the background writer of the supervisor writes."""
        return self.background and self.checkpointer is None

    @property
    def writes_in_rank(self) -> bool:
        """Whether rank 0's process writes, in a step or beside it."""
        return self.saves and not self.needs_writer

    @property
    def writes_in_step(self) -> bool:
        """Whether rank 0's training thread writes: a stall then consists of write, hash, commit and
        settle, never backpressure or enqueue.
        """
        return self.saves and not self.background

    def in_flight(self, checkpoint: CheckpointConfig) -> int:
        """How many submitted checkpoints may be unfinished at once."""
        return checkpoint.max_inflight if self.needs_writer else int(self.saves)

    def load(self) -> Any:
        """Imports the class `implementation` (and torch)."""
        return import_attribute("checkpoint", self.name, self.implementation)

    def refuse(self, config: RunConfig) -> None:
        """ConfigError for the first thing in `config` that cannot be combined with this
        strategy.
        """
        checkpoint, nodes = config.checkpoint, config.supervision.nodes
        if self.snapshots and nodes > 1:
            fact = f"{self.name} keeps its snapshots on one machine, supervision.nodes is {nodes}"
            raise ConfigError(
                "checkpoint", fact, "use checkpoint=overlapped or supervision.nodes=1"
            )
        if config.elastic.schedule and not self.saves:
            fact = (
                f"a change of the size goes on from a checkpoint, checkpoint={self.name} takes none"
            )
            raise ConfigError("elastic.schedule", fact, "add checkpoint=blocking")
        if checkpoint.memory_every != 1 and self.saves and not self.snapshots:
            raise ConfigError(
                "checkpoint.memory_every",
                f"checkpoint={self.name} keeps nothing in memory",
                "add checkpoint=in_memory",
            )
        if checkpoint.capture == "deferred" and self.saves:
            if not self.defers:
                fact = f"checkpoint={self.name} has nobody who would copy while training goes on"
                raise ConfigError(
                    "checkpoint.capture",
                    fact,
                    "use checkpoint=overlapped or checkpoint.capture=copy",
                )
            if checkpoint.format == "torch":
                fact = "a .pt file is serialised by the training process, which needs the copy"
                raise ConfigError(
                    "checkpoint.capture",
                    fact,
                    "use checkpoint.format=safetensors or checkpoint.capture=copy",
                )
        if self.checkpointer:
            _refuse_foreign(config, self.name, self.checkpointer)


def _refuse_foreign(config: RunConfig, name: str, kind: CheckpointerKind) -> None:
    """ConfigError for the first thing in `config` that only ECRL's own store has, or that only its
    own format can be resumed with.
    """
    checkpoint = config.checkpoint
    asked: dict[str, bool] = {
        "write_mode": config.write_mode.name != "atomic_dirsync",
        "checkpoint.layout": checkpoint.layout != "group",
        "checkpoint.format": checkpoint.format != "safetensors",
        "checkpoint.finite": checkpoint.finite != "all",
        "checkpoint.hmac_key_file": bool(checkpoint.hmac_key_file),
        "storage.bytes_per_s": config.storage.bytes_per_s > 0,
    }
    for key, wrong in asked.items():
        if wrong:
            raise ConfigError(
                key,
                f"is of ECRL's own store, checkpoint={name} writes as {kind.name} does",
                "leave it out, or use checkpoint=blocking",
            )
    if config.elastic.schedule:
        raise ConfigError(
            "elastic.schedule",
            f"checkpoint={name} goes on with as many ranks as saved",
            "use checkpoint=blocking",
        )
    if survivors_stay(config):
        fact = f"checkpoint={name} is loaded by ranks that are launched anew, not by survivors"
        raise ConfigError(
            "recovery",
            fact,
            "use recovery=checkpoint_restart without spares, or checkpoint=blocking",
        )


NONE = StrategyKind(
    name="none",
    description="no checkpoints: after a failure the run begins anew",
    implementation="ecrl_cli.checkpoint.strategies.none:NoneStrategy",
    saves=False,
)
BLOCKING = StrategyKind(
    name="blocking",
    description="barrier, capture, write, barrier",
    implementation="ecrl_cli.checkpoint.strategies.blocking:BlockingStrategy",
)
OVERLAPPED = StrategyKind(
    name="overlapped",
    description="barrier, capture, enqueue, barrier; a background process writes",
    implementation="ecrl_cli.checkpoint.strategies.overlapped:OverlappedStrategy",
    background=True,
    defers=True,
)
IN_MEMORY = StrategyKind(
    name="in_memory",
    description=(
        "overlapped checkpoints, and every step a snapshot in memory that outlives the ranks: what"
        " dies goes on from there"
    ),
    implementation="ecrl_cli.checkpoint.strategies.in_memory:InMemoryStrategy",
    background=True,
    snapshots=2,  # one complete, one being written
    defers=True,
)


def _foreign(name: str, description: str, checkpointer: CheckpointerKind) -> StrategyKind:
    how = "Background" if checkpointer.background else "Blocking"
    implementation = f"ecrl_cli.checkpoint.strategies.foreign:Foreign{how}Strategy"
    return StrategyKind(
        name=name,
        description=description,
        implementation=implementation,
        background=checkpointer.background,
        checkpointer=checkpointer,
    )


FOREIGN = (
    _foreign(
        "torch_save",
        "torch.save of rank 0 to a temporary name, and a rename; nothing is synced",
        TORCH_SAVE,
    ),
    _foreign(
        "torch_save_durable",
        "torch.save of rank 0, with a sync of the file before the rename and of the folders"
        " after it",
        TORCH_SAVE_DURABLE,
    ),
    _foreign("dcp", "torch.distributed.checkpoint.save of all ranks", DCP),
    _foreign(
        "dcp_async",
        "torch.distributed.checkpoint.async_save of all ranks, which a thread of each finishes",
        DCP_ASYNC,
    ),
    _foreign(
        "torch_checkpointing",
        "torch_checkpointing's manager, which a process of each rank finishes",
        TORCH_CHECKPOINTING,
    ),
    _foreign("torchsnapshot", "torchsnapshot's Snapshot.take of all ranks", TORCHSNAPSHOT),
)

STRATEGIES = VariantRegistry(
    "checkpoint", "ecrl.strategies", StrategyKind, (NONE, BLOCKING, OVERLAPPED, IN_MEMORY, *FOREIGN)
)


def strategy_of(config: RunConfig) -> StrategyKind:
    """The checkpoint strategy that `config` names."""
    return STRATEGIES.of(config.checkpoint.strategy)


def may_hold(config: RunConfig) -> bool:
    """Whether the rest of a run with `config` may begin another run: the recovery claims no
    trajectory, and the checkpoints are ECRL's own.
    """
    return not recovery_of(config).exact and strategy_of(config).checkpointer is None
