"""The arms of a suite (runs that differ only in the seed), their statistics, and the pairs of runs
of two arms. `metrics` does the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.metrics.recoveries import RESTART_COSTS, Restart
from ecrl_cli.metrics.statistics import Summary, ratio_of_means, summary
from ecrl_cli.report.formats import by_value
from ecrl_cli.report.model.axes import BETWEEN, ORDER, UNNAMED, axes_of
from ecrl_cli.report.model.run_record import Metrics, Run
from ecrl_cli.report.model.settings import flat_config
from ecrl_cli.report.model.spans import amounts

BASES = ("clean", "ref", "blk")

MEASURES: dict[str, Callable[[Metrics], float | None]] = {
    "goodput": lambda m: m.goodput,
    "goodput_published_clock": lambda m: m.goodput_published_clock,
    "wall_s": lambda m: m.wall_s,
    "wall_published_clock_s": lambda m: m.wall_published_clock_s,
    "stall_s": lambda m: m.checkpoints["stall_s"],
    "stall_per_checkpoint_s": lambda m: m.stall_per_checkpoint_s,
    "write_s": lambda m: m.checkpoints["write_s"],
    "write_per_checkpoint_s": lambda m: m.write_per_checkpoint_s,
    "durable_write_s": lambda m: m.durable_write_s,
    "durable_write_per_checkpoint_s": lambda m: m.durable_write_per_checkpoint_s,
    "snapshot_s": lambda m: m.checkpoints["snapshot_s"],
    "restarts": lambda m: m.restarts,
    "replayed_steps": lambda m: m.replayed_steps,
    "replay_s": lambda m: m.seconds["replay"],
    "evaluate_s": lambda m: m.seconds["evaluate"],
    "accuracy": lambda m: m.held_out("accuracy"),
    "perplexity": lambda m: m.held_out("perplexity"),
    "held_out_loss": lambda m: m.held_out("loss"),
}
HELD_OUT = ("accuracy", "perplexity", "held_out_loss")  # quality on held-out data at the target


@dataclass(frozen=True)
class Arm:
    """The runs of a suite that differ only in the seed. `label`: the variant, and in short the
    `settings` in which arms of that variant differ, which `setting` names without it. `averaged`:
    every quality gate of the suite passed; otherwise its runs are not averaged.
    """

    suite: str
    variant: str
    label: str
    runs: tuple[Run, ...]
    averaged: bool = True
    settings: frozenset[tuple[str, str]] = frozenset()
    setting: str = ""

    @property
    def is_reference(self) -> bool:
        """Whether its runs were trained to compare others with, and save one checkpoint only."""
        return all(run.is_reference for run in self.runs)

    @property
    def metrics(self) -> list[Metrics]:
        return [m for run in self.runs if (m := run.counted)]

    @property
    def restarts(self) -> list[Restart]:
        """Every restart of the counted runs."""
        return [restart for run in self.runs if run.counted for restart in run.restarts]

    def restart_costs(self) -> dict[str, Summary]:
        """Seconds of a restart by phase and in `total`, and the steps `replayed`, over all
        restarts; empty without any, or if not averaged.
        """
        if not self.averaged or not self.restarts:
            return {}
        phases = {
            phase: amounts([restart.seconds[phase] for restart in self.restarts])
            for phase in RESTART_COSTS
        }
        total, replayed = (
            [getattr(restart, name) for restart in self.restarts]
            for name in ("total_s", "replayed")
        )
        return phases | {"total": amounts(total), "replayed": amounts(replayed)}

    def summary(self, measure: str) -> Summary | None:
        """Mean, standard deviation and interval; None if the arm is not averaged or no run has the
        measure.
        """
        values = [value for value in map(MEASURES[measure], self.metrics) if value is not None]
        if not values or not self.averaged:
            return None
        return summary(values) if measure in HELD_OUT else amounts(values)

    def shown(self, measure: str) -> float | None:
        """The value of a bar: the mean if the arm is averaged, else the value of its only run, else
        None.
        """
        found = self.summary(measure)
        if found:
            return found.mean
        return MEASURES[measure](self.metrics[0]) if len(self.metrics) == 1 else None

    def seconds(self) -> dict[str, float]:
        """Seconds of each category, chosen as in `shown`."""
        if not self.metrics or not (self.averaged or len(self.metrics) == 1):
            return {}
        return {
            category: summary([m.seconds.get(category, 0.0) for m in self.metrics]).mean
            for category in self.metrics[0].seconds
        }


def arms_of(runs: Iterable[Run], averaged: Collection[str] = ()) -> list[Arm]:
    """The arms of the runs that may be compared: suites as they come, variants in the order of
    ORDER. `averaged`: the suites whose gates passed.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.counted:
            groups.setdefault((run.suite, run.variant), []).append(run)
    groups = {
        key: sorted(members, key=lambda run: by_value(run.seed)) for key, members in groups.items()
    }
    arms = [
        arm
        for (suite, variant), members in groups.items()
        for arm in _split(suite, variant, members, suite in averaged)
    ]
    suites = list(dict.fromkeys(arm.suite for arm in arms))
    return sorted(
        arms,
        key=lambda arm: (
            suites.index(arm.suite),
            ORDER.index(arm.variant) if arm.variant in ORDER else len(ORDER),
            arm.variant,
        ),
    )


