"""What survivors pay for a new process group: `python -m bench.regroup` prints JSON.

RANKS processes (gloo, CPU). In each round a group of all starts an all-reduce in which the last
rank takes no part, so that it cannot finish; the others leave it in flight, form the group of the
rest, and reduce once. Two ways, interleaved, the first twice (the A/A control): `anew`, a new group
over the store, as `recovery=forward` does it; `in_place`, the group itself reconfigured
(experimental, torch 2.14 and newer, absent before). A round costs what its slowest survivor waits.

The ranks that are not connected to a dead one do not see it die: their collective ends at its
timeout alone. Both ways wait in short turns and look who lives in between.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from bench.goals import note
from bench.runs import machine
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.recovery.group_rendezvous import GroupRendezvous
from ecrl_cli.supervision.launch.torchrun import free_port

RANKS, ROUNDS = 4, 30
TIMEOUT = timedelta(seconds=60)
ELEMENTS = 1 << 18
# by a name for the meeting and its ranks: their group
GroupOf = Callable[[str, tuple[int, ...]], Any]


class Anew:
    """A group made over the store for each set of ranks."""

    def __init__(self, rank: int, store: Any) -> None:
        self._rank = rank
        self._rendezvous = GroupRendezvous(store, "bench", TIMEOUT)
        self._left: list[Any] = []  # their threads still write to what they reduce

    def group(self, scope: str, ranks: tuple[int, ...]) -> Any:
        made = self._rendezvous.form(scope, self._rank, ranks, lambda: None)
        self._left.append(made)
        return made


class InPlace:
    """One group that is reconfigured for each set of ranks."""

    def __init__(self, rank: int, store: Any) -> None:
        self._rank, self._store = rank, PrefixStore("in-place", store)
        dist.init_process_group(
            "gloo",
            store=self._store,
            rank=rank,
            world_size=RANKS,
            timeout=TIMEOUT,
            enable_reconfigure=True,
        )

    def group(self, scope: str, ranks: tuple[int, ...]) -> Any:
        c10d = dist.distributed_c10d
        handles = PrefixStore(scope, self._store)
        handles.set(str(self._rank), c10d._get_reconfigure_handle())
        due = [handles.get(str(rank)).decode() for rank in ranks]
        c10d._reconfigure(uuid=crc32(scope.encode()), handles=due, timeout=TIMEOUT).wait()
        return dist.group.WORLD


def can_reconfigure() -> bool:
    return hasattr(dist.distributed_c10d, "_reconfigure")


def seconds_of_a_round(
    group_of: Callable[[str, tuple[int, ...]], Any], rank: int, at: str
) -> float:
    """Of a survivor: from the moment it gives up its collective to the end of the next one. NaN for
    the rank that is left out.
    """
    every = tuple(range(RANKS))
    whole = group_of(f"{at}/all", every)
    whole.allreduce([torch.ones(1)]).wait()
    if rank == RANKS - 1:
        return float("nan")
    whole.allreduce([torch.ones(ELEMENTS)])
    began = monotonic()
    reduced = torch.ones(ELEMENTS)
    group_of(f"{at}/rest", every[:-1]).allreduce([reduced]).wait()
    took = monotonic() - began
    assert reduced[0].item() == RANKS - 1, "the survivors' sum"
    return took


def rank_main(rank: int, port: int, out: str) -> None:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, RANKS, is_master=rank == 0, timeout=TIMEOUT)
    anew = Anew(rank, store)
    arms: dict[str, GroupOf] = {"anew": anew.group, "anew_again": anew.group}
    if can_reconfigure():
        arms["in_place"] = InPlace(rank, store).group
    times: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(ROUNDS):
        names = list(arms)[:: 1 if number % 2 else -1]
        for name in names:
            took = seconds_of_a_round(arms[name], rank, f"{number}/{name}")
            times[name].append(took)
    Path(out, f"{rank}.json").write_text(json.dumps(times))
    store.add("done", 1)
    while rank == 0 and store.add("done", 0) < RANKS:
        pass  # the store is this process's


def main() -> int:
    with tempfile.TemporaryDirectory() as out:
        mp.spawn(rank_main, args=(free_port(), out), nprocs=RANKS)
        told = [json.loads(Path(out, f"{rank}.json").read_text()) for rank in range(RANKS - 1)]
    slowest = {
        name: [max(row[name][number] for row in told) for number in range(ROUNDS)]
        for name in told[0]
    }
    medians = {name: statistics.median(values) for name, values in slowest.items()}
    control = medians["anew_again"] / medians["anew"]
    document = {
        **machine(),
        "ranks": RANKS,
        "rounds": ROUNDS,
        "seconds": {name: round(value, 5) for name, value in medians.items()},
        "ratios": {
            f"{name} / anew": round(medians[name] / medians["anew"], 3)
            for name in medians
            if name == "in_place"
        },
        "controls": {"A/A anew": round(control, 3)},
        "note": note(abs(control - 1) <= 0.1, 0.1),
    }
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
