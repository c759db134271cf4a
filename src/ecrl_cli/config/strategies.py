"""How a state becomes a checkpoint: one object per strategy with all its properties. Torch-free.

From another package: a `StrategyKind` as an entry point in the group `ecrl.strategies`. tests/contract/test_strategies.py checks each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ecrl_cli.config.registry import VariantRegistry, import_attribute
from ecrl_cli.errors import ConfigError

if TYPE_CHECKING:
    from ecrl_cli.config.schema import CheckpointConfig, RunConfig


@dataclass(frozen=True, kw_only=True)
class StrategyKind:
    """`description`: one sentence, also the first of conf/checkpoint/NAME.yaml.

    `implementation`: "module:attribute" of a class with the methods of checkpoint/strategies/strategy.py; its `make(inputs)` gives one for a rank.
    `saves`: checkpoints are written. `background`: by the writer process, while the ranks compute, up to `checkpoint.max_inflight` at once;
    otherwise by rank 0, while the others wait. verify derives from it what may cause a missing checkpoint, and which parts a stall can have.
    `snapshots`: how many snapshots are in shared memory that survives the ranks (every `checkpoint.memory_every` steps one is replaced): an attempt
    may resume from them, which verify accepts for no other strategy.
    """

    name: str
    description: str
    implementation: str
    saves: bool = True
    background: bool = False
    snapshots: int = 0

    @property
    def writes_in_step(self) -> bool:
        """Whether rank 0's training thread writes: a stall then consists of write, hash, commit and settle, never backpressure or enqueue."""
        return self.saves and not self.background

    def in_flight(self, checkpoint: CheckpointConfig) -> int:
        """How many submitted checkpoints may be unfinished at once."""
        return checkpoint.max_inflight if self.background else int(self.saves)

    def load(self) -> Any:
        """Imports the class `implementation` (and torch)."""
        return import_attribute("checkpoint", self.name, self.implementation)

    def refuse(self, config: RunConfig) -> None:
        """ConfigError for the first thing in `config` that cannot be combined with this strategy."""
        checkpoint, nodes = config.checkpoint, config.supervision.nodes
        if self.snapshots and nodes > 1:
            fact = f"{self.name} keeps its snapshots on one machine, supervision.nodes is {nodes}"
            raise ConfigError("checkpoint", fact, "use checkpoint=overlapped or supervision.nodes=1")
        if config.elastic.schedule and not self.saves:
            fact = f"a change of the size goes on from a checkpoint, checkpoint={self.name} takes none"
            raise ConfigError("elastic.schedule", fact, "add checkpoint=blocking")
        if checkpoint.memory_every != 1 and self.saves and not self.snapshots:
            raise ConfigError("checkpoint.memory_every", f"checkpoint={self.name} keeps nothing in memory", "add checkpoint=in_memory")


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
)
IN_MEMORY = StrategyKind(
    name="in_memory",
    description="overlapped checkpoints, and every step a snapshot in memory that outlives the ranks: what dies goes on from there",
    implementation="ecrl_cli.checkpoint.strategies.in_memory:InMemoryStrategy",
    background=True,
    snapshots=2,  # one complete, one being written
)

STRATEGIES = VariantRegistry("checkpoint", "ecrl.strategies", StrategyKind, (NONE, BLOCKING, OVERLAPPED, IN_MEMORY))


def strategy_of(config: RunConfig) -> StrategyKind:
    """The checkpoint strategy that `config` names."""
    return STRATEGIES.of(config.checkpoint.strategy)
