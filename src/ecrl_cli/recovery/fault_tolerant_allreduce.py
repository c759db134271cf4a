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

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import PrefixStore

from ecrl_cli.errors import EcrlError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.survivor_records import RedoneStep
from ecrl_cli.recovery.exchange_round import Bucket, ExchangeRound, gathered, scatter
from ecrl_cli.recovery.group_rendezvous import CollectiveFailed, GroupRendezvous, translate_gloo_error
from ecrl_cli.recovery.membership import Membership

STILL_GOING = "Operation timed out!"  # what a wait says that came to its end before the exchange did; gloo's own timeouts say it otherwise
TICK = timedelta(milliseconds=20)  # how often a waiting rank looks whether another has gone
_END = "end"
_ABANDONED_GROUPS: list[tuple[Any, list[Any]]] = []  # groups that are left, never taken apart, with what their threads may still write to


class PeersLost(Exception):
    """Ranks have died: this attempt has no further block. Everyone who is left is told so in front of the same one."""


class _Ended(Exception):
    """Another rank has left, and said in front of which block."""


class FaultTolerantGroup:
    """One rank's end of the exchange, for one attempt. Use: in each step `begin`, `hook` for each bucket in backward, `finish`.

    `store` must outlive every rank and have a `clone`. `patience_s`: how long a failing exchange may stay without a death that explains it.
    `parameters`: by bucket, the parameters whose gradients it holds. `redone`: what deaths changed. Each call may raise Bereaved.
    """

    def __init__(self, store: Any, prefix: str, rank: int, membership: Membership, timeout: timedelta, *, lossy: bool) -> None:
        self._store, self._rendezvous = PrefixStore(prefix, store), GroupRendezvous(store, prefix, timeout)
        self._rank, self._membership, self._lossy = rank, membership, lossy
        self.patience_s = 10.0
        self._round = ExchangeRound(0)
        self._end: int | None = None  # no block from this one on
        self._step = 0
        self._before: tuple[tuple[int, ...], float] | None = None  # lost, and how long it took, on the account of the next block
        self.parameters: dict[int, list[torch.Tensor]] = {}
        self.redone: list[RedoneStep] = []
        self.epoch, self.alive = membership.epoch, membership.alive
        self._group: Any = None
        self._room: dict[int, torch.Tensor] = {}

    def form(self, ranks: int) -> None:
        """Meet the others: all `ranks` of the attempt."""
        try:
            if len(self.alive) == ranks:
                self._group = self._form()
                return
        except (CollectiveFailed, _Ended):
            pass
        self._give_up(0)

    def begin(self, global_step: int) -> None:
        """The step begins: what `hook` is given from now on belongs to it."""
        if not self._lossy and self._membership.epoch != self.epoch:
            self._give_up(self._round.place + 1)  # the step would be given up in any case
        self._next_round(redoes=self._lossy)
        self._step = global_step

    def hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Begin the exchange of one bucket. The future is ready at once: what DDP takes for the result is replaced in `finish`."""
        own, index = bucket.buffer(), bucket.index()
        assert index == len(self._round.buckets), "buckets come in order"
        self.parameters[index] = bucket.parameters()
        self._add(Bucket(own))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(own)
        return future

    def finish(self, buffers: Sequence[torch.Tensor] = ()) -> None:
        """Wait until every bucket holds the mean over those who took part and `buffers` are the first rank's, on every survivor.

        EcrlError where an exchange fails and nobody has died: a restart may cure that.
        """
        buckets = len(self._round.buckets)
        if self._before:
            self._note(0, buckets, *self._before)
            self._before = None
        if buffers:
            self._add(Bucket(gathered(buffers), led=True))
        self._complete(buckets)
        for item in self._round.buckets[:buckets]:
            assert item.sent is not None
            item.own.copy_(item.sent)
        if buffers:
            scatter(self._round.buckets[-1].sent, buffers)

    def barrier(self) -> None:
        self._next_round()
        self._complete(0)

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """`own` of every rank, in order."""
        rows: list[torch.Tensor] = [torch.empty_like(own) for _ in self.alive]
        self._next_round()
        self._once(lambda: self._group.allgather([rows], [own]))
        return rows

    def broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """What `source` has, on every rank: in `tensor`, whose size all know."""
        self._next_round()
        self._once(lambda: self._group.broadcast(tensor, self.alive.index(source)))
        return tensor

    def leave(self) -> None:
        """There are no further blocks; who is still in the last one may go too."""
        self._tell(self._round.place + 1)
        self._mark_dead()

    def _next_round(self, *, redoes: bool = False) -> None:
        place = self._round.place + 1
        if self._end is not None and place >= self._end:
            self._give_up(self._end)
        self._round = ExchangeRound(place, redoes)

    def _add(self, item: Bucket) -> None:
        self._round.buckets.append(item)
        self._exchange(len(self._round.buckets) - 1)

    def _once(self, begin: Callable[[], Any]) -> None:
        """A block of one exchange that is not done again."""
        try:
            self._wait(translate_gloo_error(begin))
        except CollectiveFailed as cause:
            self._after(cause, 0)
        else:
            self._complete(0)

    def _complete(self, buckets: int) -> None:
        """Bring the block's exchanges to their end and pass the barrier behind them, whoever dies meanwhile."""
        block = self._round
        while True:
            try:
                while block.done < len(block.buckets):
                    self._wait(block.buckets[block.done].work)
                    block.done += 1
                self._wait(translate_gloo_error(self._group.barrier))
                return
            except CollectiveFailed as cause:
                if self._after(cause, buckets):
                    return

    def _after(self, cause: CollectiveFailed, buckets: int) -> bool:
        """What follows an exchange that broke: the block is whole as it is (True), it is to be done again, or Bereaved."""
        began, before = monotonic(), self.alive
        furthest = self._regroup(cause)
        lost, seconds = tuple(rank for rank in before if rank not in self.alive), monotonic() - began
        assert self._end is not None
        if self._round.place < furthest:  # another rank has passed the barrier: nothing of this block is missing anywhere
            self._before = (lost, seconds)
            return True
        if self._round.place >= self._end:
            self._give_up(self._end)
        self._note(min(self._round.done, buckets), buckets, lost, seconds)
        return False

    def _note(self, first: int, buckets: int, lost: tuple[int, ...], seconds: float) -> None:
        """A death in the middle of an agreement may have let some agree twice, others once: the same is put on record of both."""
        new = RedoneStep(self._step, first, buckets, lost, self.alive, seconds)
        if self.redone and self.redone[-1].first == first:
            last = self.redone.pop()
            new = replace(new, lost=tuple(sorted({*last.lost, *lost})), seconds=last.seconds + seconds)
        self.redone.append(new)

    def _exchange(self, place: int) -> None:
        """Where nothing broke, what was sent last time has room for what is sent now: fresh memory costs as much as the copy."""
        item = self._round.buckets[place]
        if item.led:
            item.sent = sent = item.own.clone()
        else:
            room = self._room.get(place)
            room = torch.empty_like(item.own) if room is None or room.shape != item.own.shape else room
            self._room[place] = item.sent = sent = torch.mul(item.own, 1.0 / len(self.alive), out=room)
        try:
            item.work = translate_gloo_error(lambda: self._group.broadcast(sent, 0) if item.led else self._group.allreduce([sent]))
        except CollectiveFailed:
            item.work = None

    def _wait(self, work: Any) -> None:
        """Until the exchange has ended, well; Interrupted where it failed, or where a death says that it will not come to its end."""
        while work is not None:
            try:
                work.wait(TICK)
                return
            except RuntimeError as error:
                if STILL_GOING not in str(error):
                    raise CollectiveFailed(str(error)) from error
            if self._membership.epoch != self.epoch:
                break
        raise CollectiveFailed("a rank has died")

    def _regroup(self, cause: CollectiveFailed) -> int:
        """Form the group of who is left and agree where the attempt ends; gives the furthest block that anyone is in."""
        while True:
            self._mark_dead()
            try:
                self._await_news(cause)
                self.epoch, self.alive = self._membership.epoch, self._membership.alive
                self._group = self._form()
                return self._agree()
            except CollectiveFailed as again:
                cause = again
            except _Ended:
                self._end = _parsed(self._store.get(_END))[0]
                return self._end

    def _await_news(self, cause: CollectiveFailed) -> None:
        """Of what explains the failure: a death, or that another has left (_Ended)."""
        deadline = monotonic() + self.patience_s
        while not self._membership.wait_beyond(self.epoch, 0.02):
            if self._store.check([_END]):
                raise _Ended
            if monotonic() >= deadline:
                fact = f"an exchange failed ({cause}) and no rank has died within {self.patience_s:g} s"
                raise EcrlError("recovery", fact, "the attempt begins anew", code="exchange")

    def _agree(self) -> int:
        block = self._round
        mine = torch.tensor([block.place, block.done, block.redoes])
        rows = [torch.empty_like(mine) for _ in self.alive]
        self._wait(translate_gloo_error(lambda: self._group.allgather([rows], [mine])))
        furthest = max(int(place) for place, _, _ in rows)
        self._end = max(int(place) + int(redoes) for place, _, redoes in rows)
        if block.place == furthest and block.redoes:
            block.done = min(int(done) if int(place) == furthest else 0 for place, done, _ in rows)
            for place in range(block.done, len(block.buckets)):
                self._exchange(place)
        return furthest

    def _give_up(self, end: int) -> None:
        self._end, self.alive = end, self._tell(end)
        self._mark_dead()
        raise PeersLost

    def _tell(self, end: int) -> tuple[int, ...]:
        """Gives who was left as the first one said so: whoever dies while the others leave is left by the word of all, or of none."""
        return _parsed(self._store.compare_set(_END, "", " ".join(map(str, (end, *self._membership.alive)))))[1]

    def _mark_dead(self) -> None:
        for _, written in _ABANDONED_GROUPS:
            written[:] = [(work, sent) for work, sent in written if not work.is_completed()]
        self._room = {}  # a dead exchange may still write there
        _ABANDONED_GROUPS.append((self._group, [(item.work, item.sent) for item in self._round.buckets if item.work is not None]))

    def _form(self) -> Any:
        return self._rendezvous.form(f"members{self.epoch}", self._rank, self.alive, self._look)

    def _look(self) -> None:
        if self._store.check([_END]):
            raise _Ended
        if self._membership.epoch != self.epoch:
            raise CollectiveFailed("a rank has died")


def _parsed(said: bytes) -> tuple[int, tuple[int, ...]]:
    """In front of which block a rank has left, and who was left then."""
    end, *alive = map(int, said.split())
    return end, tuple(alive)


def group_of_one() -> Any:
    """The group that DDP itself is given, made of this rank alone: the process's default one."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    return dist.group.WORLD
