"""Checks that every sample of every mini-batch is applied once to every layer or recorded as lost.
Pure: works on records only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ecrl_cli.errors import plural, shown
from ecrl_cli.history.exactly_once import discrepancies
from ecrl_cli.records.survivor_records import EFFECTS, LOST, AppliedSamples, LostSamples

Windows = Mapping[int, Sequence[int]]


def unaccounted(
    windows: Windows,
    layers: Sequence[str],
    applied: Iterable[AppliedSamples],
    recorded: Iterable[LostSamples],
) -> list[str]:
    """Discrepancies, one sentence each; empty if everything adds up.

    For each global step of `windows` and each layer: the samples applied are those of the batch,
    minus those recorded as lost, plus those recorded as repeated. Records of other steps or unknown
    layers are reported too. Samples are counted as multisets: one that is in a batch twice is due
    twice.
    """
    lines, done = list(recorded), list(applied)
    sentences = _strangers(windows, layers, done, lines)
    influences: dict[int, list[tuple[int, AppliedSamples | LostSamples]]] = defaultdict(list)
    for each in done:
        influences[each.global_step].append((1, each))
    for line in lines:
        influences[line.global_step].append((1 if line.effect == LOST else -1, line))
    for step, window in windows.items():
        sentences += _step(step, window, layers, influences.get(step, []))
    return sentences


def _strangers(
    windows: Windows,
    layers: Sequence[str],
    done: Sequence[AppliedSamples],
    lines: Sequence[LostSamples],
) -> list[str]:
    known, sentences = set(layers), []
    records: list[AppliedSamples | LostSamples] = [*done, *lines]
    for record in records:
        if record.global_step not in windows:
            sentences.append(f"step {record.global_step} is on record and was never due")
        if unknown := [layer for layer in record.layers if layer not in known]:
            sentences.append(f"step {record.global_step}: no layer is called {shown(unknown[0])}")
    return sentences + [
        f"step {line.global_step}: {shown(line.effect)} is no effect"
        for line in lines
        if line.effect not in EFFECTS
    ]


def _step(
    step: int,
    window: Sequence[int],
    layers: Sequence[str],
    influences: list[tuple[int, AppliedSamples | LostSamples]],
) -> list[str]:
    """The discrepancies of one step; layers with the same records are checked together."""
    touching: dict[str, list[int]] = {layer: [] for layer in layers}
    for number, (_, record) in enumerate(influences):
        for layer in record.layers:
            if layer in touching:
                touching[layer].append(number)
    alike: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for layer, numbers in touching.items():
        alike[tuple(numbers)].append(layer)
    sentences = []
    for together, names in alike.items():
        count = Counter[int]()
        for number in together:
            sign, record = influences[number]
            for sample in record.samples:
                count[sample] += sign
        sentences += _differences(step, names, discrepancies(count, Counter(window)))
    return sentences


def _differences(step: int, names: list[str], wrong: dict[int, int]) -> list[str]:
    if not wrong:
        return []
    sample, times = min(wrong.items())
    word = "too often" if times > 0 else "too seldom"
    where = f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
    return [
        f"step {step}: {plural(len(wrong), 'sample')}, the first {sample}, count"
        f" {plural(abs(times), 'time')} {word} on {where}"
    ]
