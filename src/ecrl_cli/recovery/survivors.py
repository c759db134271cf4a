"""A gradient exchange that outlives ranks: stock DDP with a communication hook over a group of our own.

DDP itself is given a group of one rank, so that none of its own collectives can break. The hook sends each bucket through the group of those
who are left; when a rank dies, the others learn it from a failing exchange or from the membership, form a group anew and agree how the
attempt ends: behind the step under exchange, whose buckets that not all have they do again among themselves (`lossy`), or in front of it.

Three things keep the survivors bit for bit alike. A bucket's own gradients stay untouched until all buckets of the step have been exchanged and
a barrier has been passed; what is exchanged is a copy, so that nothing a dead exchange still writes can reach them. A rank leaves a block
only behind its barrier: nobody is more than one block ahead, and who is ahead proves that nothing of the block before is missing anywhere.
And who leaves writes down in front of which block: whoever has not heard of it in time finds it there.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo

from ecrl_cli.errors import EcrlError
from ecrl_cli.records.clock import monotonic
from ecrl_cli.records.recovery import Redone
from ecrl_cli.recovery.membership import Membership

STILL_GOING = "Operation timed out!"  # what a wait says that came to its end before the exchange did; gloo's own timeouts say it otherwise
TICK = timedelta(milliseconds=20)  # how often a waiting rank looks whether another has gone
_END = "end"
_GRAVES: list[Any] = []  # groups that broke, with what their threads may still write to: never taken apart


class Bereaved(Exception):
    """Ranks have died: this attempt has no further block. Everyone who is left is told so in front of the same one."""


class _Interrupted(Exception):
    """An exchange that will not come to its end: a member has died."""


class _Ended(Exception):
    """Another rank has left, and said in front of which block."""


@dataclass
class _Item:
    """One exchange: `own` as it was, `sent` the copy under exchange. The mean over all, or (`led`) what the first of them has."""

    own: torch.Tensor
    led: bool = False
    sent: torch.Tensor | None = None
    work: Any = None


@dataclass
class _Block:
    """What all ranks do together before they pass a barrier: the gradients of a step and the leader's buffers, or one other exchange.

    `place` counts the blocks; `done` of its items have been exchanged. `redoes`: whether the survivors of a death bring it to its end.
    """

    place: int
    redoes: bool = False
    items: list[_Item] = field(default_factory=list)
    done: int = 0


class Survivors:
    """One rank's end of the exchange, for one attempt. Use: in each step `begin`, `hook` for each bucket in backward, `finish`.

    `store` must outlive every rank and have a `clone`. `patience_s`: how long a failing exchange may stay without a death that explains it.
    `parameters`: by bucket, the parameters whose gradients it holds. `redone`: what deaths changed. Each call may raise Bereaved.
    """

    def __init__(self, store: Any, prefix: str, rank: int, membership: Membership, timeout: timedelta, *, lossy: bool) -> None:
        self._connection, self._prefix, self._rank = store, prefix, rank
        self._store, self._membership, self._timeout, self._lossy = PrefixStore(prefix, store), membership, timeout, lossy
        self.patience_s = 10.0
        self._block = _Block(0)
        self._end: int | None = None  # no block from this one on
        self._step = 0
        self._before: tuple[tuple[int, ...], float] | None = None  # lost, and how long it took, on the account of the next block
        self.parameters: dict[int, list[torch.Tensor]] = {}
        self.redone: list[Redone] = []
        self.epoch, self.alive = membership.epoch, membership.alive
        self._group: Any = None

    def form(self, ranks: int) -> None:
        """Meet the others: all `ranks` of the attempt."""
        try:
            if len(self.alive) == ranks:
                self._group = self._form()
                return
        except (_Interrupted, _Ended):
            pass
        self._give_up(0)

    def begin(self, global_step: int) -> None:
        """The step begins: what `hook` is given from now on belongs to it."""
        if not self._lossy and self._membership.epoch != self.epoch:
            self._give_up(self._block.place + 1)  # the step would be given up in any case
        self._next_block(redoes=self._lossy)
        self._step = global_step

    def hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Begin the exchange of one bucket. The future is ready at once: what DDP takes for the result is replaced in `finish`."""
        own, index = bucket.buffer(), bucket.index()
        assert index == len(self._block.items), "buckets come in order"
        self.parameters[index] = bucket.parameters()
        self._add(_Item(own))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(own)
        return future

    def finish(self, buffers: Sequence[torch.Tensor] = ()) -> None:
        """Wait until every bucket holds the mean over those who took part and `buffers` are the first rank's, on every survivor.

        EcrlError where an exchange fails and nobody has died: a restart may cure that.
        """
        buckets = len(self._block.items)
        if self._before:
            self._note(0, buckets, *self._before)
            self._before = None
        if buffers:
            self._add(_Item(torch.cat([_bytes(buffer) for buffer in buffers]), led=True))
        self._complete(buckets)
        for item in self._block.items[:buckets]:
            assert item.sent is not None
            item.own.copy_(item.sent)
        if buffers:
            _scatter(self._block.items[-1].sent, buffers)

    def barrier(self) -> None:
        self._next_block()
        self._complete(0)

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """`own` of every rank, in order."""
        rows: list[torch.Tensor] = [torch.empty_like(own) for _ in self.alive]
        self._next_block()
        self._once(lambda: self._group.allgather([rows], [own]))
        return rows

    def broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """What `source` has, on every rank: in `tensor`, whose size all know."""
        self._next_block()
        self._once(lambda: self._group.broadcast(tensor, self.alive.index(source)))
        return tensor

    def leave(self) -> None:
        """There are no further blocks; who is still in the last one may go too."""
        self._tell(self._block.place + 1)
        self._bury()

    def _next_block(self, *, redoes: bool = False) -> None:
        place = self._block.place + 1
        if self._end is not None and place >= self._end:
            self._give_up(self._end)
        self._block = _Block(place, redoes)

    def _add(self, item: _Item) -> None:
        self._block.items.append(item)
        self._exchange(item)

    def _once(self, begin: Callable[[], Any]) -> None:
        """A block of one exchange that is not done again."""
        try:
            self._wait(_tried(begin))
        except _Interrupted as cause:
            self._after(cause, 0)
        else:
            self._complete(0)

    def _complete(self, buckets: int) -> None:
        """Bring the block's exchanges to their end and pass the barrier behind them, whoever dies meanwhile."""
        block = self._block
        while True:
            try:
                while block.done < len(block.items):
                    self._wait(block.items[block.done].work)
                    block.done += 1
                self._wait(_tried(self._group.barrier))
                return
            except _Interrupted as cause:
                if self._after(cause, buckets):
                    return

    def _after(self, cause: _Interrupted, buckets: int) -> bool:
        """What follows an exchange that broke: the block is whole as it is (True), it is to be done again, or Bereaved."""
        began, before = monotonic(), self.alive
        furthest = self._regroup(cause)
        lost, seconds = tuple(rank for rank in before if rank not in self.alive), monotonic() - began
        assert self._end is not None
        if self._block.place < furthest:  # another rank has passed the barrier: nothing of this block is missing anywhere
            self._before = (lost, seconds)
            return True
        if self._block.place >= self._end:
            self._give_up(self._end)
        self._note(min(self._block.done, buckets), buckets, lost, seconds)
        return False

    def _note(self, first: int, buckets: int, lost: tuple[int, ...], seconds: float) -> None:
        """A death in the middle of an agreement may have let some agree twice, others once: the same is put on record of both."""
        new = Redone(self._step, first, buckets, lost, self.alive, seconds)
        if self.redone and self.redone[-1].first == first:
            last = self.redone.pop()
            new = replace(new, lost=tuple(sorted({*last.lost, *lost})), seconds=last.seconds + seconds)
        self.redone.append(new)

    def _exchange(self, item: _Item) -> None:
        item.sent = sent = item.own.clone() if item.led else item.own.clone().mul_(1.0 / len(self.alive))
        try:
            item.work = _tried(lambda: self._group.broadcast(sent, 0) if item.led else self._group.allreduce([sent]))
        except _Interrupted:
            item.work = None

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

    def _regroup(self, cause: _Interrupted) -> int:
        """Form the group of who is left and agree where the attempt ends; gives the furthest block that anyone is in."""
        while True:
            self._bury()
            if not self._membership.wait_beyond(self.epoch, self.patience_s):
                fact = f"an exchange failed ({cause}) and no rank has died within {self.patience_s:g} s"
                raise EcrlError("recovery", fact, "the attempt begins anew", code="exchange")
            self.epoch, self.alive = self._membership.epoch, self._membership.alive
            try:
                self._group = self._form()
                return self._agree()
            except _Interrupted as again:
                cause = again
            except _Ended:
                self._end = int(self._store.get(_END))
                return self._end

    def _agree(self) -> int:
        block = self._block
        mine = torch.tensor([block.place, block.done, block.redoes])
        rows = [torch.empty_like(mine) for _ in self.alive]
        self._wait(_tried(lambda: self._group.allgather([rows], [mine])))
        furthest = max(int(place) for place, _, _ in rows)
        self._end = max(int(place) + int(redoes) for place, _, redoes in rows)
        if block.place == furthest and block.redoes:
            block.done = min(int(done) if int(place) == furthest else 0 for place, done, _ in rows)
            for item in block.items[block.done :]:
                self._exchange(item)
        return furthest

    def _give_up(self, end: int) -> None:
        self._end = end
        self._tell(end)
        self._bury()
        raise Bereaved

    def _tell(self, end: int) -> None:
        self._store.set(_END, str(end))

    def _bury(self) -> None:
        _GRAVES.append((self._group, list(self._block.items), [(item.work, item.sent) for item in self._block.items]))

    def _form(self) -> Any:
        """The group of `alive`. Everyone says that it is there first; and the group is made beside, on a connection of its own, for neither
        a wait for one who has died on the way nor its hold on the connection comes to an end by itself."""
        scope = f"members{self.epoch}"
        here = PrefixStore(scope, self._store)
        here.set(f"here{self._rank}", "1")
        names = [f"here{rank}" for rank in self.alive]
        while not here.check(names):
            self._look()
            self._membership.wait_beyond(self.epoch, 0.001)
        apart = PrefixStore(scope, PrefixStore(self._prefix, self._connection.clone()))
        made: queue.SimpleQueue[Any] = queue.SimpleQueue()
        given = (apart, self.alive.index(self._rank), len(self.alive), self._timeout)
        threading.Thread(target=lambda: made.put(_made(given)), name="form", daemon=True).start()
        while True:
            try:
                group = made.get(timeout=0.02)
            except queue.Empty:
                self._look()
                continue
            if group is None:
                raise _Interrupted("the group could not be formed")
            return group

    def _look(self) -> None:
        if self._store.check([_END]):
            raise _Ended
        if self._membership.epoch != self.epoch:
            raise _Interrupted("a rank has died")


def _tried(begin: Callable[[], Any]) -> Any:
    try:
        return begin()
    except RuntimeError as error:
        raise _Interrupted(str(error)) from error


def _made(given: tuple[Any, ...]) -> Any:
    try:
        return ProcessGroupGloo(*given)
    except RuntimeError:
        return None


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _scatter(data: torch.Tensor | None, buffers: Sequence[torch.Tensor]) -> None:
    assert data is not None
    with torch.no_grad():
        for buffer, part in zip(buffers, torch.split(data, [buffer.numel() * buffer.element_size() for buffer in buffers]), strict=True):
            buffer.copy_(part.clone().view(buffer.dtype).view(buffer.shape))


def group_of_one() -> Any:
    """The group that DDP itself is given, made of this rank alone: the process's default one."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    return dist.group.WORLD