def base_of(arm: Arm, arms: Iterable[Arm], base: str) -> Arm | None:
    """The arm of the same suite that `base` (a variant or a label) means for `arm`: the one with
    the most settings, all shared with `arm`.
    """
    others = [other for other in arms if other.suite == arm.suite and other is not arm]
    variants = {other.variant for other in others if base in (other.variant, other.label)}
    namesakes = [other for other in others if other.variant in variants]
    alike = sorted(
        (other for other in namesakes if other.settings <= arm.settings),
        key=lambda other: len(other.settings),
    )
    chosen = alike[-1] if alike else namesakes[0] if len(namesakes) == 1 else None
    return chosen if chosen and base in (chosen.variant, chosen.label) else None


def partners(arm: Arm, base: Arm) -> list[tuple[Run, Run]]:
    """The pairs of runs of `arm` and `base` that must end in the same state, each within one sweep:
    repeats of a sweep are not mixed.

    Repeats within a sweep pair one to one, as they come, and those that are left over pair with
    none: no run may count in two pairs.
    """

    def ending(run: Run) -> tuple[Path, str]:
        return run.sweep, run.counted.reference_id if run.counted else ""

    ours, theirs = ([run for run in each.runs if run.counted] for each in (arm, base))
    return one_to_one(ours, theirs, ending, ending)


def one_to_one(
    ours: Iterable[Run],
    theirs: Iterable[Run],
    our_key: Callable[[Run], Hashable],
    their_key: Callable[[Run], Hashable],
) -> list[tuple[Run, Run]]:
    """Pairs of runs with equal keys, as they come; no run is in two pairs, and what is left over is
    in none.
    """
    waiting: dict[Hashable, list[Run]] = {}
    for run in theirs:
        waiting.setdefault(their_key(run), []).append(run)
    return [(run, there.pop(0)) for run in ours if (there := waiting.get(our_key(run)))]


def run_versus(run: Run, arms: Sequence[Arm], base: str) -> float | None:
    """The relative difference of one run's goodput from its partner's in the arm `base`."""
    own = next((arm for arm in arms if any(run is each for each in arm.runs)), None)
    other = base_of(own, arms, base) if own and own.variant != base else None
    if own is None or other is None:
        return None
    found = [
        (a.metrics.goodput, b.metrics.goodput)
        for a, b in partners(own, other)
        if a is run and a.metrics and b.metrics
    ]
    return ratio_of_means(*zip(*found, strict=True)) - 1 if found and found[0][1] > 0 else None


def _split(suite: str, variant: str, runs: list[Run], whole: bool) -> list[Arm]:
    """One arm for each configuration that differs in more than the seed: checkpoints every 10 and
    every 50 steps are two arms.
    """
    by_config: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        by_config.setdefault(tuple(sorted(flat_config(run.config).items())), []).append(run)
    configs = [dict(config) for config in by_config]
    keys = sorted(
        {
            key
            for config in configs
            for key in config
            if len({other.get(key) for other in configs}) > 1
        }
    )
    settings = [tuple((key, config.get(key, "?")) for key in keys) for config in configs]
    axes = axes_of(runs)
    levels = [
        tuple((axis, axis.level(members[0])) for axis in axes) for members in by_config.values()
    ]
    named = sorted(
        zip(levels, by_config.values(), settings, strict=True),
        key=lambda arm: [axis.levels.index(level) for axis, level in arm[0]],
    )
    arms = []
    for at, members, pairs in named:
        setting = BETWEEN.join(axis.short(level) for axis, level in at)
        arms.append(
            Arm(
                suite,
                variant,
                _label(variant, setting),
                tuple(members),
                whole,
                frozenset(pairs),
                setting,
            )
        )
    return arms


def _label(variant: str, setting: str) -> str:
    return BETWEEN.join(filter(None, ("" if variant == UNNAMED and setting else variant, setting)))
