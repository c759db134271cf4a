"""How the ranks of one attempt find each other: what a launcher hands to `training.worker.run_rank`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TcpStoreAddress:
    """A TCPStore that outlives the ranks, and the prefix under which one attempt keeps its keys."""

    host: str
    port: int
    prefix: str


@dataclass(frozen=True)
class Rendezvous:
    """A rank's place. `store` None: rank, world size and store come from the environment that torchrun sets ("env://")."""

    rank: int
    world_size: int
    store: TcpStoreAddress | None = None
