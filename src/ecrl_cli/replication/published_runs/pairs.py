"""Compares the published runs with each other: where a run with failures leaves its reference, and
what is judged by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ecrl_cli.replication.published_runs.logs import PublishedRun, RankStep, StateStep


def first_difference(one: PublishedRun, other: PublishedRun) -> tuple[int, int] | None:
    """The first step at which a rank's losses differ, and the lowest such rank; None if they are
    the same number at every step of every rank.
    """
    found = [
        (step, rank)
        for rank, (ours, theirs) in enumerate(zip(one.steps, other.steps, strict=False))
        for step in [_first(ours.keys() & theirs.keys(), ours, theirs)]
        if step is not None
    ]
    return min(found, default=None)


def _first(steps: set[int], ours: dict[int, RankStep], theirs: dict[int, RankStep]) -> int | None:
    return min((step for step in steps if ours[step].loss != theirs[step].loss), default=None)


@dataclass(frozen=True)
class Pair:
    """A run with failures and the reference of its suite and seed."""

    run: PublishedRun
    reference: PublishedRun

    @cached_property
    def difference(self) -> tuple[int, int] | None:
        """The first step and rank whose losses differ."""
        return first_difference(self.run, self.reference)

    @property
    def failure(self) -> int | None:
        """The step of the first failure."""
        return min(self.run.exits, default=None)

    @cached_property
    def parted(self) -> int | None:
        """The first step at which the losses differ, or weights that were compared."""
        steps = [] if self.difference is None else [self.difference[0]]
        steps += [step for step, state in self.states() if not same(state)]
        return min(steps, default=None)

    @property
    def judged(self) -> str:
        """`valid`: the reference's losses and weights throughout; `invalid`: they part behind a
        failure; `unknown`: they part before any, so what a failure did cannot be told.
        """
        if self.parted is None:
            return "valid"
        if self.failure is None or self.parted <= self.failure:
            return "unknown"
        return "invalid"

    @cached_property
    def other_samples(self) -> int:
        """Steps, over all ranks, whose samples are not the reference's."""
        return sum(
            line.sample_ids_hash != theirs[step].sample_ids_hash
            for ours, theirs in zip(self.run.steps, self.reference.steps, strict=False)
            for step, line in ours.items()
            if step in theirs
        )

    def states(self) -> list[tuple[int, StateStep]]:
        """The steps at which both runs' weights were compared."""
        steps = {} if self.run.divergence is None else self.run.divergence.steps
        found = [(int(s), state) for s, state in steps.items() if s.isdecimal() and state.available]
        return sorted(found, key=lambda pair: pair[0])


def same(state: StateStep) -> bool:
    """Whether the two runs' weights had one digest."""
    return state.candidate_digest == state.reference_digest


@dataclass(frozen=True)
class Matrix:
    """The runs of one matrix."""

    name: str
    runs: tuple[PublishedRun, ...]

    def arm(self, name: str) -> list[PublishedRun]:
        return [run for run in self.runs if run.name.arm == name]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Each run with failures beside its reference, as far as there is one."""
        references = {run.name.pair: run for run in self.arm("ref")}
        return [
            Pair(run, references[run.name.pair])
            for run in self.runs
            if run.name.arm != "ref" and run.name.pair in references
        ]

    @property
    def with_failures(self) -> list[PublishedRun]:
        return [run for run in self.runs if run.name.arm != "ref"]

    @cached_property
    def strategies(self) -> list[tuple[PublishedRun, PublishedRun]]:
        """Blocking and overlapped of the same suite and seed."""
        overlapped = {run.name.pair: run for run in self.arm("ovl")}
        return [
            (run, overlapped[run.name.pair])
            for run in self.arm("blk")
            if run.name.pair in overlapped
        ]


def matrices(runs: Sequence[PublishedRun]) -> list[Matrix]:
    """The runs by matrix, in the order of their names."""
    names = sorted({run.name.matrix for run in runs})
    return [Matrix(name, tuple(run for run in runs if run.name.matrix == name)) for name in names]
