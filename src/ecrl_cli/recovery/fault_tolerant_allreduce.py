"""Gradient all-reduce that survives dead ranks: stock DDP with a communication hook over a process
group of our own.

DDP itself gets a group of one rank, so none of its own collectives can fail. The hook sends each
bucket through the group of surviving ranks. When a rank dies, the others notice a failed collective
or a new membership, form a new group and agree where the attempt ends: after the interrupted step,
whose buckets that some rank lacks they reduce again among themselves (`lossy`), or before it.

Three rules keep the survivors bit-identical. A bucket's own gradients stay unchanged until all
buckets of the step are reduced and a barrier is passed; collectives work on copies, so an abandoned
one cannot overwrite gradients. A rank leaves a round only after its barrier: no rank is more than
one round ahead, and one that is ahead proves that no rank lacks anything of the previous round. A
rank that leaves first writes to the store from which round on it takes no part, so that ranks that
missed the failure find it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import PrefixStore

from ecrl_cli.checkpoint.capture.tensor_sources import raw
from ecrl_cli.errors import EcrlError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.survivor_records import RedoneStep
from ecrl_cli.recovery.group_rendezvous import (
    CollectiveFailed,
    GroupRendezvous,
    Membership,
    translate_gloo_error,
)

# the error when a wait ends before the collective does; gloo's own timeouts have another text
STILL_GOING = "Operation timed out!"
TICK = timedelta(milliseconds=20)  # how often a waiting rank checks the membership
_END = "end"
# groups never destroyed, with the tensors that their threads may still write to
_ABANDONED_GROUPS: list[tuple[Any, list[Any]]] = []


class PeersLost(Exception):
    """Peers died; raised on every survivor before the same round."""


class _Ended(Exception):
    """Another rank has left and written from which round on."""


class FaultTolerantGroup:
    """One rank's side of the all-reduce, for one attempt. Use: in each step `begin`, `hook` for
    each bucket in backward, `finish`; or with fixed replicas `begin`, `all_to_all`,
    `all_gather_into`.

    `store` must outlive every rank and have a `clone`. `patience_s`: seconds to wait after a failed
    collective for a death that explains it.
    `parameters`: by bucket, the parameters whose gradients it holds. `redone`: what deaths changed.
    Each call may raise PeersLost.
    """

    def __init__(
        self,
        store: Any,
        prefix: str,
        rank: int,
        membership: Membership,
        timeout: timedelta,
        *,
        lossy: bool,
    ) -> None:
        self._store, self._rendezvous = (
            PrefixStore(prefix, store),
            GroupRendezvous(store, prefix, timeout),
        )
        self.rank, self._membership, self._lossy = rank, membership, lossy
        self.patience_s = 10.0
        self._round = ExchangeRound(0)
        self._end: int | None = None  # no round from this one on
        self._step = 0
        # lost ranks and seconds, to be recorded with the next round
        self._before: tuple[tuple[int, ...], float] | None = None
        self.parameters: dict[int, list[torch.Tensor]] = {}
        self.redone: list[RedoneStep] = []
        self.epoch, self.alive = membership.epoch, membership.alive
        self._group: Any = None
        self._room: dict[int, torch.Tensor] = {}

    def form(self, ranks: int) -> None:
        """Form the group with all `ranks` of the attempt. PeersLost if one has died."""
        try:
            if len(self.alive) == ranks:
                self._group = self._form()
                return
        except (CollectiveFailed, _Ended):
            pass
        self._give_up(0)

    def begin(self, global_step: int) -> None:
        """Begin a step: buckets passed to `hook` belong to it from now on."""
        if not self._lossy and self._membership.epoch != self.epoch:
            self._give_up(self._round.place + 1)  # the step would be aborted anyway
        self._next_round(redoes=self._lossy)
        self._step = global_step

    def hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Start the all-reduce of one bucket. The future is ready at once: `finish` replaces the
        value that DDP takes as the result.
        """
        own, index = bucket.buffer(), bucket.index()
        assert index == len(self._round.buckets), "buckets come in order"
        self.parameters[index] = bucket.parameters()
        self._add(Bucket(own))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(own)
        return future

    def finish(self, buffers: Sequence[torch.Tensor] = ()) -> None:
        """Wait until, on every survivor, each bucket holds the mean over the participating ranks
        and `buffers` are those of the first rank.

        EcrlError if a collective fails though no rank has died: a restart may help.
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

    def all_to_all(
        self,
        received: torch.Tensor,
        send: torch.Tensor,
        received_counts: list[int],
        sent_counts: list[int],
    ) -> None:
        """Fill `received` with the elements that each rank sends to this one, in order; counts:
        elements by rank. In the round that `begin` began, which `all_gather_into` ends; neither is
        redone after a death.
        """
        try:
            self._wait(
                translate_gloo_error(
                    lambda: self._group.alltoall_base(received, send, received_counts, sent_counts)
                )
            )
        except CollectiveFailed as cause:
            self._after(cause, 0)
            raise AssertionError(
                "nobody passes the barrier of a round that this rank has not come to"
            ) from cause

    def all_gather_into(self, whole: torch.Tensor, own: torch.Tensor) -> None:
        """Fill `whole` with `own` of every rank, in order."""
        self._once(lambda: self._group._allgather_base(whole, own))

    def broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """Broadcast `tensor` from rank `source`; it must have the same size on all ranks."""
        self._next_round()
        self._once(lambda: self._group.broadcast(tensor, self.alive.index(source)))
        return tensor

    def leave(self) -> None:
        """Leave: there are no further rounds, and ranks still in the last one may leave too."""
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
        """A round of one collective, which is not redone after a death."""
        try:
            self._wait(translate_gloo_error(begin))
        except CollectiveFailed as cause:
            self._after(cause, 0)
        else:
            self._complete(0)

    def _complete(self, buckets: int) -> None:
        """Finish the round's collectives and its barrier, despite deaths meanwhile."""
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
        """Handle a failed collective: True if the round is already complete, False if it is to be
        redone; else PeersLost.
        """
        began, before = monotonic(), self.alive
        furthest = self._regroup(cause)
        lost, seconds = (
            tuple(rank for rank in before if rank not in self.alive),
            monotonic() - began,
        )
        assert self._end is not None
        # another rank has passed the barrier: no rank lacks anything of this round
        if self._round.place < furthest:
            self._before = (lost, seconds)
            return True
        if self._round.place >= self._end:
            self._give_up(self._end)
        self._note(min(self._round.done, buckets), buckets, lost, seconds)
        return False

    def _note(self, first: int, buckets: int, lost: tuple[int, ...], seconds: float) -> None:
        """Record a redone step. If a death makes some ranks agree twice and others once, the
        entries are merged so that all are equal.
        """
        new = RedoneStep(self._step, first, buckets, lost, self.alive, seconds)
        if self.redone and self.redone[-1].first == first:
            last = self.redone.pop()
            new = replace(
                new, lost=tuple(sorted({*last.lost, *lost})), seconds=last.seconds + seconds
            )
        self.redone.append(new)

    def _exchange(self, place: int) -> None:
        """Start the collective of a bucket. The buffer of the last step is reused: allocating costs
        as much as the copy.
        """
        item = self._round.buckets[place]
        if item.led:
            item.sent = sent = item.own.clone()
        else:
            room = self._room.get(place)
            room = (
                torch.empty_like(item.own) if room is None or room.shape != item.own.shape else room
            )
            self._room[place] = item.sent = sent = torch.mul(
                item.own, 1.0 / len(self.alive), out=room
            )
        try:
            item.work = translate_gloo_error(
                lambda: (
                    self._group.broadcast(sent, 0) if item.led else self._group.allreduce([sent])
                )
            )
        except CollectiveFailed:
            item.work = None

    def _wait(self, work: Any) -> None:
        """Wait for a collective. CollectiveFailed if it failed, or if a death means that it cannot
        finish.
        """
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
        """Form the group of survivors and agree where the attempt ends; returns the furthest round
        that any rank has reached.
        """
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
        """Wait for a death that explains the failure; _Ended if another rank has left, EcrlError
        after `patience_s`.
        """
        deadline = monotonic() + self.patience_s
        while not self._membership.wait_beyond(self.epoch, 0.02):
            if self._store.check([_END]):
                raise _Ended
            if monotonic() >= deadline:
                fact = (
                    f"an exchange failed ({cause}) and no rank has died within"
                    f" {self.patience_s:g} s"
                )
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
        """Write the end to the store; returns the survivors as the first rank wrote them, so that
        all ranks agree on a rank that dies meanwhile.
        """
        return _parsed(
            self._store.compare_set(_END, "", " ".join(map(str, (end, *self._membership.alive))))
        )[1]

    def _mark_dead(self) -> None:
        for _, written in _ABANDONED_GROUPS:
            written[:] = [(work, sent) for work, sent in written if not work.is_completed()]
        self._room = {}  # an abandoned collective may still write there
        _ABANDONED_GROUPS.append(
            (
                self._group,
                [(item.work, item.sent) for item in self._round.buckets if item.work is not None],
            )
        )

    def _form(self) -> Any:
        return self._rendezvous.form(f"members{self.epoch}", self.rank, self.alive, self._look)

    def _look(self) -> None:
        if self._store.check([_END]):
            raise _Ended
        if self._membership.epoch != self.epoch:
            raise CollectiveFailed("a rank has died")


