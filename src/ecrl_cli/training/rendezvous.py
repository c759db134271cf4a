"""How the ranks of one attempt find each other: what a launcher hands to `training.worker.run_rank`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TcpStoreAddress:
    """A TCPStore that outlives the ranks, and the prefix under which one attempt keeps its keys."""

    host: str
    port: int
    prefix: str


@dataclass(frozen=True)
class Rendezvous:
    """A rank's place. `store` None: rank, world size and store come from the environment that torchrun sets ("env://").

    `attended`: whether the supervisor is on this machine, and its sockets can be reached. `before`: how many ranks sit on the machines before.
    """

    rank: int
    world_size: int
    store: TcpStoreAddress | None = None
    attended: bool = True
    before: int = 0

    @property
    def local_rank(self) -> int:
        return self.rank - self.before


def from_environment(environment: Mapping[str, str]) -> Rendezvous:
    """The place of a rank that torchrun started.

    On several nodes rank 0 must be where the supervisor and its writer are: the number that srun gave the node (ECRL_NODE, 0 for the
    supervisor's) decides. The group is formed in the store that the agents share.
    """
    world_size, node = int(environment["WORLD_SIZE"]), environment.get("ECRL_NODE")
    if node is None:
        return Rendezvous(int(environment["RANK"]), world_size)
    before = int(node) * int(environment["LOCAL_WORLD_SIZE"])
    store = TcpStoreAddress(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), "ecrl")
    return Rendezvous(before + int(environment["LOCAL_RANK"]), world_size, store, node == "0", before)
