"""All runs, arms and gates that the report shows, joined; copies of a recording count once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.report.formats import listed, plural
from ecrl_cli.report.model.arms import Arm, arms_of
from ecrl_cli.report.model.run_record import Metrics, Run
from ecrl_cli.report.model.suite_gates import (
    all_passed,
    gates_of,
    only_unverified,
    pooling_obstacles,
    shares_gpu,
)

ALL = "all suites"
EVERY = "all pairs"  # of an axis, over all others


@dataclass(frozen=True)
class Comparison:
    """All runs, in the order found; `gates` by suite. `notes`: which runs are copies or repeats of
    others, and how they are counted.

    `arms`: of the counted runs, and of the references that serve as `ref`, which are not among the
    runs.
    """

    runs: tuple[Run, ...]
    gates: dict[str, tuple[Gate, ...]]
    arms: tuple[Arm, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def counted(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.counted)

    @cached_property
    def memo(self) -> dict[tuple[str, ...], Any]:
        """Cache of other modules' results about these runs."""
        return {}

    @property
    def metrics(self) -> list[Metrics]:
        """The metrics of the counted runs."""
        return [m for run in self.runs if (m := run.counted)]

    @cached_property
    def left_out(self) -> tuple[Run, ...]:
        """Runs excluded from comparisons; each has its reason."""
        return tuple(run for run in self.runs if not run.counted)

    @property
    def suites(self) -> list[str]:
        return list(self.gates)

    @property
    def labels(self) -> list[str]:
        """The arms' labels over all suites, each once."""
        return list(dict.fromkeys(arm.label for arm in self.arms))

    @cached_property
    def passed(self) -> list[str]:
        """The suites that passed all their gates: only these are averaged."""
        return [suite for suite, gates in self.gates.items() if all_passed(gates)]

    @cached_property
    def why_not_pooled(self) -> str:
        """Why the suites that passed are not pooled, in words (machine, versions or scale differ);
        empty if nothing does.
        """
        firsts = [next(run for run in self.counted if run.suite == suite) for suite in self.passed]
        found = [
            (run.suite, what) for run in firsts[1:] if (what := pooling_obstacles(firsts[0], run))
        ]
        return (
            f"{found[0][0]} has another {listed(found[0][1])} than {firsts[0].suite}"
            if found
            else ""
        )

    @property
    def pooled_suites(self) -> tuple[str, ...]:
        """The suites that are pooled: those that passed, if there are several, all of the same
        machine, code and scale.
        """
        return tuple(self.passed) if len(self.passed) > 1 and not self.why_not_pooled else ()

    @cached_property
    def pooled_arms(self) -> tuple[Arm, ...]:
        """The arms of each label over the pooled suites, as one arm."""
        members: dict[str, list[Arm]] = {}
        for arm in self.arms:
            if arm.suite in self.pooled_suites:
                members.setdefault(arm.label, []).append(arm)
        runs = {
            label: tuple(run for arm in arms for run in arm.runs) for label, arms in members.items()
        }
        return tuple(
            Arm(ALL, arms[0].variant, label, runs[label], settings=arms[0].settings)
            for label, arms in members.items()
        )

    @property
    def without_references(self) -> Comparison:
        """The same without the references that were trained beside the runs: they save less than a
        `ref` does.
        """
        return replace(self, arms=tuple(arm for arm in self.arms if not arm.is_reference))

    @property
    def every_arm(self) -> tuple[Arm, ...]:
        """The arms of each suite, and those over the pooled suites."""
        return (*self.arms, *self.pooled_arms)

    @property
    def scopes(self) -> list[tuple[str, tuple[str, ...]]]:
        """The scopes of the statistics: each suite, and the pooled suites together."""
        each: list[tuple[str, tuple[str, ...]]] = [(suite, (suite,)) for suite in self.suites]
        return [*each, (ALL, self.pooled_suites)] if self.pooled_suites else each

    @property
    def overall(self) -> list[tuple[str, tuple[str, ...]]]:
        """The scopes that represent the whole report: the pooled suites together, else each suite
        that passed.
        """
        return (
            [(ALL, self.pooled_suites)]
            if self.pooled_suites
            else [(suite, (suite,)) for suite in self.passed]
        )

    def scale(self, suites: Sequence[str] | None = None) -> str:
        """The scales of the runs of `suites` (None: all), in words; with a remark if ranks shared a
        GPU.
        """
        key = ("scale", *(("",) if suites is None else ("of", *suites)))
        if key not in self.memo:
            runs = [
                run
                for run in self.counted
                if run.metrics and (suites is None or run.suite in suites)
            ]
            gpu = " (ranks share a GPU over gloo)"
            self.memo[key] = listed(
                list(
                    dict.fromkeys(
                        run.metrics.scale + gpu * shares_gpu(run) for run in runs if run.metrics
                    )
                )
            )
        return str(self.memo[key])

    def of(self, suite: str) -> list[Arm]:
        return [arm for arm in self.arms if arm.suite == suite]

    def label(self, run: Run) -> str:
        """Label of the arm that `run` belongs to, one of `runs`."""
        return self._labels.get(id(run), run.variant)

    @cached_property
    def _labels(self) -> dict[int, str]:
        return {id(run): arm.label for arm in self.arms for run in arm.runs}

    @property
    def exit_code(self) -> int:
        """0: every gate of every suite passed; 3: only verdicts are missing or unknown; 1: a gate
        failed.
        """
        if all(all_passed(gates) for gates in self.gates.values()):
            return 0
        runs = {suite: [run for run in self.runs if run.suite == suite] for suite in self.gates}
        return (
            3
            if all(only_unverified(gates, runs[suite]) for suite, gates in self.gates.items())
            else 1
        )


