"""The kinds of failure, a closed registry: one file per kind or family, its name here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ecrl_cli.config.fault_spec import Entry, typed_entries
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.failures import (
    bit_rot,
    kill,
    mtbf,
    nan,
    partition,
    raising,
    rank_faults,
    readonly,
    slow_rank,
    stop,
    storage_faults,
    supervisor_and_network_faults,
    term,
)
from ecrl_cli.failures import exit as planned_exit
from ecrl_cli.failures.fault_kind import FaultKind, always


@dataclass(frozen=True)
class FaultPlanner:
    """What `failure.kind` can name: whom it takes when. `available`: why it cannot be planned for this configuration, or None."""

    entries: Callable[[RunConfig], tuple[Entry, ...]]
    available: Callable[[RunConfig], str | None] = always


STRIKES: dict[str, FaultKind] = {
    "exit": planned_exit.STRIKE,
    "kill": kill.STRIKE,
    "term": term.STRIKE,
    "stop": stop.STRIKE,
    "raise": raising.STRIKE,
    "oom": rank_faults.STRIKE,
    "nan": nan.STRIKE,
    "slow_rank": slow_rank.STRIKE,
    "slow_disk": storage_faults.SLOW_DISK,
    "enospc": storage_faults.ENOSPC,
    "eio": storage_faults.EIO,
    "corrupt": bit_rot.STRIKE,
    "readonly": readonly.STRIKE,
    "partition": partition.STRIKE,
    "writer": storage_faults.WRITER,
    "supervisor": supervisor_and_network_faults.STRIKE,
}

_AS_TYPED = FaultPlanner(lambda config: typed_entries(config.failure))
KINDS: dict[str, FaultPlanner] = {**dict.fromkeys((*STRIKES, "backward", "listed"), _AS_TYPED), "mtbf": FaultPlanner(mtbf.entries, mtbf.available)}
