"""The experiments whose results are kept, as docs/results/experiments.yaml lists them: what each
shows and the commands that make it from nothing.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from experiments.tables import KeptTable

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
SOURCE = RESULTS / "experiments.yaml"
DATA_WORD = "dataset.root=DIR"  # the word of a command that names where real images lie
EVERYTHING = "all"


class ExperimentError(Exception):
    """One line: what is wrong, and the way out."""


@dataclass(frozen=True)
class Experiment:
    """`commands`: each an `ecrl` command with its own run_dir=outputs/...; they are run in order.
    `figures`: kept ones, by name; `tables`: kept ones that the page shows; `keeps`: files that are
    kept beside those of every experiment. `records`: keep the runs themselves, compressed.
    `needs`: what a machine must have that two cores and Linux do not give. `note`: what to know of
    the setting.
    """

    name: str
    title: str
    shows: str
    commands: tuple[str, ...]
    figures: tuple[str, ...] = ("goodput", "effects")
    tables: tuple[KeptTable, ...] = ()
    keeps: tuple[str, ...] = ()
    records: bool = False
    needs: str = ""
    note: str = ""

    @property
    def folder(self) -> Path:
        """What is kept of it."""
        return RESULTS / self.name

    @property
    def is_study(self) -> bool:
        return all(words(command)[1] == "study" for command in self.commands)

    @property
    def studies(self) -> list[str]:
        """The names of the studies that it runs."""
        return [
            word.removeprefix("study=")
            for command in self.commands
            for word in words(command)
            if word.startswith("study=")
        ]

    @property
    def wants_data(self) -> bool:
        return any(DATA_WORD in words(command) for command in self.commands)

    def folders(self, outputs: Path = Path("outputs")) -> list[Path]:
        """Where its commands write: each its own run_dir, below `outputs`."""
        return [
            outputs / Path(run_dir(command)).relative_to("outputs") for command in self.commands
        ]

    def run_folders(self, outputs: Path = Path("outputs")) -> list[Path]:
        """Those of its folders that hold runs, which `ecrl verify` judges; a study's hold
        trials.
        """
        return [
            folder
            for command, folder in zip(self.commands, self.folders(outputs), strict=True)
            if words(command)[1] != "study"
        ]

    def given(self, outputs: Path, data: str) -> list[list[str]]:
        """The words of its commands after `ecrl`, with folders of this machine in them."""
        places = {
            run_dir(command): folder
            for command, folder in zip(self.commands, self.folders(outputs), strict=True)
        }

        def given(word: str) -> str:
            key, _, value = word.partition("=")
            return (
                f"dataset.root={data}"
                if word == DATA_WORD
                else f"{key}={places[value]}"
                if value in places
                else word
            )

        return [[given(word) for word in words(command)[1:]] for command in self.commands]


@dataclass(frozen=True)
class Registry:
    experiments: dict[str, Experiment] = field(default_factory=dict)

    def chosen(self, names: list[str]) -> list[Experiment]:
        """ExperimentError for a name that is not in the list. `all`: those that this kind of
        machine can run.
        """
        if EVERYTHING in names:
            return [each for each in self.experiments.values() if not each.needs]
        if unknown := [name for name in names if name not in self.experiments]:
            raise ExperimentError(
                f"RESULTS={unknown[0]}: no such experiment; there are {', '.join(self.experiments)}"
                f" and {EVERYTHING}"
            )
        return [self.experiments[name] for name in names]


def words(command: str) -> list[str]:
    return shlex.split(command)


def run_dir(command: str) -> str:
    found = [
        word.removeprefix("run_dir=") for word in words(command) if word.startswith("run_dir=")
    ]
    if len(found) != 1 or not found[0].startswith("outputs/"):
        raise ExperimentError(f"{command}: needs one run_dir=outputs/...")
    return found[0]


def read(source: Path = SOURCE) -> Registry:
    document: dict[str, dict[str, Any]] = yaml.safe_load(source.read_text(encoding="utf-8"))
    found = {}
    for name, entry in document.items():
        entry = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        entry["tables"] = tuple(KeptTable(**each) for each in entry.get("tables", ()))
        found[name] = Experiment(name=name, **entry)
        for command in found[name].commands:
            run_dir(command)
    return Registry(found)
