"""Runs side by side: the arms of a suite, their statistics, and their pairs with clean, ref and blk. The arithmetic is metrics'."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ecrl_cli.config.identity import NOT_IDENTITY
from ecrl_cli.metrics.statistics import Summary, mean_of_ratios, ratio_of_means, summary
from ecrl_cli.report.evidence import Metrics, Run

ORDER = ("clean", "ref", "blk", "ovl")
BASES = ("clean", "ref", "blk")

MEASURES: dict[str, Callable[[Metrics], float | None]] = {
    "goodput": lambda m: m.goodput,
    "wall_s": lambda m: m.wall_s,
    "stall_s": lambda m: m.checkpoints["stall_s"],
    "stall_per_checkpoint_s": lambda m: m.stall_per_checkpoint_s,
    "write_s": lambda m: m.checkpoints["write_s"],
    "snapshot_s": lambda m: m.checkpoints["snapshot_s"],
    "restarts": lambda m: m.restarts,
    "replayed_steps": lambda m: m.replayed_steps,
}


@dataclass(frozen=True)
class Versus:
    """Goodput against a base, over pairs of one reference_id, as relative differences (-0.1: a tenth less). The two are not the same."""

    pairs: int
    ratio_of_means: float
    mean_of_ratios: float


@dataclass(frozen=True)
class Arm:
    """The runs of a suite that differ in nothing but the seed. `label`: the variant, and what sets it apart from its namesakes.

    `whole`: every quality gate of the suite passed; only then are its runs averaged.
    """

    suite: str
    variant: str
    label: str
    runs: tuple[Run, ...]
    whole: bool = True

    @property
    def metrics(self) -> list[Metrics]:
        return [m for m in (run.counted for run in self.runs) if m]

    def summary(self, measure: str) -> Summary | None:
        """Mean, sd and interval; None where the arm is not averaged or no run has the measure."""
        values = [value for value in map(MEASURES[measure], self.metrics) if value is not None]
        return summary(values) if values and self.whole else None

    def shown(self, measure: str) -> float | None:
        """What a bar shows: the mean where the arm is averaged, else the only run's own value, else nothing."""
        found = self.summary(measure)
        if found:
            return found.mean
        return MEASURES[measure](self.metrics[0]) if len(self.metrics) == 1 else None

    def seconds(self) -> dict[str, float]:
        """Seconds of each category, as `shown` has them."""
        if not self.metrics or not (self.whole or len(self.metrics) == 1):
            return {}
        return {category: summary([m.seconds.get(category, 0.0) for m in self.metrics]).mean for category in self.metrics[0].seconds}


def arms_of(runs: Iterable[Run], whole: Callable[[str], bool]) -> list[Arm]:
    """The arms of the runs that may be compared: suites as they come, variants in the house's order."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.counted:
            groups.setdefault((run.suite, run.variant), []).append(run)
    arms = [arm for (suite, variant), members in groups.items() for arm in _split(suite, variant, members, whole(suite))]
    suites = list(dict.fromkeys(arm.suite for arm in arms))
    return sorted(arms, key=lambda arm: (suites.index(arm.suite), ORDER.index(arm.variant) if arm.variant in ORDER else len(ORDER), arm.label))


def versus(arm: Arm, arms: Iterable[Arm], base: str) -> Versus | None:
    """`arm` against the arm `base` of its suite; None where there is no such pair."""
    return None if arm.variant == base or not arm.whole else _versus(_pairs(arm.runs, arm, arms, base))


def run_versus(run: Run, arms: list[Arm], base: str) -> float | None:
    """One run's relative difference from its partner in the arm `base`."""
    own = next((arm for arm in arms if run in arm.runs), None)
    if own is None or own.variant == base:
        return None
    found = _versus(_pairs((run,), own, arms, base))
    return found.mean_of_ratios if found else None


def _versus(pairs: list[tuple[float, float]]) -> Versus | None:
    if not pairs or any(b <= 0 for _, b in pairs):
        return None
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    return Versus(len(pairs), ratio_of_means(ours, theirs) - 1, mean_of_ratios(ours, theirs) - 1)


def _pairs(runs: tuple[Run, ...], arm: Arm, arms: Iterable[Arm], base: str) -> list[tuple[float, float]]:
    """Goodput of each run and of the run of `base` that must end in the same state."""
    candidates = [other for other in arms if (other.suite, other.variant) == (arm.suite, base)]
    alike = [other for other in candidates if other.label.removeprefix(base) == arm.label.removeprefix(arm.variant)]
    chosen = alike or (candidates if len(candidates) == 1 else [])
    partners = {m.reference_id: m.goodput for other in chosen for m in other.metrics}
    return [(m.goodput, partners[m.reference_id]) for m in (run.counted for run in runs) if m and m.reference_id in partners]


def _split(suite: str, variant: str, runs: list[Run], whole: bool) -> list[Arm]:
    """One arm for each configuration that differs in more than the seed: 10 and 50 steps between checkpoints are two arms."""
    by_config: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        by_config.setdefault(tuple(sorted(flat(run.config).items())), []).append(run)
    configs = [dict(config) for config in by_config]
    keys = sorted({key for config in configs for key in config if len({other.get(key) for other in configs}) > 1})
    labels = [" ".join([variant, *(f"{key}={config.get(key, '?')}" for key in keys)]) for config in configs]
    return [Arm(suite, variant, label, tuple(members), whole) for label, members in zip(labels, by_config.values(), strict=True)]


def flat(config: dict[str, Any]) -> dict[str, str]:
    """What makes a configuration another one, as dotted keys; the seed and what only names or places a run left out."""
    found: dict[str, str] = {}
    for key, value in config.items():
        entries = {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
        found |= {name: str(item) for name, item in entries.items() if name != "seed" and not {name, key} & set(NOT_IDENTITY)}
    return found
