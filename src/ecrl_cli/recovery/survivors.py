"""A gradient exchange that survives the death of ranks inside it: stock DDP with a communication hook over a group of our own.

DDP itself is given a group of one rank, so that none of its own collectives can break. The hook sends each bucket through the group of those
who are left; when a rank dies, the others learn it from a failing exchange or from the membership, form a group anew, agree on the first
bucket that not all of them have, and do that one and the rest again among themselves. A rank is known here by the number it was launched with.

Two things keep the survivors bit for bit alike. A bucket's own gradients stay untouched until all buckets of the step have been exchanged and
a barrier has been passed; what is exchanged is a copy, so that nothing a dead exchange still writes can reach them. And a rank leaves a step
only behind that barrier: nobody is more than one step ahead, and who is ahead proves that nothing of the step before is missing anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo

from ecrl_cli.errors import EcrlError
from ecrl_cli.records.clock import monotonic
from ecrl_cli.records.recovery import Redone
from ecrl_cli.recovery.membership import Membership

STILL_GOING = "Operation timed out!"  # what a wait says that came to its end before the exchange did; gloo's own timeouts say it otherwise
TICK = timedelta(milliseconds=20)  # how often a waiting rank looks whether another has gone


class _Interrupted(Exception):
    """An exchange that will not come to its end: a member has died."""


@dataclass
class _Block:
    """What all ranks do together before they pass a barrier: the buckets of a step (`own` gradients as they are, `sent` copies under exchange,
    `works`), or one gathering. `place` counts the blocks; `done` of its exchanges have ended."""

    place: int
    own: list[torch.Tensor]
    sent: list[torch.Tensor]
    works: list[Any]
    done: int = 0


class Survivors:
    """One rank's end of the exchange. Use: `attach` once; in each step `begin`, backward, `finish`.

    `store` must outlive every rank. `patience_s`: how long a failing exchange may stay without a death that explains it.
    `parameters`: by bucket, the parameters whose gradients it holds.
    """

    def __init__(self, store: Any, rank: int, membership: Membership, timeout: timedelta, patience_s: float = 10.0) -> None:
        self._store, self._rank, self._membership = store, rank, membership
        self._timeout, self._patience_s = timeout, patience_s
        self._graves: list[Any] = []  # groups that broke, with what their threads may still write to: never taken apart
        self._block = _Block(0, [], [], [])
        self._step = self._changed_in = 0
        self.parameters: dict[int, list[torch.Tensor]] = {}
        self.epoch, self.alive = membership.epoch, membership.alive
        self.sharing = self.alive
        self._group = self._form()

    def begin(self, global_step: int) -> tuple[int, ...]:
        """The step begins; gives the ranks that share its batch, in order. Who dies in it still owned its part."""
        self._step = global_step
        if self._changed_in < global_step:
            self.sharing = self.alive
        self._next_block()
        return self.sharing

    def attach(self, ddp: Any) -> None:
        """Take over the exchange of `ddp`, whose own group is `group_of_one` and whose gradients are views of its buckets: `finish` writes there."""
        assert ddp.gradient_as_bucket_view, "the gradients would be copied out of the buckets before the exchange has ended"
        ddp.register_comm_hook(None, lambda state, bucket: self._hook(bucket))  # a function with other annotations than DDP's would be refused

    def _hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Begin the exchange of one bucket. The future is ready at once: what DDP takes for the result is replaced in `finish`."""
        own, index = bucket.buffer(), bucket.index()
        assert index == len(self._block.own), "buckets come in order"
        self.parameters[index] = bucket.parameters()
        self._block.own.append(own)
        self._exchange(own)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(own)
        return future

    def finish(self) -> tuple[Redone, ...]:
        """Wait until every bucket holds the mean over those who took part, on every survivor; gives what deaths changed.

        EcrlError where an exchange fails and nobody has died: a restart may cure that.
        """
        redone = self._complete(lambda: self._wait(self._block.works[self._block.done]), len(self._block.own))
        for own, sent in zip(self._block.own, self._block.sent, strict=True):
            own.copy_(sent)
        return redone

    def barrier(self) -> None:
        self._next_block()
        self._complete(lambda: None, 0)

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """`own` of every rank that is there, in order: the same list on all of them, of those who are left after a death."""
        rows: list[torch.Tensor] = []

        def gather() -> None:
            rows[:] = [torch.empty_like(own) for _ in self.alive]
            self._wait(_tried(lambda: self._group.allgather([rows], [own])))

        self._next_block()
        self._complete(gather, 1)
        return rows

    def _next_block(self) -> None:
        self._block = _Block(self._block.place + 1, [], [], [])

    def _complete(self, exchange: Callable[[], None], count: int) -> tuple[Redone, ...]:
        """Bring the block's `count` exchanges to their end and pass the barrier behind them, whoever dies meanwhile."""
        redone: list[Redone] = []
        while True:
            try:
                while self._block.done < count:
                    exchange()
                    self._block.done += 1
                self._wait(_tried(self._group.barrier))
                return tuple(redone)
            except _Interrupted as cause:
                began, before = monotonic(), self.alive
                whole = self._regroup(cause)
                lost = tuple(rank for rank in before if rank not in self.alive)
                if whole:  # another rank has passed the barrier: nothing is missing anywhere
                    return tuple(redone)
                redone.append(Redone(self._step, self._block.done, count, lost, self.alive, monotonic() - began))

    def _exchange(self, own: torch.Tensor) -> None:
        sent = own.clone().mul_(1.0 / len(self.alive))
        self._block.sent.append(sent)
        try:
            self._block.works.append(_tried(lambda: self._group.allreduce([sent])))
        except _Interrupted:
            self._block.works.append(None)

    def _wait(self, work: Any) -> None:
        """Until the exchange has ended, well; _Interrupted where it failed, or where a death says that it will not come to its end."""
        while work is not None:
            try:
                work.wait(TICK)
                return
            except RuntimeError as error:
                if STILL_GOING not in str(error):
                    raise _Interrupted(str(error)) from error
            if self._membership.epoch != self.epoch:
                break
        raise _Interrupted("a rank has died")

    def _regroup(self, cause: _Interrupted) -> bool:
        """Form the group of who is left, agree where everyone is, begin anew what not all have. True where this block is whole as it is."""
        while True:
            self._graves.append((self._group, self._block.works, self._block.sent))
            if not self._membership.wait_beyond(self.epoch, self._patience_s):
                fact = f"an exchange failed ({cause}) and no rank has died within {self._patience_s:g} s"
                raise EcrlError("recovery", fact, "the attempt begins anew", code="exchange")
            self.epoch, self.alive = self._membership.epoch, self._membership.alive
            try:
                self._group = self._form()
                return self._agree()
            except _Interrupted as again:
                cause = again

    def _agree(self) -> bool:
        mine = torch.tensor([self._block.place, self._block.done, self._step])
        rows = [torch.empty_like(mine) for _ in self.alive]
        self._wait(_tried(lambda: self._group.allgather([rows], [mine])))
        self._changed_in = max(int(row[2]) for row in rows)
        furthest = max(int(row[0]) for row in rows)
        if self._block.place < furthest:
            return True
        block = self._block
        block.done = min(int(row[1]) if int(row[0]) == furthest else 0 for row in rows)
        block.sent, block.works = block.sent[: block.done], block.works[: block.done]
        for own in block.own[block.done :]:
            self._exchange(own)
        return False

    def _form(self) -> Any:
        """The group of `alive`. Everyone says that it is there first: a group in the making cannot be left, a wait for a key can."""
        store = PrefixStore(f"members{self.epoch}", self._store)
        store.set(f"here{self._rank}", "1")
        names = [f"here{rank}" for rank in self.alive]
        while not store.check(names):
            if self._membership.wait_beyond(self.epoch, 0.001):
                raise _Interrupted("a rank has died")
        return _tried(lambda: ProcessGroupGloo(store, self.alive.index(self._rank), len(self.alive), self._timeout))


def _tried(begin: Callable[[], Any]) -> Any:
    try:
        return begin()
    except RuntimeError as error:
        raise _Interrupted(str(error)) from error


def group_of_one(store: Any, rank: int) -> Any:
    """The group that DDP itself is given, made of this rank alone: `dist.init_process_group` for it, once."""
    dist.init_process_group("gloo", store=PrefixStore(f"alone{rank}", store), rank=0, world_size=1)
    return dist.group.WORLD
