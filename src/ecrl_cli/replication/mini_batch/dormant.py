"""The dormant-worker arm: real gloo processes, one of which is set aside and rejoins within each mini-batch.

A rank can leave and rejoin between any two averages, also within a mini-batch, without a new process group: each contribution carries a flag.
Contributions are gathered and added in rank order. An all-reduce would move less data, but its order of additions depends on the group size, so
with three or more ranks the bits would differ from those of a group of the active ranks alone.

`python -m ecrl_cli.replication.mini_batch.dormant FOLDER PARENT RANK RANKS AVERAGES SIZE` is one rank; rank 0 prints the result. Each round is a
mini-batch of buckets. The last rank leaves before the second bucket and rejoins before the last: once as a dormant worker in one group, once with
process groups rebuilt among the remaining ranks and then among all. Both must give the same bits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store

from ecrl_cli.errors import EcrlError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.pdeathsig import die_with_parent


class DormantAverage:
    """Averages over the active ranks of `group` (None: the default group). Every rank must call `average`, active or not."""

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self._size = dist.get_world_size(group)
        self.active = True

    def leave(self) -> None:
        """Send tokens from the next average on."""
        self.active = False

    def come_back(self) -> None:
        """Count again from the next average on. The caller must have given this rank the others' state by then."""
        self.active = True

    def average(self, tensor: torch.Tensor) -> int:
        """Write the active ranks' average into `tensor` on every rank and return their number; unchanged if there are none.

        A token is an empty contribution of the same size: a dormant rank's values are never read.
        """
        row = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
        row[-1] = 1 if self.active else 0
        if self.active:
            row[:-1] = tensor.detach().reshape(-1)
        else:
            row[:-1] = 0
        rows = [torch.empty_like(row) for _ in range(self._size)]
        dist.all_gather(rows, row, group=self._group)
        counting = [each[:-1] for each in rows if each[-1] != 0]
        if counting:
            tensor.detach().copy_(mean(counting).view_as(tensor))
        return len(counting)


