"""The runs of a command, one after the other or as jobs of an engine, each with what Hydra composed for it in its `.hydra/`."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ecrl_cli.cli.compose import Cell
from ecrl_cli.cli.prepare import Plan, Say
from ecrl_cli.cli.submission import Engine, submit
from ecrl_cli.config.omegaconf_bridge import yaml_text
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import EcrlError, RunHeld
from ecrl_cli.records.layout import REFERENCES, RunLayout, SweepLayout
from ecrl_cli.runs.reference_training import announcement, lacking
from ecrl_cli.runs.run import RunContext, RunResult, failed, run
from ecrl_cli.runs.run_dir_link import link_run_dir
from ecrl_cli.runs.sweep import exit_code, sweep, todo
from ecrl_cli.runs.sweep_progress import Board, LoggedSweepProgress
from ecrl_cli.storage.files import write_whole
from ecrl_cli.supervision.launch.launcher_cache import LauncherCache
from ecrl_cli.verify.reference import References


class Jobs:
    """What the command is to run. Holds the plan, so that what was checked is what is run.

    `results`: how each run ended, by name. `references`: by name, the folders of undisturbed runs that were trained beside them.
    """

    def __init__(self, plan: Plan, say: Say, debug: bool) -> None:
        self._plan, self._say, self._debug = plan, say, debug
        self.results: dict[str, RunResult] = {}
        self.references: dict[str, Path] = {}
        self._desk = RunContext(say, LauncherCache())

    def run(self) -> None:
        """Run every job; what is expected to go wrong is not raised, `results` says how it went."""
        plan = self._plan
        try:
            if not plan.swept:  # before .hydra/ is written into the folder: then it would be too late to put it elsewhere
                link_run_dir(*next((cell.config, plan.folder) for cell in plan.cells.values()))
            _write_yaml(plan.folder / ".hydra", {"multirun.yaml": plan.master})
            if plan.engine:
                self.results = submit(plan, Engine(plan.engine, plan.master), self._say)
            else:
                self.results = self._sweep(plan.configs(), self._start) if plan.swept else {name: self._start(name) for name in plan.cells}
                self._train_references()
        except (EcrlError, OSError) as error:
            self.results = {"sweep": self._failed(error)}
        finally:
            self._desk.launchers.close()

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

    def _start(self, name: str) -> RunResult:
        folder, cell = RunLayout(self._plan.run_dir(name)), self._plan.cells[name]
        self._say(f"{name}: {folder.root}")
        try:
            link_run_dir(cell.config, folder.root)
            self._record(folder, cell)
            return run(cell.config, folder.root, self._desk)
        except KeyboardInterrupt:
            return RunResult(130, "stopped", "stopped by SIGINT")
        except Exception as error:  # a defect in one run must not take the others with it
            return self._failed(error)

    def _record(self, run: RunLayout, cell: Cell) -> None:
        """What Hydra composed for the run, as Hydra's own jobs record it."""
        hydra, values = cell.composed["hydra"], {key: value for key, value in cell.composed.items() if key != "hydra"}
        sweep = {**hydra["sweep"], "dir": str(self._plan.folder / ".hydra"), "subdir": str(run.root)}
        own = {**hydra, "sweep": sweep, "runtime": {**hydra["runtime"], "output_dir": str(run.root)}}
        _write_yaml(run.hydra, {"config.yaml": values, "hydra.yaml": {"hydra": own}, "overrides.yaml": hydra["overrides"]["task"]})

    def _failed(self, error: Exception) -> RunResult:
        if self._debug:
            self._say("".join(traceback.format_exception(error)).rstrip())
        if isinstance(error, EcrlError | OSError):
            return failed(error, self._say)
        reason = f"E-internal {type(error).__name__}: {error}"
        self._say(f"ecrl: error: {reason}; a defect in ECRL: --debug shows the traceback")
        return RunResult(1, "failed", reason)


def _write_yaml(folder: Path, files: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, value in files.items():
        write_whole(folder / name, yaml_text(value).encode(), durable=False)
