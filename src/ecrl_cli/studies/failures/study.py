"""`failures`: real training runs, each under two random failures, the second often while the first is being recovered from.

A trial: one run of a small model with two to four ranks, by the code path of `ecrl train` under the zygote launcher, to its end; then the
verdict of `verify` against an undisturbed run, the final digests, the exit code, and what is left of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ecrl_cli.config.studies import Failures
from ecrl_cli.studies.failures.draw import Setup, draw
from ecrl_cli.studies.failures.findings import findings
from ecrl_cli.studies.replay import command
from ecrl_cli.studies.result import Findings
from ecrl_cli.studies.study import Record, Setting, Skip, Study, Trial
from ecrl_cli.studies.training.bench import Bench, search
from ecrl_cli.studies.training.planted import BUGS

# What brings the run back to where it was and goes on: the failures that a recovery bug shows under.
_FATAL = ("kill",)


def make(setting: Setting) -> Study:
    return _Failures(setting)


class _Failures:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._config: Failures = setting.config.study
        self._bench: Bench | None = None

    def plan(self) -> list[Trial]:
        return [*self._random(), *self._planted()]

    def skips(self) -> list[Skip]:
        return [Skip("partition", "needs a network namespace per attempt: see ecrl train failure=partition")]

    def run(self, trial: Trial) -> dict[str, Any]:
        if trial.facts["arm"] == "planted":
            return self._search(trial)
        self._bench = self._bench or Bench(self._setting.scratch / "bench")
        setup, entries = _setup(trial.facts), tuple(trial.facts["entries"])
        found = asdict(self._bench.play(setup.keys(entries), setup.reference))
        if found["outcome"] != "valid":
            found |= {"replay": command(self._setting.config, trial.key), "alone": setup.typed(entries)}
        return found

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(self._config, records)

    def close(self) -> None:
        if self._bench is not None:
            self._bench.close()

    def _random(self) -> Iterator[Trial]:
        for number in range(self._config.trials):
            key = f"run/{number:04d}"
            setup, entries = draw(self._setting.rng(key), self._config.strategies, self._config.kinds)
            yield Trial(key, {"arm": "random", **asdict(setup), "entries": list(entries)})

    def _planted(self) -> Iterator[Trial]:
        for bug in BUGS if self._config.planted else ():
            yield Trial(f"planted/{bug.replace(' ', '_')}", {"arm": "planted", "bug": bug})

    def _search(self, trial: Trial) -> dict[str, Any]:
        rng = self._setting.rng(trial.key)
        return search(self._setting.scratch / "planted", trial.facts["bug"], lambda: draw(rng, self._config.strategies, _FATAL))


def _setup(facts: dict[str, Any]) -> Setup:
    return Setup(*(facts[name] for name in ("model", "world_size", "strategy", "mode", "layout")))
