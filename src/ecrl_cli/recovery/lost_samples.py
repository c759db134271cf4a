"""The lost-sample record: which samples of a mini-batch have no influence, or more than their share, on which layers. Torch-free.

A recovery that does not roll back to a consistent state gives up "exactly once". Each exception is recorded here, one line per failure and effect;
all other samples must have been applied exactly once, which `verify.sample_accounting` checks.
"""

from __future__ import annotations

from collections.abc import Iterable

from ecrl_cli.records.survivor_records import LOST, REPEATED, LostSamples


def lost(global_step: int, samples: Iterable[int], layers: Iterable[str], ranks: Iterable[int], cause: str) -> list[LostSamples]:
    """The record of lost samples: one line, or none if nothing was lost."""
    return _line(global_step, LOST, samples, layers, ranks, cause)


def repeated(global_step: int, samples: Iterable[int], layers: Iterable[str], ranks: Iterable[int], cause: str) -> list[LostSamples]:
    """The record of repeated samples: one line, or none if nothing was repeated."""
    return _line(global_step, REPEATED, samples, layers, ranks, cause)


def _line(global_step: int, effect: str, samples: Iterable[int], layers: Iterable[str], ranks: Iterable[int], cause: str) -> list[LostSamples]:
    line = LostSamples(global_step, effect, tuple(samples), tuple(layers), tuple(ranks), cause)
    return [line] if line.samples and line.layers else []
