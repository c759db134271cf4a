"""The heartbeat table: shared memory with each rank's progress, stop requests, membership and
copies of RNG state.

One memfd per supervisor, passed to the ranks and the writer as a descriptor: it has no name and
nothing can leak. A heartbeat writes one 64-byte slot in under a microsecond and wakes nobody.
Readers detect change by comparing slots, never by comparing clocks of different processes.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass

from ecrl_cli.linux.clock import monotonic

# The phases of a rank, in the order in which a step passes through them: of two ranks, the one in
# the earlier phase holds up the other.
PHASES = (
    "nowhere",
    "importing",
    "rendezvous",
    "loading",
    "forward",
    "backward",
    "update",
    "logging",
    "evaluating",
    "saving",
    "flushing",
    "done",
)

_HEADER = struct.Struct("<QQ")  # stop requested; the agreed step to stop after, plus one
# step, phase, 0, at, own seconds of the last step, number of heartbeats
_SLOT = struct.Struct("<QIIddd")
_SLOT_BYTES = 64
_MEMBERS = 16  # offset after the header: member ranks as a bit mask, and the membership epoch
_RANKS = 32  # offset of the number of ranks
# the step after which the state was stored, plus one; its length in bytes
_KEPT = struct.Struct("<QI")
_KEPT_BYTES = 16384  # the RNG state of a rank is 10 KiB


@dataclass(frozen=True)
class Heartbeat:
    """One slot as read.

    `global_step`: the step being worked on. `at`: monotonic seconds when the phase began. `own_s`:
    seconds that the rank worked in its last step before it had to wait for others. `beats`: how
    often the slot was written.
    """

    global_step: int
    phase: str
    at: float
    own_s: float
    beats: int


class HeartbeatTable:
    """Slots 0 to `ranks` - 1 belong to the ranks, slot `ranks` to the background writer. Each slot
    has one writer.

    After the slots, each rank has room for state that must survive its death: see
    `store_rank_state`.
    """

    def __init__(self, fd: int) -> None:
        """Attach to the memory file `fd`; this object owns it from now on."""
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
        _SLOT.pack_into(
            self._memory,
            _at(slot),
            global_step,
            PHASES.index(phase),
            0,
            monotonic(),
            own_s,
            float(self._beats[slot]),
        )

    def read(self, slot: int) -> Heartbeat:
        step, phase, _, at, own_s, beats = _SLOT.unpack_from(self._memory, _at(slot))
        return Heartbeat(step, PHASES[phase], at, own_s, int(beats))

    def ask_to_stop(self) -> None:
        """Called by the supervisor: ask rank 0 to choose a step after which all ranks stop."""
        struct.pack_into("<Q", self._memory, 0, 1)

    @property
    def stop_asked(self) -> bool:
        return bool(_HEADER.unpack_from(self._memory, 0)[0])

    def agree(self, global_step: int) -> None:
        """Called by rank 0 before it begins `global_step`, the last one: every rank sees it by the
        time that step's gradients are exchanged.
        """
        struct.pack_into("<Q", self._memory, 8, global_step + 1)

    @property
    def agreed(self) -> int | None:
        """The step after which all ranks stop; None if no stop was agreed."""
        step = _HEADER.unpack_from(self._memory, 0)[1]
        return step - 1 if step else None

    def set_members(self, ranks: int) -> None:
        """Called by the supervisor: ranks 0 to `ranks` - 1 (at most 64) are members, in epoch 1."""
        struct.pack_into("<QQ", self._memory, _MEMBERS, (1 << ranks) - 1, 1)

    def mark_dead(self, rank: int) -> None:
        """Called by the supervisor: `rank` has died. The epoch is raised after the membership has
        changed.
        """
        mask, epoch = struct.unpack_from("<QQ", self._memory, _MEMBERS)
        struct.pack_into("<Q", self._memory, _MEMBERS, mask & ~(1 << rank))
        struct.pack_into("<Q", self._memory, _MEMBERS + 8, epoch + 1)

    @property
    def epoch(self) -> int:
        return int(struct.unpack_from("<Q", self._memory, _MEMBERS + 8)[0])

    @property
    def members(self) -> tuple[int, ...]:
        """The living ranks, ascending, as of `epoch` or later."""
        mask = struct.unpack_from("<Q", self._memory, _MEMBERS)[0]
        return tuple(rank for rank in range(64) if mask >> rank & 1)

    def store_rank_state(self, rank: int, global_step: int, data: bytes) -> None:
        """Store `rank`'s state after `global_step` so that it survives the rank's death; the state
        of the step before is kept too.
        """
        place = self._kept_at(rank, global_step)
        struct.pack_into("<Q", self._memory, place, 0)
        self._memory[place + _KEPT.size : place + _KEPT.size + len(data)] = data
        _KEPT.pack_into(self._memory, place, global_step + 1, len(data))

    def load_rank_state(self, rank: int, global_step: int) -> bytes | None:
        """The state that `rank` stored after `global_step`; None if it was overwritten, or was
        incomplete when the rank died.
        """
        place = self._kept_at(rank, global_step)
        step, length = _KEPT.unpack_from(self._memory, place)
        return (
            self._memory[place + _KEPT.size : place + _KEPT.size + length]
            if step == global_step + 1
            else None
        )

    def _kept_at(self, rank: int, global_step: int) -> int:
        return (self.ranks + 2) * _SLOT_BYTES + (2 * rank + global_step % 2) * _KEPT_BYTES

    def clear(self) -> None:
        """Reset for the next attempt; only while no rank writes. Keeps the writer's slot (the
        writer serves several attempts) and the stored rank states.
        """
        self._memory[:_RANKS] = bytes(_RANKS)
        self._memory[_SLOT_BYTES : _at(self.ranks)] = bytes(_at(self.ranks) - _SLOT_BYTES)

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)


def _at(slot: int) -> int:
    return (slot + 1) * _SLOT_BYTES
