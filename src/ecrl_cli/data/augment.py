"""Random crop and horizontal flip, keyed by (seed, epoch, sample_id): a sample looks the same on any rank, world size and attempt."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ecrl_cli.data.philox import draws, integers

Pixels = npt.NDArray[np.uint8]


def augment(pixels: Pixels, words: npt.NDArray[np.uint64], padding: int, flip: bool) -> Pixels:
    """Crops `pixels` (n, c, h, w) at random from the zero-padded images and flips half of them; `words` (n, 4) are the random numbers."""
    n, _, height, width = pixels.shape
    padded = np.pad(pixels, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    rows, columns = integers(words[:, 0], 2 * padding + 1), integers(words[:, 1], 2 * padding + 1)
    flipped = integers(words[:, 2], 2).astype(bool) if flip else np.zeros(n, dtype=bool)
    out = np.empty_like(pixels)
    for i, (top, left, mirrored) in enumerate(zip(rows.tolist(), columns.tolist(), flipped.tolist(), strict=True)):
        crop = padded[i, :, top : top + height, left : left + width]
        out[i] = crop[:, :, ::-1] if mirrored else crop
    return out


def augmented(pixels: Pixels, seed: int, epoch: int, ids: npt.NDArray[np.int64], flip: bool) -> Pixels:
    """`pixels` of the samples `ids`, augmented as in `epoch`; padding is an eighth of the height (4 of 32, 1 of 8)."""
    return augment(pixels, draws(seed, epoch, ids), pixels.shape[2] // 8, flip)
