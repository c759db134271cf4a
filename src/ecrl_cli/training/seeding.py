"""RNG seeds derived from what a stream belongs to, so that no stored state is needed to draw the same numbers again."""

from __future__ import annotations

import random

import numpy as np
import torch

_REPLICAS = 0x7265706C  # "repl": keeps replica streams apart from rank streams


def seed_rank(seed: int, rank: int, step: int) -> None:
    """Seed this rank's own streams (dropout must differ between ranks) from (seed, rank, the step after which it starts).

    A rank with saved RNG state restores it afterwards; one that joins, or rejoins, when the world grows keeps these.
    """
    _seed([seed, rank, step])


def seed_replica(seed: int, global_step: int, replica: int) -> None:
    """Seed the streams of a replica in one step, whichever rank computes it. The number after the last replica sets the state between steps."""
    _seed([seed, global_step, replica, _REPLICAS])


def _seed(entropy: list[int]) -> None:
    words = np.random.SeedSequence(entropy).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))
