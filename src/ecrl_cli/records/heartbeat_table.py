"""The board: shared memory in which every rank of an attempt says where it is, and in which ranks learn that they are to stop.

One memory file per supervisor, made by it and handed to the ranks and the writer as a descriptor: no name, nothing to leak. A beat is a
write of one 64-byte slot, under a microsecond; nobody is woken by it. Whoever watches compares slots for change, never clocks of others.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass

from ecrl_cli.linux.clock import monotonic

# Where a rank can be, in the order in which a step passes through: of two ranks, the one that is less far holds up the other.
PHASES = ("nowhere", "importing", "rendezvous", "loading", "forward", "backward", "update", "logging", "saving", "flushing", "done")

_HEADER = struct.Struct("<QQ")  # whether to stop; the step to stop behind, plus one
_SLOT = struct.Struct("<QIIddd")  # step, phase, 0, at, own seconds of the last step, beats
_SLOT_BYTES = 64
_MEMBERS = 16  # behind the header: who lives, as a mask, and how often that has changed
_RANKS = 32  # behind that: how many ranks there are
_KEPT = struct.Struct("<QI")  # the step behind which it was kept, plus one; its length
_KEPT_BYTES = 16384  # a rank's generators are 10 KiB


@dataclass(frozen=True)
class Heartbeat:
    """`global_step`: the step being worked on. `at`: monotonic, when the phase began. `own_s`: seconds that the rank worked on its own in its
    last step, before it had to wait for others. `beats`: how often the slot was written."""

    global_step: int
    phase: str
    at: float
    own_s: float
    beats: int


class HeartbeatTable:
    """Slots 0 to `ranks` - 1 belong to the ranks, slot `ranks` to the background writer. Each slot has one writer.

    Behind the slots each rank has room for what must outlive it: see `keep`.
    """

    def __init__(self, fd: int) -> None:
        """Attach to the memory file `fd`, which this object owns from now on."""
        self.fd = fd
        self._memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self.ranks = int(struct.unpack_from("<Q", self._memory, _RANKS)[0])
        self._beats = [0] * (self.ranks + 1)

    @classmethod
    def create(cls, ranks: int) -> HeartbeatTable:
        fd = os.memfd_create("ecrl-board")
        os.ftruncate(fd, (ranks + 2) * _SLOT_BYTES + 2 * ranks * _KEPT_BYTES)
        os.pwrite(fd, struct.pack("<Q", ranks), _RANKS)
        return cls(fd)

    @property
    def writer(self) -> int:
        return self.ranks

    def write(self, slot: int, global_step: int, phase: str, own_s: float = 0.0) -> None:
        self._beats[slot] += 1
        _SLOT.pack_into(self._memory, _at(slot), global_step, PHASES.index(phase), 0, monotonic(), own_s, float(self._beats[slot]))

    def read(self, slot: int) -> Heartbeat:
        step, phase, _, at, own_s, beats = _SLOT.unpack_from(self._memory, _at(slot))
        return Heartbeat(step, PHASES[phase], at, own_s, int(beats))

    def ask_to_stop(self) -> None:
        """The supervisor's word: rank 0 shall choose a step behind which all stop."""
        struct.pack_into("<Q", self._memory, 0, 1)

    @property
    def stop_asked(self) -> bool:
        return bool(_HEADER.unpack_from(self._memory, 0)[0])

    def agree(self, global_step: int) -> None:
        """Rank 0's word, before it begins that step: every rank has seen it when the step's gradients have been exchanged."""
        struct.pack_into("<Q", self._memory, 8, global_step + 1)

    @property
    def agreed(self) -> int | None:
        """The step behind which all stop; None where nobody is to stop."""
        step = _HEADER.unpack_from(self._memory, 0)[1]
        return step - 1 if step else None

    def set_members(self, ranks: int) -> None:
        """The supervisor's word: ranks 0 to `ranks` - 1 (at most 64) are members, in epoch 1."""
        struct.pack_into("<QQ", self._memory, _MEMBERS, (1 << ranks) - 1, 1)

    def mark_dead(self, rank: int) -> None:
        """The supervisor's word: `rank` has died. The epoch rises after the membership has changed."""
        mask, epoch = struct.unpack_from("<QQ", self._memory, _MEMBERS)
        struct.pack_into("<Q", self._memory, _MEMBERS, mask & ~(1 << rank))
        struct.pack_into("<Q", self._memory, _MEMBERS + 8, epoch + 1)

    @property
    def epoch(self) -> int:
        return int(struct.unpack_from("<Q", self._memory, _MEMBERS + 8)[0])

    @property
    def members(self) -> tuple[int, ...]:
        """Who lives, ascending, as of `epoch` or later."""
        mask = struct.unpack_from("<Q", self._memory, _MEMBERS)[0]
        return tuple(rank for rank in range(64) if mask >> rank & 1)

    def store_rank_state(self, rank: int, global_step: int, data: bytes) -> None:
        """Keep what `rank` is behind `global_step` beyond its death, and what it was behind the step before."""
        place = self._kept_at(rank, global_step)
        struct.pack_into("<Q", self._memory, place, 0)
        self._memory[place + _KEPT.size : place + _KEPT.size + len(data)] = data
        _KEPT.pack_into(self._memory, place, global_step + 1, len(data))

    def load_rank_state(self, rank: int, global_step: int) -> bytes | None:
        """What `rank` kept behind `global_step`; None where that is not there any more, or was not whole when it died."""
        place = self._kept_at(rank, global_step)
        step, length = _KEPT.unpack_from(self._memory, place)
        return self._memory[place + _KEPT.size : place + _KEPT.size + length] if step == global_step + 1 else None

    def _kept_at(self, rank: int, global_step: int) -> int:
        return (self.ranks + 2) * _SLOT_BYTES + (2 * rank + global_step % 2) * _KEPT_BYTES

    def clear(self) -> None:
        """As new, for the next attempt; only while no rank writes. The writer's slot stays, it outlives attempts; so does what ranks have kept."""
        self._memory[:_RANKS] = bytes(_RANKS)
        self._memory[_SLOT_BYTES : _at(self.ranks)] = bytes(_at(self.ranks) - _SLOT_BYTES)

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)


def _at(slot: int) -> int:
    return (slot + 1) * _SLOT_BYTES
