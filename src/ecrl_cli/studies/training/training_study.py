"""What the studies over real training runs share: runs drawn at random, and one search for each planted bug."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from ecrl_cli.studies.frame.replay_command import command
from ecrl_cli.studies.frame.study import Skip, StudyContext, Trial
from ecrl_cli.studies.training.trial import Bench


class Campaign(ABC):
    """A study but for its findings. `bugs`: the names of those that are planted, where the configuration asks for them."""

    bugs: Iterable[str] = ()

    def __init__(self, setting: StudyContext) -> None:
        self._setting = setting
        self._config: Any = setting.config.study
        self._bench: Bench | None = None

    @abstractmethod
    def drawn(self) -> Iterator[Trial]:
        """Every trial but the planted ones."""

    @abstractmethod
    def play(self, bench: Bench, facts: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """How the run came out, and the `ecrl train` that does it alone."""

    @abstractmethod
    def search(self, trial: Trial) -> dict[str, Any]:
        """Runs with the planted bug until one comes out wrong."""

    def plan(self) -> list[Trial]:
        bugs = self.bugs if self._config.planted else ()
        return [*self.drawn(), *(Trial(f"planted/{bug.replace(' ', '_')}", {"arm": "planted", "bug": bug}) for bug in bugs)]

    def skips(self) -> list[Skip]:
        return []

    def run(self, trial: Trial) -> dict[str, Any]:
        if trial.facts["arm"] == "planted":
            return self.search(trial)
        self._bench = self._bench or Bench(self._setting.scratch / "bench")
        found, alone = self.play(self._bench, trial.facts)
        return found if found["outcome"] == "valid" else found | {"replay": command(self._setting.config, trial.key), "alone": alone}

    def close(self) -> None:
        if self._bench is not None:
            self._bench.close()
