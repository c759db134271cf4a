"""Runs the jobs of a command, one after the other or through a Hydra launcher, and records each
composed configuration in `.hydra/`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ecrl_cli.cli.prepare import Say, TrainPlan
from ecrl_cli.cli.submission import Engine, submit
from ecrl_cli.config.omegaconf_bridge import yaml_text
from ecrl_cli.errors import DEFECT, STOPPED, EcrlError, RunHeld
from ecrl_cli.records.layout import REFERENCES, RunLayout, SweepLayout
from ecrl_cli.runs.reference_training import announcement, lacking, lacking_rests
from ecrl_cli.runs.run import RunContext, RunResult, failed, leaves_alone, run
from ecrl_cli.runs.run_dir import link_run_dir
from ecrl_cli.runs.run_plan import RunPlan
from ecrl_cli.runs.side_by_side import RunProcess, sweep_side_by_side
from ecrl_cli.runs.sweep import SweepProgress, exit_code, sweep, todo
from ecrl_cli.storage.files import write_whole
from ecrl_cli.supervision.launch.launcher import LauncherCache
from ecrl_cli.verify.reference import References


class Jobs:
    """Runs the checked plan of a command.

    `results`: how each run ended, by name. `references`: by name, the folders of reference runs
    (without failures) that were trained beside them.
    """

    def __init__(self, plan: TrainPlan, say: Say, debug: bool) -> None:
        self._plan, self._say, self._debug = plan, say, debug
        self.results: dict[str, RunResult] = {}
        self.references: dict[str, Path] = {}
        self._context = RunContext(say, LauncherCache())
        self._begun = False

    def folder(self, name: str) -> Path:
        """The folder of a run of `results`."""
        return (
            self.references[name] if name in self.references else self._plan.runs[name].layout.root
        )

    def run(self) -> None:
        """Runs every job. Expected errors are not raised; `results` holds them."""
        plan = self._plan
        try:
            if plan.swept or plan.launcher.name:
                _write_yaml(plan.folder / ".hydra", {"multirun.yaml": plan.master})
            if plan.launcher.name:
                self.results = submit(plan, Engine(plan.launcher.name, plan.master), self._say)
            else:
                self.results = (
                    self._sweep(plan.runs, self._start)
                    if plan.swept
                    else {name: self._start(name) for name in plan.runs}
                )
                self._train_references()
        except (EcrlError, OSError) as error:
            self.results = {"sweep": self._failed(error)}
        finally:
            self._context.launchers.close()

    def _train_references(self) -> None:
        """Trains the missing reference runs, after the runs that were asked for. Their results are
        added to `results`.
        """
        ended = [
            self._plan.runs[name] for name, result in self.results.items() if result.exit_code == 0
        ]
        if exit_code(self.results) in STOPPED:
            return
        known = References()
        missing = lacking(ended, known) | lacking_rests(ended, known, self._say)
        if not missing:
            return
        self.references = {f"{REFERENCES}/{where.name}": where for where in missing}

        def start(name: str) -> RunResult:
            reference, records = missing[self.references[name]]
            self._say(announcement(reference, records))
            return self._outcome(lambda: run(reference, self._context))

        if self._plan.swept:
            found = self._sweep(
                {name: missing[where][0] for name, where in self.references.items()}, start
            )
        else:
            found = {name: start(name) for name in self.references}
        for name, result in found.items():
            if result.exit_code:
                self._say(
                    f"{name}: not trained ({result.reason}); the runs stand, the same command tries"
                    " again, reference=none leaves it out"
                )
        # another process is training it
        self.results |= {
            name: result for name, result in found.items() if result.exit_code != RunHeld.exit_code
        }

    def _sweep(
        self, runs: Mapping[str, RunPlan], start: Callable[[str], RunResult]
    ) -> dict[str, RunResult]:
        layout, at_once = SweepLayout(self._plan.folder), self._plan.launcher.runs_at_once
        do = todo(runs, self._plan.mixed)
        progress = SweepProgress(do, self._say, runs_at_once=at_once)
        if at_once > 1:
            self._say(
                f"{at_once} runs at once: they disturb each other, so the report compares no times;"
                f" logs: {self._logs}"
            )
            return sweep_side_by_side(
                layout, do, lambda name: self._begin(name, runs[name]), progress, at_once
            )
        self._context = replace(self._context, above=progress.table)
        return sweep(layout, do, start, progress)

    @property
    def _logs(self) -> Path:
        """The folder for what runs print that train side by side."""
        return self._plan.folder / ".hydra" / "jobs"

    def _begin(self, name: str, planned: RunPlan) -> RunProcess:
        """Start the process of a run, or of a reference that is trained beside them."""
        self._say(f"{name}: {planned.layout.root}")
        if name in self._plan.cells:
            self._place(name)
        return RunProcess(
            planned, self._plan.launcher.runs_at_once, self._logs / f"{Path(name).name}.log"
        )

    def _start(self, name: str) -> RunResult:
        planned = self._plan.runs[name]
        # hours may have passed since the command started: check the run directory and the data
        # again
        if self._begun:
            planned = replace(planned, checked=False)
        self._begun = True
        self._say(f"{name}: {planned.layout.root}")

        def start() -> RunResult:
            self._place(name)
            return run(planned, self._context)

        return self._outcome(start)

    def _place(self, name: str) -> None:
        """The run's folder, and in it what Hydra composed for the run, unless none is begun or gone
        on with. Of a run that has begun it is sealed with the records: the next session takes it
        up.
        """
        planned = self._plan.runs[name]
        link_run_dir(planned)
        if not leaves_alone(planned):
            self._record(planned.layout, self._plan.cells[name].composed)

    def _outcome(self, start: Callable[[], RunResult]) -> RunResult:
        """The result of `start`. An internal error in one run must not end the others, nor fail the
        runs that a reference is for.
        """
        try:
            return start()
        except KeyboardInterrupt:
            return RunResult(STOPPED[0], "stopped", "stopped by SIGINT")
        except Exception as error:
            return self._failed(error)

    def _record(self, layout: RunLayout, composed: Mapping[str, Any]) -> None:
        """Writes what Hydra composed for the run, as Hydra's own jobs record it."""
        hydra, values = (
            composed["hydra"],
            {key: value for key, value in composed.items() if key != "hydra"},
        )
        sweep = {
            **hydra["sweep"],
            "dir": str(self._plan.folder / ".hydra"),
            "subdir": str(layout.root),
        }
        own = {
            **hydra,
            "sweep": sweep,
            "runtime": {**hydra["runtime"], "output_dir": str(layout.root)},
        }
        files = {
            "config.yaml": values,
            "hydra.yaml": {"hydra": own},
            "overrides.yaml": hydra["overrides"]["task"],
        }
        _write_yaml(
            layout.composed_next if layout.supervisor.exists() else layout.hydra,
            files if self._plan.swept else {**files, "multirun.yaml": self._plan.master},
        )

    def _failed(self, error: Exception) -> RunResult:
        if self._debug:
            self._say("".join(traceback.format_exception(error)).rstrip())
        if isinstance(error, EcrlError | OSError):
            return failed(error, self._say)
        reason = f"E-internal {type(error).__name__}: {error}"
        self._say(f"ecrl: error: {reason}; a defect in ECRL: --debug shows the traceback")
        return RunResult(DEFECT, "failed", reason)


def _write_yaml(folder: Path, files: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        write_whole(folder / name, yaml_text(value).encode(), durable=False)