def first_seed(comparison: Comparison) -> dict[str, list[Run]]:
    """By suite, one run per arm: all of the seed that most arms have, the first such seed."""
    chosen = {}
    for suite in dict.fromkeys(arm.suite for arm in comparison.arms):
        arms = comparison.of(suite)
        seeds = [run.seed for arm in arms for run in arm.runs]
        best = max(dict.fromkeys(seeds), key=seeds.count)
        picked = [next((run for run in arm.runs if run.seed == best), None) for arm in arms]
        chosen[suite] = [run for run in picked if run]
    return chosen


def compare(recorded: Sequence[Run], references: Sequence[Run] = ()) -> Comparison:
    """Compares the runs suite by suite, and with their `references`; copies of a recording count
    once.
    """
    runs, notes = without_copies(recorded)
    suites = list(dict.fromkeys(run.suite for run in runs))
    gates = {suite: gates_of([run for run in runs if run.suite == suite], runs) for suite in suites}
    passed = [suite for suite in gates if all_passed(gates[suite])]
    return Comparison(tuple(runs), gates, tuple(arms_of([*runs, *references], passed)), notes)


def without_copies(runs: Sequence[Run]) -> tuple[list[Run], tuple[str, ...]]:
    """`runs` without copies of a recording, and sentences on the others.

    Copies have the same start of their first supervisor, on two clocks. If all records are equal,
    the first is kept. If not, one was changed or both were continued, and none is counted. Two
    recordings of one run id and suite with different starts are repeats: both count.
    """
    groups: dict[object, list[Run]] = {}
    for run in runs:
        key = (run.recording.run_id, run.recording.start) if run.recording else id(run)
        groups.setdefault(key, []).append(run)
    kept: list[Run] = []
    notes: list[str] = []
    for members in groups.values():
        found, copies = _of_one_recording(members)
        kept += found
        notes += copies
    order = {id(run.input): place for place, run in enumerate(runs)}
    return sorted(kept, key=lambda run: order[id(run.input)]), (*notes, *_repeats(kept))


def _of_one_recording(members: list[Run]) -> tuple[list[Run], list[str]]:
    by_content: dict[str, list[Run]] = {}
    for run in members:
        by_content.setdefault(run.recording.content if run.recording else "", []).append(run)
    firsts = [alike[0] for alike in by_content.values()]
    notes = [
        f"{listed([run.name for run in alike[1:]])}"
        f" {'is a copy' if len(alike) == 2 else 'are copies'} of {alike[0].name}: counted once."
        for alike in by_content.values()
        if len(alike) > 1
    ]
    if len(firsts) == 1:
        return firsts, notes
    names = listed([run.name for run in firsts])
    reason = f"{names} are copies of one recording that differ"
    return [replace(run, reason=run.reason or reason) for run in firsts], [
        *notes,
        f"{reason}: none of them is counted.",
    ]


def _repeats(runs: Sequence[Run]) -> list[str]:
    by_run: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.recording and run.counted:
            by_run.setdefault((run.suite, run.recording.run_id), []).append(run)
    return [
        f"{listed([run.name for run in found])} are {plural(len(found), 'recording')} of one run:"
        " each is counted."
        for found in by_run.values()
        if len(found) > 1
    ]
