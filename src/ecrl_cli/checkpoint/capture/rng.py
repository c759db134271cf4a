"""The random number generators of one rank (Python's, NumPy's, torch's on the CPU and its CUDA
device): seeded, captured as bytes, restored.

Seeds are derived from what a stream belongs to, so that no stored state is needed to draw the same
numbers again.
"""

from __future__ import annotations

import random
import struct

import numpy as np
import torch

# Python: 625 words of state, whether a second Gaussian is cached, its value. NumPy: 624 words,
# position, the same two.
_PYTHON = struct.Struct("<625I?d")
_NUMPY = struct.Struct("<624II?d")

_REPLICAS = 0x7265706C  # "repl": keeps replica streams apart from rank streams


def capture_rng(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of every generator by name (python, numpy, torch, and cuda on a CUDA device), as
    uint8 vectors of fixed sizes.
    """
    version, words, gauss = random.getstate()
    assert version == 3
    python = _PYTHON.pack(*words, gauss is not None, gauss or 0.0)
    name, key, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert name == "MT19937"
    numpy = _NUMPY.pack(*np.asarray(key).tolist(), position, bool(has_gauss), cached)
    states = {"python": _bytes(python), "numpy": _bytes(numpy), "torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_rng(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Set every generator. The CUDA state is restored only if it was captured and `device` is
    CUDA.
    """
    *words, has_gauss, gauss = _PYTHON.unpack(states["python"].numpy().tobytes())
    random.setstate((3, tuple(words), gauss if has_gauss else None))
    *key, position, has_cached, cached = _NUMPY.unpack(states["numpy"].numpy().tobytes())
    np.random.set_state(
        ("MT19937", np.array(key, dtype=np.uint32), position, int(has_cached), cached)
    )
    torch.set_rng_state(states["torch"].clone())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].clone(), device)


def packed(states: dict[str, torch.Tensor]) -> bytes:
    """The states concatenated into one byte string, for `unpacked` on the same kind of device."""
    return torch.cat([*states.values()]).numpy().tobytes()


def unpacked(data: bytes, device: torch.device) -> dict[str, torch.Tensor]:
    like = capture_rng(device)
    return dict(
        zip(
            like, torch.split(_bytes(data), [state.numel() for state in like.values()]), strict=True
        )
    )


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def seed_rank(seed: int, rank: int, step: int) -> None:
    """Seed this rank's own streams (dropout must differ between ranks) from (seed, rank, the step
    after which it starts).

    A rank with saved RNG state restores it afterwards; one that joins, or rejoins, when the world
    grows keeps these.
    """
    _seed([seed, rank, step])


def seed_replica(seed: int, global_step: int, replica: int) -> None:
    """Seed the streams of a replica in one step, whichever rank computes it. The number after the
    last replica sets the state between steps.
    """
    _seed([seed, global_step, replica, _REPLICAS])


def _seed(entropy: list[int]) -> None:
    words = np.random.SeedSequence(entropy).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))
