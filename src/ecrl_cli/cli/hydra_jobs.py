"""The jobs that Hydra's sweeper hands to our launcher: each one a supervised run, in its own Hydra output folder."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, run_job, setup_globals

from ecrl_cli.cli.compose import quote
from ecrl_cli.cli.prepare import Plan, Say
from ecrl_cli.cli.submission import Engine, submit
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import EcrlError, RunHeld
from ecrl_cli.records.layout import REFERENCES, RunLayout, SweepLayout
from ecrl_cli.runs.reference_training import announcement, lacking
from ecrl_cli.runs.run import RunContext, RunResult, failed, run
from ecrl_cli.runs.run_dir_link import link_run_dir
from ecrl_cli.runs.sweep import exit_code, sweep, todo
from ecrl_cli.runs.sweep_progress import Board, LoggedSweepProgress
from ecrl_cli.supervision.launch.launcher_cache import LauncherCache
from ecrl_cli.verify.reference import References


class Jobs:
    """The task function of @hydra.main, and what the launcher calls. Holds the plan, so that what was checked is what is run.

    `results`: how each run ended, by name. `references`: by name, the folders of undisturbed runs that were trained beside them.
    """

    def __init__(self, plan: Plan, say: Say, debug: bool) -> None:
        self._plan, self._say, self._debug = plan, say, debug
        self.results: dict[str, RunResult] = {}
        self.references: dict[str, Path] = {}
        self._desk = RunContext(say, LauncherCache())

    def __call__(self, composed: Any) -> None:
        """Hydra wants a task function that it may call itself; only the launcher knows which run is meant."""
        raise RuntimeError("runs go through hydra/launcher=ecrl")

    def launch(self, context: Any, master: Any, job_overrides: Sequence[Sequence[str]], settings: Mapping[str, Any]) -> list[JobReturn]:
        """Run every job; nothing is raised, `results` says how it went. `settings`: of the engine that runs them, where one was chosen."""
        setup_globals()
        names = {cell.overrides: name for name, cell in self._plan.cells.items()}
        jobs = {names[key]: overrides for overrides in job_overrides if (key := tuple(overrides)) in names}  # not: the same run again

        def start(name: str) -> RunResult:
            return self._start(name, lambda: self._hydra_job(context, master, name, jobs[name]))

        try:
            if settings:
                engine = Engine(master.hydra.runtime.choices["hydra/launcher"], settings, context, master)
                self.results = submit(self._plan, engine, jobs, self._say)
            else:
                configs = {name: self._plan.cells[name].config for name in jobs}
                self.results = self._sweep(configs, start) if self._plan.swept else {name: start(name) for name in jobs}
                self._train_references()
        except (EcrlError, OSError) as error:
            self.results = {"sweep": self._failed(error)}
        finally:
            self._desk.launchers.close()
        return []

    def _train_references(self) -> None:
        """Behind the runs, so that what was asked for comes first: the undisturbed runs that they lack. How these end is told like any run's."""
        ended = {self._plan.run_dir(name): self._plan.cells[name].config for name, result in self.results.items() if result.exit_code == 0}
        missing = lacking(ended, References())
        if not missing or exit_code(self.results) in (130, 143):
            return
        self.references = {f"{REFERENCES}/{where.name}": where for where in missing}

        def start(name: str) -> RunResult:
            config, records = missing[self.references[name]]
            self._say(announcement(self.references[name], records))
            try:
                return run(config, self.references[name], self._desk)
            except KeyboardInterrupt:
                return RunResult(130, "stopped", "stopped by SIGINT")
            except Exception as error:  # a defect here must not take the runs that it was for with it
                return self._failed(error)

        if self._plan.swept:
            found = self._sweep({name: missing[where][0] for name, where in self.references.items()}, start)
        else:
            found = {name: start(name) for name in self.references}
        for name, result in found.items():
            if result.exit_code:
                self._say(f"{name}: not trained ({result.reason}); the runs stand, the same command tries again, reference=none leaves it out")
        self.results |= {name: result for name, result in found.items() if result.exit_code != RunHeld.exit_code}  # another command is at it

    def _sweep(self, configs: Mapping[str, RunConfig], start: Callable[[str], RunResult]) -> dict[str, RunResult]:
        layout = SweepLayout(self._plan.folder)
        do = todo(layout, configs, self._plan.mixed)
        board = Board(do)
        self._desk = replace(self._desk, above=board.table)
        return sweep(layout, do, start, LoggedSweepProgress(board, self._say))

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
        if isinstance(error, EcrlError | OSError):
            return failed(error, self._say)
        reason = f"E-internal {type(error).__name__}: {error}"
        self._say(f"ecrl: error: {reason}; a defect in ECRL: --debug shows the traceback")
        return RunResult(1, "failed", reason)

    def _hydra_job(self, context: Any, master: Any, name: str, overrides: Sequence[str]) -> RunResult:
        """One run inside Hydra's own job, so that .hydra/ lands in the run directory."""
        folder = RunLayout(self._plan.run_dir(name))
        config = self._plan.cells[name].config
        link_run_dir(config, folder.root)
        composed = context.config_loader.load_sweep_config(master, [*overrides, f"hydra.sweep.subdir={quote(str(folder.root))}"])
        ended: list[RunResult] = []

        def task(_: Any) -> None:
            try:
                ended.append(run(config, folder.root, self._desk))
            except Exception as error:  # a defect in one run must not take the others with it
                ended.append(self._failed(error))

        run_job(task, composed, "hydra.sweep.dir", "hydra.sweep.subdir", context)
        return ended[0]
