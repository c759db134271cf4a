"""Gates that must hold whatever the accuracies are; each names the cells that violate it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.replication.mini_batch.cells import Cell, corrections
from ecrl_cli.replication.mini_batch.counts import Case, Counts, Run, cell_of, label
from ecrl_cli.replication.mini_batch.dormant_arm import RANKS
from ecrl_cli.replication.mini_batch.strategies import EXACT


def gates(tally: Counts) -> tuple[Gate, ...]:
    found = [_planned(tally), _casualties(tally), _masked(tally), _moved(tally), _exact(tally), _inexact(tally), *_forward(tally)]
    found += [*_lost_samples(tally), *_long(tally), *_dormant(tally)]
    return tuple(gate for gate in found if gate is not None)


def _none(name: str, wrong: Iterable[str], of: int, what: str) -> Gate:
    """Passed if nothing is `wrong` among at least one case."""
    found = list(wrong)
    named = "".join((": ", "; ".join(found[:3]), "; ..." if len(found) > 3 else "")) if found else ""
    return Gate(name, not found and of > 0, f"{len(found)} of {of} {what}{named}")


def _named(case: Case, found: Run) -> str:
    cell = cell_of(found)
    return f"{case.label}: {label(cell)}{f' ({cell.flipped} the other way)' if cell.flipped else ''}"


def _planned(tally: Counts) -> Gate:
    """Every planned cell was tried in every scenario of every run."""
    plan = tally.plan()
    runs = [(case, run) for case in tally.cases for run in case.runs]
    wrong = [case.label for case, run in runs if [cell_of(found) for found in run["cells"]] != plan]
    return _none("cells", wrong, len(runs), f"scenarios were not tried in all of their {len(plan)} cells")


def due(cell: Cell, workers: int) -> list[int]:
    """Expected number of contributors to each update of the mini-batch that is part of the final state."""
    if cell.strategy in EXACT:
        return [workers]
    head = [workers] if cell.percent else []
    return head + {"immediate_rollback": [workers], "lossy_forward": [cell.survivors], "skip": []}[cell.strategy]


def _casualties(tally: Counts) -> Gate:
    every = list(tally.every())
    wrong = [_named(case, found) for case, found in every if found["contributed"] != due(cell_of(found), tally.config.replicas)]
    return _none("casualties", wrong, len(every), "cells had other contributors than planned")


def _masking(tally: Counts) -> Iterator[tuple[Case, Run, bool]]:
    """The cells in which some layers must not move, and whether the update was masked there."""
    for case, found in tally.every():
        if found["percent"] and found["strategy"] != "lossy_forward":
            yield case, found, corrections(tally.config, found["flipped"]).mask


def _masked(tally: Counts) -> Gate | None:
    tried = [(case, found) for case, found, masked in _masking(tally) if masked]
    wrong = [_named(case, found) for case, found in tried if not found["kept"]]
    return _none("masked", wrong, len(tried), "masked updates moved a bit of what they were to leave alone") if tried else None


def _moved(tally: Counts) -> Gate | None:
    """Updates with zero gradients must move the state under momentum or weight decay; otherwise the masking gate could not fail."""
    unmasked = [(case, found) for case, found, masked in _masking(tally) if not masked]
    tried = [each for each in unmasked if each[0].size.optimizer.momentum or each[0].size.optimizer.weight_decay]
    wrong = [_named(case, found) for case, found in tried if found["kept"]]
    return _none("zero gradients", wrong, len(tried), "updates with gradients of zero moved nothing") if tried else None


def _exact(tally: Counts) -> Gate | None:
    tried = [(case, found) for case, found in tally.every() if found["strategy"] in EXACT]
    wrong = [_named(case, found) for case, found in tried if not case.exact(found)]
    return _none("exact", wrong, len(tried), "exact recoveries ended in another state than Baseline") if tried else None


def _inexact(tally: Counts) -> Gate | None:
    """Half-updated states must not compare as exact; otherwise the comparison is blind."""
    tried = [(case, found) for case, found in tally.every() if found["strategy"] not in EXACT and found["percent"]]
    wrong = [_named(case, found) for case, found in tried if case.exact(found)]
    return _none("inexact", wrong, len(tried), "recoveries from a half-updated state passed for exact") if tried else None


def _forward(tally: Counts) -> Iterator[Gate]:
    """A failure in the forward pass is exact only with buffers rolled back or absent, contrary to the published study."""
    tried = [each for each in tally.every() if each[1]["strategy"] == "immediate_rollback" and not each[1]["percent"]]
    if not tried:
        return
    rolled = [(case, found) for case, found in tried if corrections(tally.config, found["flipped"]).buffers or case.application == "nt3"]
    moved = [each for each in tried if each not in rolled]
    wrong = [_named(case, found) for case, found in rolled if not case.exact(found)]
    yield _none("forward", wrong, len(rolled), "failures in forward ended in another state than Baseline")
    if moved:
        wrong = [_named(case, found) for case, found in moved if case.exact(found)]
        yield _none("forward is not read-only", wrong, len(moved), "failures in forward passed for exact although BatchNorm had moved")


def _lost_samples(tally: Counts) -> Iterator[Gate]:
    every = list(tally.every())
    wrong = [f"{_named(case, found)}: {found['unaccounted'][0]}" for case, found in every if found["unaccounted"]]
    yield _none("ledger", wrong, len(every), "cells have samples that are neither applied once nor on record")
    needed = [(case, found) for case, found in every if found["lost"] or found["repeated"]]
    if needed:
        blind = [_named(case, found) for case, found in needed if found["blind"]]
        yield _none("ledger, planted", blind, len(needed), "missing lost-samples records went unnoticed")


def _long(tally: Counts) -> Iterator[Gate]:
    arms = [(record, arm) for record in tally.longs for arm in record.found["arms"]]
    if not arms:
        return
    names = [f"{record.key}: {arm['strategy']} {arm['often']}" for record, arm in arms]
    wrong = [f"{name}: {arm['unaccounted'][0]}" for name, (_, arm) in zip(names, arms, strict=True) if arm["unaccounted"]]
    yield _none("long run, ledger", wrong, len(arms), "runs have samples that are neither applied once nor on record")
    exact = [(name, arm) for name, (_, arm) in zip(names, arms, strict=True) if arm["strategy"] in EXACT]
    if exact:
        wrong = [name for name, arm in exact if not arm["same"]]
        yield _none("long run, exact", wrong, len(exact), "runs with exact recoveries ended in another state than the run without a failure")


def _dormant(tally: Counts) -> Iterator[Gate]:
    if tally.dormant is None:
        return
    counted, rounds = tally.dormant["counted"], tally.dormant["rounds"]
    same = bool(tally.dormant["same"])
    said = f"in {rounds} mini-batches the averages {'had' if same else 'did not all have'} the bits of those in a group of the active ones alone"
    yield Gate("dormant", same, said)
    planned = [RANKS, RANKS - 1, RANKS - 1, RANKS]
    yield Gate("dormant, planned", counted == planned, f"{counted} of {planned} contributed to the averages of a mini-batch")
