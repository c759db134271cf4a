"""torch.distributed.run with our own rendezvous backend and forked ranks. A separate program
because it imports torch: `python -m ...torchrun_main RANKS MODULES ARGUMENTS...`, with the number
of ranks that it starts and what to import for them, comma-separated.

torch's c10d rendezvous has two security holes: its store listens on every address of the machine,
whatever the endpoint says, and it unpickles a value from that store, so that anyone who reaches the
port can run code in the job. Here the participants are known beforehand (one numbered agent per
node), so nothing is negotiated: agent 0 hosts the store, the others connect, and torch keeps only
text and JSON in it. On one machine the store is bound to the loopback.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler, handlers
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry

from ecrl_cli.supervision.launch.forked_ranks import ForkedRank, load, share_memory

BACKEND = "ecrl"
LOOPBACK = "127.0.0.1"
NODE = "node"  # in --rdzv-conf: the number of this agent
JOINED_WITHIN_S = 600  # until the agents of all nodes have arrived


class FixedRendezvous(RendezvousHandler):
    """A fixed number of numbered agents, one per node: nothing is negotiated and nothing is
    unpickled.
    """

    def __init__(self, host: str, port: int, node: int, nodes: int, run_id: str) -> None:
        self._host, self._port, self._node, self._nodes, self._run_id = (
            host,
            port,
            node,
            nodes,
            run_id,
        )
        self._store: Any = None

    def next_rendezvous(self) -> RendezvousInfo:
        if self._store is None:
            self._store = (
                self._host_store()
                if self._node == 0
                else TCPStore(self._host, self._port, is_master=False, timeout=_patience())
            )
            self._port = self._store.port
        where = RendezvousStoreInfo(self._host, self._port)
        return RendezvousInfo(
            PrefixStore(self._run_id, self._store), self._node, self._nodes, where
        )

    def _host_store(self) -> Any:
        """Host the store on a socket that we bind: a TCPStore's own socket would listen on every
        address.
        """
        listener = listen(self._host, self._port, alone=self._nodes == 1)
        port = listener.getsockname()[1]
        # torch takes over the descriptor and connects to its own server, by the loopback address,
        # which every machine has.
        return TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            timeout=_patience(),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Not used: agents never restart an attempt."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def listen(host: str, port: int, *, alone: bool) -> socket.socket:
    """The store's listening socket: on the loopback if one machine holds all ranks (`alone`), else
    on every address, IPv4 and IPv6.

    With several nodes it cannot be bound to the node's name, which may resolve to an address that
    only other nodes can use.
    """
    if alone:
        return socket.create_server((LOOPBACK, port))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def make(parameters: RendezvousParameters) -> RendezvousHandler:
    host, _, port = parameters.endpoint.rpartition(":")
    return FixedRendezvous(
        host, int(port), int(parameters.get(NODE, 0)), parameters.max_nodes, parameters.run_id
    )


def _patience() -> timedelta:
    return timedelta(seconds=JOINED_WITHIN_S)


def fork_ranks(count: int, modules: Sequence[str]) -> None:
    """Import `modules`, fork the ranks, and have torch's agent take them where it would start
    programs.
    """
    load(modules)
    share_memory()
    forked = [ForkedRank() for _ in range(count)]

    class ForkedHandler(SubprocessHandler):
        def _popen(self, args: Sequence[str], env: Mapping[str, str]) -> Any:
            rank = forked[self.local_rank_id]
            rank.start(args, env)
            return rank

    handlers.SubprocessHandler = ForkedHandler  # type: ignore[attr-defined]  # torch has no setting for it


def main(arguments: list[str]) -> None:
    ranks, modules, *rest = arguments
    fork_ranks(int(ranks), modules.split(","))
    registry.register(BACKEND, make)
    torchrun.main(rest)


if __name__ == "__main__":
    main(sys.argv[1:])
