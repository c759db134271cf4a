"""The dormant-worker arm: real gloo processes, one of which is set aside and rejoins within each
mini-batch.

A rank can leave and rejoin between any two averages, also within a mini-batch, without a new
process group: each contribution carries a flag. Contributions are gathered and added in rank order.
An all-reduce would move less data, but its order of additions depends on the group size, so with
three or more ranks the bits would differ from those of a group of the active ranks alone.

`python -m ecrl_cli.replication.mini_batch.dormant FOLDER PARENT RANK RANKS AVERAGES SIZE` is one
rank; rank 0 prints the result. The ranks train a small network, a mini-batch per round, whose
gradients are averaged bucket by bucket. The last rank leaves before the second bucket and rejoins
before the last: once as a dormant worker in one group, once with process groups rebuilt among the
remaining ranks and then among all, and the averages that it missed sent to it. Both trainings must
have the same weights after each mini-batch, on every rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from math import isqrt
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store

from ecrl_cli.errors import EcrlError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.pdeathsig import die_with_parent


class DormantAverage:
    """Averages over the active ranks of `group` (None: the default group). Every rank must call
    `average`, active or not.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self._size = dist.get_world_size(group)
        self.active = True

    def leave(self) -> None:
        """Send tokens from the next average on."""
        self.active = False

    def come_back(self) -> None:
        """Count again from the next average on. The caller must have given this rank the others'
        state by then.
        """
        self.active = True

    def average(self, tensor: torch.Tensor) -> int:
        """Write the active ranks' average into `tensor` on every rank and return their number;
        unchanged if there are none.

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


BUCKETS, _SAMPLES = 4, 32
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


class _Training:
    """A network of BUCKETS square layers and its optimizer, begun alike on every rank; `rank` has
    samples of its own.
    """

    def __init__(self, rank: int, size: int) -> None:
        width, begin, own = (
            isqrt(size),
            torch.Generator().manual_seed(10_000),
            torch.Generator().manual_seed(rank),
        )
        layers = [torch.randn(width, width, generator=begin) / width**0.5 for _ in range(BUCKETS)]
        self.layers = [torch.nn.Parameter(layer) for layer in layers]
        self._optimizer = torch.optim.SGD(self.layers, lr=0.1, momentum=0.9)
        self._x, self._y = (
            torch.randn(_SAMPLES, width, generator=own),
            torch.randn(_SAMPLES, width, generator=own),
        )
        self.losses: list[float] = []

    def gradients(self) -> list[torch.Tensor]:
        """The gradients of this rank's samples, a bucket per layer, in backward order; values
        written into them are what `update` applies.
        """
        self._optimizer.zero_grad()
        out = self._x
        for layer in self.layers:
            out = torch.tanh(out @ layer)
        loss = (out - self._y).square().mean(0).sum()
        torch.autograd.backward(loss)
        self.losses.append(float(loss.item()))
        return [layer.grad for layer in reversed(self.layers) if layer.grad is not None]

    def update(self) -> None:
        self._optimizer.step()

    def same(self, other: _Training) -> bool:
        return all(
            torch.equal(one, another)
            for one, another in zip(self.layers, other.layers, strict=True)
        )


class _Arm:
    """Three trainings from the same start: everybody active, with a dormant rank, with process
    groups made anew.
    """

    def __init__(self, store: Store, rank: int, ranks: int, size: int) -> None:
        self.store, self.rank, self.ranks = store, rank, ranks
        self.last = rank == ranks - 1
        self.average = DormantAverage()
        self.all, self.dormant, self.rebuilt = (_Training(rank, size) for _ in range(3))

    def rounds(self, number: int) -> dict[str, Any]:
        """`same`: whether after each mini-batch the dormant training had the bits of the other, on
        every rank, and all ranks ended alike; `counted`: number of contributors to each bucket of a
        mini-batch; `losses`: of rank 0, the first and the last of the dormant training.
        """
        seconds: dict[str, list[float]] = {
            name: [] for name in ("all", "dormant", "leave", "rebuild", "return")
        }
        same, counted = True, list[int]()
        for turn in range(number):
            seconds["all"].append(self._whole())
            counted, took_s = self._dormant()
            seconds["dormant"].append(took_s)
            left_s, back_s = self._rebuilt(turn)
            seconds["leave"].append(left_s)
            seconds["return"].append(back_s)
            seconds["rebuild"].append(left_s + back_s)
            same = same and self.dormant.same(self.rebuilt)
        every = torch.tensor([int(same and self._alike())])
        dist.all_reduce(every, op=dist.ReduceOp.MIN)
        losses = [self.dormant.losses[0], self.dormant.losses[-1]]
        return {
            "same": bool(every.item()),
            "counted": counted,
            "rounds": number,
            "losses": losses,
            "seconds": seconds,
        }

    def _alike(self) -> bool:
        """Whether all ranks have the dormant training's weights."""
        own = torch.cat([layer.detach().reshape(-1) for layer in self.dormant.layers])
        rows = [torch.empty_like(own) for _ in range(self.ranks)]
        dist.all_gather(rows, own)
        return all(torch.equal(row, own) for row in rows)

    def _whole(self) -> float:
        """Seconds of the averages of a mini-batch in which every rank is active."""
        buckets = self.all.gradients()
        dist.barrier()
        began = monotonic()
        for bucket in buckets:
            self.average.average(bucket)
        took_s = monotonic() - began
        self.all.update()
        return took_s

    def _dormant(self) -> tuple[list[int], float]:
        """The number of contributors to each average, and the seconds of the averages of a
        mini-batch in which the last rank leaves and rejoins. It receives the averages that it
        contributes nothing to, and so needs no state when it is back.
        """
        buckets = self.dormant.gradients()
        counted = list[int]()
        dist.barrier()
        began = monotonic()
        for number, bucket in enumerate(buckets):
            if self.last and number == 1:
                self.average.leave()
            if self.last and number == BUCKETS - 1:
                self.average.come_back()
            counted.append(self.average.average(bucket))
        took_s = monotonic() - began
        self.dormant.update()
        return counted, took_s

    def _rebuilt(self, turn: int) -> tuple[float, float]:
        """The same mini-batch with groups made anew: seconds until the group without the last rank
        has passed its first barrier, and until the one of all has, and the last rank has been given
        the averages that it missed.
        """
        buckets = self.rebuilt.gradients()
        DormantAverage().average(buckets[0])
        dist.barrier()
        began = monotonic()
        left = None if self.last else self._group(range(self.ranks - 1), turn, "left")
        left_s = monotonic() - began
        for bucket in [] if self.last else buckets[1:-1]:
            DormantAverage(left).average(bucket)
        dist.barrier()
        began = monotonic()
        back = self._group(range(self.ranks), turn, "back")
        for bucket in buckets[1:-1]:
            back.broadcast(bucket, 0).wait()
        back_s = monotonic() - began
        DormantAverage(back).average(buckets[-1])
        self.rebuilt.update()
        return left_s, back_s

    def _group(self, ranks: range, turn: int, name: str) -> Any:
        """A new group of these ranks under its own name in the shared store. (`new_group` would
        reuse the name of an earlier group of the same ranks.)
        """
        group: Any = dist.ProcessGroupGloo(
            PrefixStore(f"{name}-{turn}", self.store), self.rank, len(ranks), _TIMEOUT
        )
        group.barrier().wait()
        return group


RANKS, SIZE = 4, 25_000
_DEADLINE_S = 300.0


def dormant_arm(folder: Path, averages: int) -> dict[str, Any]:
    """Runs the arm and returns rank 0's output. `folder` must be empty; it takes the store and the
    other ranks' output.
    """
    folder.mkdir()
    module = "ecrl_cli.replication.mini_batch.dormant"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = []
    try:
        for rank in range(RANKS):
            words = [str(folder), *map(str, (os.getpid(), rank, RANKS, averages, SIZE))]
            with (folder / f"rank{rank}.log").open("wb") as log:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, "-m", module, *words],
                        stdout=subprocess.PIPE,
                        stderr=log,
                        env=environment,
                    )
                )
        output, _ = ranks[0].communicate(timeout=_DEADLINE_S)
        codes = [each.wait(timeout=_DEADLINE_S) for each in ranks]
        if any(codes):
            last = (
                (folder / f"rank{codes.index(next(filter(None, codes)))}.log")
                .read_text(encoding="utf-8", errors="replace")
                .strip()
                .splitlines()[-1:]
            )
            raise EcrlError(
                "dormant", f"a rank ended with {codes}: {' '.join(last)[:200]}", "report this"
            )
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
