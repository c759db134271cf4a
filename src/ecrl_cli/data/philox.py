"""Philox4x32-10 (Salmon et al., SC 2011), vectorised over counters: random words that depend on key and counter only.

Each sample has its own counter, so its random numbers do not depend on earlier draws or on the rank.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 10


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Four 32-bit words for each row of `counter`: (n, 4) to (n, 4), every word in the low half of a uint64."""
    c0, c1, c2, c3 = counter.T
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            product0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3), axis=1)


def draws(seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> Words:
    """Four 32-bit words per sample, a function of (seed, epoch, sample id) alone."""
    counter = np.zeros((len(ids), 4), dtype=np.uint64)
    unsigned = ids.astype(np.uint64)
    counter[:, 0], counter[:, 1], counter[:, 2] = unsigned & _LOW, unsigned >> _SHIFT, np.uint64(epoch)
    return philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))


def integers(words: npt.NDArray[np.uint64], below: int) -> npt.NDArray[np.int64]:
    """Maps 32-bit `words` to integers in [0, below) by multiplication, without rejection: one word per integer."""
    return ((words * np.uint64(below)) >> _SHIFT).astype(np.int64)
