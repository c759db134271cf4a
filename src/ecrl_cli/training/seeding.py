"""Where random numbers come from: derived from what a stream belongs to, so that nothing needs to be remembered to draw them again."""

from __future__ import annotations

import random

import numpy as np
import torch

_REPLICAS = 0x7265706C  # "repl": streams that no rank draws from


def seed_rank(seed: int, rank: int, step: int) -> None:
    """Every rank its own streams (dropout must differ between ranks), derived from (seed, rank, the step it begins behind).

    A rank that was there before takes up its old streams afterwards; one that comes, or comes back, with a larger world begins these.
    """
    _seed([seed, rank, step])


def seed_replica(seed: int, global_step: int, replica: int) -> None:
    """The streams of a replica in one step, whichever rank computes it. The number behind the last replica is nobody's: it is left behind."""
    _seed([seed, global_step, replica, _REPLICAS])


def _seed(entropy: list[int]) -> None:
    words = np.random.SeedSequence(entropy).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))