def _parsed(data: bytes) -> tuple[int, tuple[int, ...]]:
    """The round from which on a rank has left, and the survivors at that time."""
    end, *alive = map(int, data.split())
    return end, tuple(alive)


def group_of_one() -> Any:
    """The process's default group, of this rank alone, for DDP itself."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    return dist.group.WORLD


@dataclass
class Bucket:
    """One collective: `own` is the unchanged input, `sent` the copy in flight. Averages over all
    ranks, or (`led`) broadcasts from the first.
    """

    own: torch.Tensor
    led: bool = False
    sent: torch.Tensor | None = None
    work: Any = None


@dataclass
class ExchangeRound:
    """All collectives before a barrier: the gradients of a step and the first rank's buffers, or
    one other collective.

    `place`: number of the round; `done`: how many of its buckets have finished. `redoes`: whether
    the survivors finish it after a death.
    """

    place: int
    redoes: bool = False
    buckets: list[Bucket] = field(default_factory=list)
    done: int = 0


def gathered(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of `tensors`, concatenated: a uint8 vector."""
    return torch.cat([raw(tensor) for tensor in tensors])


def scatter(data: torch.Tensor | None, tensors: Sequence[torch.Tensor]) -> None:
    """Write the bytes from `gathered` into `tensors`, which must have the same shapes and
    dtypes.
    """
    assert data is not None
    with torch.no_grad():
        for tensor, part in zip(
            tensors,
            torch.split(data, [tensor.numel() * tensor.element_size() for tensor in tensors]),
            strict=True,
        ):
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