def mean(rows: list[torch.Tensor]) -> torch.Tensor:
    """Their sum in order, divided by their number."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total.div_(len(rows))


BUCKETS = 4
_TIMEOUT = timedelta(seconds=60)


def main(folder: str, parent: int, rank: int, ranks: int, averages: int, size: int) -> None:
    die_with_parent(parent)
    torch.set_num_threads(1)
    store = FileStore(str(Path(folder) / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=_TIMEOUT)
    found = _Arm(store, rank, ranks, size).rounds(max(2, averages // BUCKETS))
    if rank == 0:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


class _Arm:
    def __init__(self, store: Store, rank: int, ranks: int, size: int) -> None:
        self.store, self.rank, self.ranks, self.size = store, rank, ranks, size
        self.last = rank == ranks - 1
        self.dormant = DormantAverage()

    def rounds(self, number: int) -> dict[str, Any]:
        """`same`: whether all rounds agree bit for bit; `counted`: number of contributors to each bucket of a round."""
        seconds: dict[str, list[float]] = {name: [] for name in ("all", "dormant", "leave", "rebuild", "return")}
        same, counted = True, list[int]()
        self._whole(-1)
        for turn in range(number):
            seconds["all"].append(self._whole(turn))
            kept, counted, took_s = self._dormant(turn)
            seconds["dormant"].append(took_s)
            again, left_s, back_s = self._rebuilt(turn)
            seconds["leave"].append(left_s)
            seconds["return"].append(back_s)
            seconds["rebuild"].append(left_s + back_s)
            same = same and all(torch.equal(one, other) for one, other in zip(kept, again, strict=True) if other.numel())
        every = torch.tensor([int(same)])
        dist.all_reduce(every, op=dist.ReduceOp.MIN)
        return {"same": bool(every.item()), "counted": counted, "rounds": number, "seconds": seconds}

    def _bucket(self, turn: int, number: int) -> torch.Tensor:
        """This rank's contribution, of mixed magnitudes so that the order of additions shows in the bits."""
        generator = torch.Generator().manual_seed(turn * 1000 + number * 10 + self.rank + 10_000)
        return torch.randn(self.size, generator=generator) * torch.logspace(-6, 6, self.size)

    def _whole(self, turn: int) -> float:
        """Seconds of a mini-batch in which every rank is active."""
        buckets = [self._bucket(turn, number) for number in range(BUCKETS)]
        dist.barrier()
        began = monotonic()
        for bucket in buckets:
            self.dormant.average(bucket)
        return monotonic() - began

    def _dormant(self, turn: int) -> tuple[list[torch.Tensor], list[int], float]:
        """The averages, the number of contributors to each, and the seconds of a mini-batch in which the last rank leaves and rejoins."""
        buckets = [self._bucket(turn, number) for number in range(BUCKETS)]
        counted = list[int]()
        dist.barrier()
        began = monotonic()
        for number, bucket in enumerate(buckets):
            if self.last and number == 1:
                self.dormant.leave()
            if self.last and number == BUCKETS - 1:
                self.dormant.come_back()
            counted.append(self.dormant.average(bucket))
        return buckets, counted, monotonic() - began

    def _rebuilt(self, turn: int) -> tuple[list[torch.Tensor], float, float]:
        """The same averages with rebuilt groups (empty tensors on a rank that is away), and the seconds until each new group has passed its first
        barrier."""
        found = [self._averaged(turn, 0, None)]
        dist.barrier()
        began = monotonic()
        left = None
        if not self.last:
            left = self._group(range(self.ranks - 1), turn, "left")
        left_s = monotonic() - began
        for number in range(1, BUCKETS - 1):
            found.append(torch.empty(0) if self.last else self._averaged(turn, number, left))
        dist.barrier()
        began = monotonic()
        back = self._group(range(self.ranks), turn, "back")
        back_s = monotonic() - began
        found.append(self._averaged(turn, BUCKETS - 1, back))
        return found, left_s, back_s

    def _averaged(self, turn: int, number: int, group: Any) -> torch.Tensor:
        bucket = self._bucket(turn, number)
        DormantAverage(group).average(bucket)
        return bucket

    def _group(self, ranks: range, turn: int, name: str) -> Any:
        """A new group of these ranks under its own name in the shared store. (`new_group` would reuse the name of an earlier group of the same
        ranks.)"""
        group: Any = dist.ProcessGroupGloo(PrefixStore(f"{name}-{turn}", self.store), self.rank, len(ranks), _TIMEOUT)
        group.barrier().wait()
        return group


RANKS, SIZE = 4, 25_000
_DEADLINE_S = 300.0


def dormant_arm(folder: Path, averages: int) -> dict[str, Any]:
    """What rank 0 printed. `folder` must be empty; it takes the store and the other ranks' output."""
    folder.mkdir()
    module = "ecrl_cli.replication.mini_batch.dormant"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = []
    try:
        for rank in range(RANKS):
            words = [str(folder), *map(str, (os.getpid(), rank, RANKS, averages, SIZE))]
            with (folder / f"rank{rank}.log").open("wb") as log:
                ranks.append(subprocess.Popen([sys.executable, "-m", module, *words], stdout=subprocess.PIPE, stderr=log, env=environment))
        output, _ = ranks[0].communicate(timeout=_DEADLINE_S)
        codes = [each.wait(timeout=_DEADLINE_S) for each in ranks]
        if any(codes):
            last = (
                (folder / f"rank{codes.index(next(filter(None, codes)))}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            )
            raise EcrlError("dormant", f"a rank ended with {codes}: {' '.join(last)[:200]}", "report this")
        found: dict[str, Any] = json.loads(output)
        return found
    finally:
        for each in ranks:
            each.kill()
            each.wait()
            if each.stdout is not None:
                each.stdout.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:7]))
