"""Live recovery: ranks that outlive others stay, and go on. Whether a run is live, and what it must have for that."""

from __future__ import annotations

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError

MOST_RANKS = 64  # as many as the board's mask of who lives can hold


LOSSY = "lossy_forward"


def claims_trajectory(config: RunConfig) -> bool:
    """Whether a run of `config` must go where an undisturbed one goes: a lossy recovery promises no such thing."""
    return config.recovery.name != LOSSY


def live(config: RunConfig) -> bool:
    return config.recovery.name != "checkpoint_restart" or config.supervision.spares > 0


def check_live(config: RunConfig) -> None:
    """ConfigError for the first thing that a live run of `config` lacks, or has too much."""
    if not live(config):
        return
    key, who = _asked_by(config)
    supervision = config.supervision
    if supervision.nodes > 1:
        raise ConfigError(key, f"{who} needs all ranks on one machine, supervision.nodes is {supervision.nodes}", "use supervision.nodes=1")
    if supervision.launcher != "zygote":
        raise ConfigError(key, f"{who} needs supervision.launcher=zygote, got {supervision.launcher}", "add supervision=zygote")
    if config.elastic.replicas:
        raise ConfigError(key, f"{who} and elastic.replicas cannot be combined", "leave one of them out")
    if config.elastic.schedule:
        raise ConfigError(key, f"{who} and a planned change of the world size cannot be combined", "leave elastic.schedule out")
    if config.device == "cuda" or config.backend == "nccl":
        at_fault = "device=cuda" if config.device == "cuda" else "backend=nccl"
        raise ConfigError(key, f"{who} works with gloo on the CPU only, got {at_fault}", "set device=cpu and leave backend out")
    if config.world_size > MOST_RANKS:
        raise ConfigError("world_size", f"{who} serves at most {MOST_RANKS} ranks, got {config.world_size}", "lower it")
    if config.recovery.name == "immediate_rollback" and not supervision.spares:
        raise ConfigError(key, f"{who} needs spares: nobody could take a dead rank's place", "add supervision.spares=1")


def _asked_by(config: RunConfig) -> tuple[str, str]:
    """The key that makes the run live, and what stands there, for a message."""
    if config.recovery.name != "checkpoint_restart":
        return "recovery", config.recovery.name
    return "supervision.spares", "keeping spares"
