"""The lost-sample ledger: which samples of a mini-batch have no influence, or more than their share, on which layers. Torch-free.

A recovery that does not roll back to a consistent state gives up "exactly once". What it gives up stands here, a line per failure and effect;
everything else must still have been applied exactly once, and `verify.ledger` checks that against what was applied.
"""

from __future__ import annotations

from collections.abc import Iterable

from ecrl_cli.records.survivor_records import LOST, REPEATED, LostSamples


def lost(global_step: int, samples: Iterable[int], layers: Iterable[str], ranks: Iterable[int], cause: str) -> list[LostSamples]:
    """The line that says so; none where nothing was lost."""
    return _line(global_step, LOST, samples, layers, ranks, cause)


def repeated(global_step: int, samples: Iterable[int], layers: Iterable[str], ranks: Iterable[int], cause: str) -> list[LostSamples]:
    """The line that says so; none where nothing was repeated."""
    return _line(global_step, REPEATED, samples, layers, ranks, cause)


def _line(global_step: int, effect: str, samples: Iterable[int], layers: Iterable[str], ranks: Iterable[int], cause: str) -> list[LostSamples]:
    line = LostSamples(global_step, effect, tuple(samples), tuple(layers), tuple(ranks), cause)
    return [line] if line.samples and line.layers else []
