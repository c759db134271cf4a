"""The recoveries, by which a run goes on when ranks die: one object each, with all its properties.
Torch-free.

From another package: a `RecoveryKind` as an entry point in the group `ecrl.recoveries`.
tests/contract/test_recoveries.py checks each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ecrl_cli.config.launchers import LAUNCHERS, launcher_of
from ecrl_cli.config.registry import VariantRegistry, import_attribute
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError

MOST_RANKS = 64  # the width of the mask of living ranks in the heartbeat table


@dataclass(frozen=True, kw_only=True)
class RecoveryKind:
    """`description`: one sentence, also the first of conf/recovery/NAME.yaml.

    `exact`: the run must follow the trajectory of a run without failures; verify compares it with a
    reference, and `ecrl train` trains one.
    `from_memory`: survivors continue from the state in their memory. Each leaves a survivor report,
    and verify checks the next attempt against it. Otherwise all ranks resume from a checkpoint.
    `loses_samples`: the step in which ranks die is counted without some of its samples: the dead
    ranks', or with `drops_step` all. Survivors record the lost samples, and verify compares these
    records with what was applied; any other recovery must apply every sample.
    `drops_step`: that step changes nothing: survivors go on after it, from the state before it.
    `shrinks`: without enough spares, fewer ranks continue. `needs_spares`: refused without spares.
    `needs_replicas`: refused without `elastic.replicas`, which make a step independent of the
    number of ranks; any other recovery in which survivors stay is refused with them.
    `session`: "module:attribute" of the session class of surviving ranks; used where they keep
    running (`survivors_stay`).
    """

    name: str
    description: str
    exact: bool = True
    from_memory: bool = False
    loses_samples: bool = False
    drops_step: bool = False
    shrinks: bool = False
    needs_spares: bool = False
    needs_replicas: bool = False
    session: str = "ecrl_cli.training.in_place_session:InPlaceSession"

    def survivors_stay(self, spares: int) -> bool:
        """Whether surviving ranks keep running: to continue from memory, or to resume from a
        checkpoint together with `spares`.
        """
        return self.from_memory or spares > 0

    @property
    def finishes_without(self) -> bool:
        """Whether survivors finish the step in which ranks die, without the dead ranks' samples."""
        return self.loses_samples and not self.drops_step

    def load_session(self) -> Any:
        """Imports the class `session` (and torch)."""
        return import_attribute("recovery", self.name, self.session)

    def refuse(self, config: RunConfig) -> None:
        """ConfigError for the first thing that `config` lacks for this recovery, or that cannot be
        combined with it.
        """
        supervision = config.supervision
        if not self.survivors_stay(supervision.spares):
            return
        key, who = (
            ("recovery", self.name)
            if self.from_memory
            else ("supervision.spares", "keeping spares")
        )
        if supervision.nodes > 1:
            raise ConfigError(
                key,
                f"{who} needs all ranks on one machine, supervision.nodes is {supervision.nodes}",
                "use supervision.nodes=1",
            )
        if not launcher_of(config).in_place:
            able = " or ".join(name for name in LAUNCHERS.builtin if LAUNCHERS.of(name).in_place)
            raise ConfigError(
                key,
                f"{who} needs supervision.launcher={able}, got {supervision.launcher}",
                f"add supervision={able}",
            )
        if config.elastic.replicas and not self.needs_replicas:
            raise ConfigError(
                key,
                f"{who} and elastic.replicas cannot be combined",
                "leave one of them out, or use recovery=redistribute",
            )
        if self.needs_replicas and not config.elastic.replicas:
            remedy = f"add elastic.replicas={config.world_size} or a multiple of it"
            raise ConfigError(
                key,
                f"{who} needs elastic.replicas: without them fewer ranks would add gradients in"
                " another order",
                remedy,
            )
        if config.elastic.schedule:
            raise ConfigError(
                key,
                f"{who} and a planned change of the world size cannot be combined",
                "leave elastic.schedule out",
            )
        if config.device == "cuda" or config.backend == "nccl":
            at_fault = "device=cuda" if config.device == "cuda" else "backend=nccl"
            raise ConfigError(
                key,
                f"{who} works with gloo on the CPU only, got {at_fault}",
                "set device=cpu and leave backend out",
            )
        if config.world_size > MOST_RANKS:
            raise ConfigError(
                "world_size",
                f"{who} serves at most {MOST_RANKS} ranks, got {config.world_size}",
                "lower it",
            )
        if self.needs_spares and not supervision.spares:
            raise ConfigError(
                key,
                f"{who} needs spares: nobody could take a dead rank's place",
                "add supervision.spares=1",
            )


CHECKPOINT_RESTART = RecoveryKind(
    name="checkpoint_restart",
    description=(
        "all ranks go back to the newest valid checkpoint; with supervision.spares, warm spares"
        " take the dead ranks' places"
    ),
)
IMMEDIATE_ROLLBACK = RecoveryKind(
    name="immediate_rollback",
    description=(
        "the interrupted mini-batch again, from the survivors' memory; spares take the dead ranks'"
        " places (supervision.spares)"
    ),
    from_memory=True,
    needs_spares=True,
)
LOSSY_FORWARD = RecoveryKind(
    name="lossy_forward",
    description=(
        "the survivors finish the mini-batch among themselves and go on, fewer, or with spares as"
        " many as before"
    ),
    exact=False,
    from_memory=True,
    loses_samples=True,
    shrinks=True,
)
REDISTRIBUTE = RecoveryKind(
    name="redistribute",
    description=(
        "the survivors compute the interrupted mini-batch among themselves, the dead ranks'"
        " replicas too (elastic.replicas): the same bits"
    ),
    from_memory=True,
    shrinks=True,
    needs_replicas=True,
    session="ecrl_cli.training.redistribute_session:RedistributeSession",
)
SKIP = RecoveryKind(
    name="skip",
    description=(
        "the survivors drop the interrupted mini-batch and go on from the state before it, fewer,"
        " or with spares as many as before"
    ),
    exact=False,
    from_memory=True,
    loses_samples=True,
    drops_step=True,
    shrinks=True,
    session="ecrl_cli.training.skip_session:SkipSession",
)

_BUILTIN = (CHECKPOINT_RESTART, IMMEDIATE_ROLLBACK, LOSSY_FORWARD, REDISTRIBUTE, SKIP)
RECOVERIES = VariantRegistry("recovery", "ecrl.recoveries", RecoveryKind, _BUILTIN)


def recovery_of(config: RunConfig) -> RecoveryKind:
    """The recovery that `config` names."""
    return RECOVERIES.of(config.recovery.name)


def survivors_stay(config: RunConfig) -> bool:
    """Whether surviving ranks of `config` keep running and take part in the next attempt."""
    return recovery_of(config).survivors_stay(config.supervision.spares)
