"""The jobs that Hydra's sweeper hands to our launcher: each one a supervised run, in its own Hydra output folder."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.utils import JobReturn, run_job, setup_globals

from ecrl_cli.cli.compose import quote
from ecrl_cli.cli.prepare import Plan, Say
from ecrl_cli.errors import EcrlError, StorageError
from ecrl_cli.records.layout import RunLayout, SweepLayout
from ecrl_cli.runs.run import RunResult, run
from ecrl_cli.runs.sweep import fair_order, sweep
from ecrl_cli.supervision.launchers import Launchers


class Jobs:
    """The task function of @hydra.main, and what the launcher calls. Holds the plan, so that what was checked is what is run.

    `results`: how each run ended, by name.
    """

    def __init__(self, plan: Plan, say: Say, debug: bool) -> None:
        self._plan, self._say, self._debug = plan, say, debug
        self.results: dict[str, RunResult] = {}
        self._launchers = Launchers()

    def __call__(self, composed: Any) -> None:
        """Hydra wants a task function that it may call itself; only the launcher knows which run is meant."""
        raise RuntimeError("runs go through hydra/launcher=ecrl")

    def launch(self, context: Any, master: Any, job_overrides: Sequence[Sequence[str]]) -> list[JobReturn]:
        """Run every job; nothing is raised, `results` says how it went."""
        setup_globals()
        names = {cell.overrides: name for name, cell in self._plan.cells.items()}
        jobs = {names[tuple(overrides)]: overrides for overrides in job_overrides}

        def start(name: str) -> RunResult:
            return self._start(name, lambda: self._hydra_job(context, master, name, jobs[name]))

        configs = {name: self._plan.cells[name].config for name in jobs}
        configs = {name: configs[name] for name in fair_order(configs)}
        try:
            self.results = sweep(SweepLayout(self._plan.folder), configs, start) if self._plan.swept else {n: start(n) for n in configs}
        except (EcrlError, OSError) as error:
            self.results = {"sweep": self._failed(error)}
        finally:
            self._launchers.close()
        return []

    def _start(self, name: str, job: Callable[[], RunResult]) -> RunResult:
        self._say(f"{name}: {self._plan.run_dir(name)}")
        try:
            return job()
        except KeyboardInterrupt:
            return RunResult(130, "stopped", "stopped by SIGINT")
        except (EcrlError, OSError) as error:
            return self._failed(error)

    def _failed(self, error: Exception) -> RunResult:
        if self._debug:
            self._say("".join(traceback.format_exception(error)).rstrip())
        if isinstance(error, OSError):
            error = StorageError.of("run", error.filename, error)
        if isinstance(error, EcrlError):
            self._say(f"ecrl: error: {error.line()}")
            return RunResult(error.exit_code, "failed", error.line())
        reason = f"E-internal {type(error).__name__}: {error}"
        self._say(f"ecrl: error: {reason}; a defect in ECRL: --debug shows the traceback")
        return RunResult(1, "failed", reason)

    def _hydra_job(self, context: Any, master: Any, name: str, overrides: Sequence[str]) -> RunResult:
        """One run inside Hydra's own job, so that .hydra/ lands in the run directory."""
        folder = RunLayout(self._plan.run_dir(name))
        config = self._plan.cells[name].config
        composed = context.config_loader.load_sweep_config(master, [*overrides, f"hydra.sweep.subdir={quote(str(folder.root))}"])
        ended: list[RunResult] = []

        def task(_: Any) -> None:
            try:
                ended.append(run(config, folder.root, self._say, self._launchers))
            except Exception as error:  # a defect in one run must not take the others with it
                ended.append(self._failed(error))

        run_job(task, composed, "hydra.sweep.dir", "hydra.sweep.subdir", context)
        return ended[0]
