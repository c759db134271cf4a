"""How the ranks of one attempt find each other: what a launcher passes to
`training.worker.run_rank`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TcpStoreAddress:
    """Address of a TCPStore that outlives the ranks, and the key prefix of one attempt."""

    host: str
    port: int
    prefix: str


@dataclass(frozen=True)
class Rendezvous:
    """A rank, the world size and the store. `store` None: torch takes them from the environment
    that torchrun sets ("env://").

    `attended`: whether the supervisor is on this machine, so that its sockets can be reached.
    `before`: number of ranks on lower-numbered nodes.
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
    """The rendezvous of a rank that torchrun started.

    On several nodes rank 0 must be on the node of the supervisor and its writer: ranks are numbered
    by ECRL_NODE, the node's number from srun (0: the supervisor's). The group is formed in the
    store that the agents share.
    """
    world_size, node = int(environment["WORLD_SIZE"]), environment.get("ECRL_NODE")
    if node is None:
        return Rendezvous(int(environment["RANK"]), world_size)
    before = int(node) * int(environment["LOCAL_WORLD_SIZE"])
    store = TcpStoreAddress(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), "ecrl")
    return Rendezvous(
        before + int(environment["LOCAL_RANK"]), world_size, store, node == "0", before
    )
