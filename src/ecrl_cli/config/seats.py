"""How many ranks a run has on how many nodes: read in one place, for the supervisor and the judge alike."""

from __future__ import annotations

from ecrl_cli.config.elastic import fits
from ecrl_cli.config.schema import RunConfig


def may_shrink(config: RunConfig) -> bool:
    """Whether the run goes on with fewer ranks where it loses nodes."""
    return config.supervision.nodes > 1 and config.supervision.on_node_loss == "shrink"


def place_ranks(config: RunConfig, nodes: int) -> tuple[int, int]:
    """(world size, nodes in use): as many of the wanted ranks as `nodes` >= 1 nodes hold, equally many on each and no node more than it was
    meant to, sharing the batch as it must be shared. Fewer ranks than wanted only where nodes are missing."""
    wanted, each = min(config.supervision.nodes, nodes), config.world_size // config.supervision.nodes
    fitting = [(count * ranks, count) for count in range(1, wanted + 1) for ranks in range(1, each + 1) if fits(config, count * ranks)]
    return max(fitting)
