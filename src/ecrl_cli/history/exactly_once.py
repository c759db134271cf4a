"""The meaning of "exactly once", for every judge: the committed steps consumed the samples that
were due in them, each as often as it was due, and each rank's in the order in which they were due.

Committed are the steps whose state led to the end. One that was done again after a restart counts
by its last pass; what only an earlier pass consumed was taken back with its state. A judge brings
what its records tell: which steps are committed (`history.lineage`, or `audit.lineage` by content),
what they consumed, and what was due (the order of the data set, or an undisturbed run). Samples may
be counted in shares, by anything that tells one from another (an id, a place, a hash).

A sample that is missing breaks the promise only where the record is whole: else nobody may have
lived to tell of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def in_order(consumed: T | None, expected: T | None) -> bool:
    """Whether a rank consumed in a step what was due, in its order; None: not on record, which
    tells nothing.
    """
    return consumed is None or expected is None or consumed == expected


def discrepancies(consumed: Mapping[T, int], expected: Mapping[T, int]) -> dict[T, int]:
    """By sample that was not consumed as often as it was due, in any order: how much too often, or
    below 0 too seldom. Empty: each was, exactly.
    """
    apart = {sample: count - expected.get(sample, 0) for sample, count in consumed.items()}
    apart |= {sample: -count for sample, count in expected.items() if sample not in consumed}
    return {sample: count for sample, count in apart.items() if count}


@dataclass(frozen=True)
class SampleCounts:
    """How many samples were consumed. `duplicates`: more often than due, or more than once if never
    due; `missing`: due, and not consumed; `extra`: never due, once each. `consumed` and `missing`
    are together those due, `duplicates` and `extra`.
    """

    consumed: int
    duplicates: int = 0
    missing: int = 0
    extra: int = 0

    @property
    def too_often(self) -> int:
        return self.duplicates + self.extra


def counted(
    consumed: Mapping[T, int], expected: Mapping[T, int], size: Callable[[T], int] = lambda _: 1
) -> SampleCounts:
    """`consumed` held against what was due. `size`: how many samples a share stands for."""
    apart = discrepancies(consumed, expected)
    extra = sum(size(share) for share in apart if not expected.get(share))
    too_often = sum(count * size(share) for share, count in apart.items() if count > 0)
    return SampleCounts(
        consumed=sum(count * size(share) for share, count in consumed.items()),
        duplicates=too_often - extra,
        missing=sum(-count * size(share) for share, count in apart.items() if count < 0),
        extra=extra,
    )
