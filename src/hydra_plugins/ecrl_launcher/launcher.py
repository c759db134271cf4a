"""The Hydra launcher of `ecrl train`: a thin door. Every Hydra program on the machine imports this file, so it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction


class EcrlLauncher(Launcher):
    """Gives the jobs to the task function, which knows how to supervise them (`ecrl_cli.cli.hydra_jobs.Jobs`).

    `settings`: those of the engine that is to run them, where one is chosen.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: Any) -> None:
        self._context, self._config = hydra_context, config
        self._jobs: Any = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run every job, one after the other; how each one ended is recorded there, never raised here."""
        if not hasattr(self._jobs, "launch"):
            raise RuntimeError("hydra/launcher=ecrl serves `ecrl train` only")
        returns: Sequence[JobReturn] = self._jobs.launch(self._context, self._config, job_overrides, self._settings)
        return returns


ConfigStore.instance().store(
    group="hydra/launcher",
    name="ecrl",
    node={"_target_": f"{EcrlLauncher.__module__}.{EcrlLauncher.__qualname__}"},
    provider="ecrl",
)
