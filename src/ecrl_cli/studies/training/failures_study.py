"""`failures`: real training runs, each under two random failures, the second often while the first is being recovered from.

A trial: one run of a small model with two to four ranks, by the code path of `ecrl train` under the zygote launcher, to its end; then the
verdict of `verify` against an undisturbed run, the final digests, the exit code, and what is left of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, Skip, StudyContext, Trial
from ecrl_cli.studies.mutants.recovery import BUGS
from ecrl_cli.studies.training.failures_generator import FailureRunSpec, generate
from ecrl_cli.studies.training.failures_tables import findings
from ecrl_cli.studies.training.training_study import Campaign
from ecrl_cli.studies.training.trial import Bench, search

# What brings the run back to where it was and goes on: the failures that a recovery bug shows under.
_FATAL = ("kill",)


def make(setting: StudyContext) -> PreparedStudy:
    return _Failures(setting)


class _Failures(Campaign):
    bugs = BUGS

    def skips(self) -> list[Skip]:
        return [Skip("partition", "needs a network namespace per attempt: see ecrl train failure=partition")]

    def play(self, bench: Bench, facts: dict[str, Any]) -> tuple[dict[str, Any], str]:
        setup, entries = _setup(facts), tuple(facts["entries"])
        return asdict(bench.play(setup.keys(entries), setup.reference)), setup.typed(entries)

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(self._config, records)

    def drawn(self) -> Iterator[Trial]:
        for number in range(self._config.trials):
            key = f"run/{number:04d}"
            setup, entries = generate(self._setting.rng(key), self._config.strategies, self._config.kinds)
            yield Trial(key, {"arm": "random", **asdict(setup), "entries": list(entries)})

    def search(self, trial: Trial) -> dict[str, Any]:
        rng = self._setting.rng(trial.key)
        return search(self._setting.scratch / "planted", trial.facts["bug"], lambda: generate(rng, self._config.strategies, _FATAL))


def _setup(facts: dict[str, Any]) -> FailureRunSpec:
    return FailureRunSpec(*(facts[name] for name in ("model", "world_size", "strategy", "mode", "layout")))
