"""`store-soak`: random programs of saves, deaths, power losses, faults, damage and late writers, against a reference of what may be recovered.

A trial is one program from an empty disk on, in memory and without a clock, so that it plays the same way whenever it is played. Where the store
and the reference disagree, the program is shrunk to the shortest one that still shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ecrl_cli.config.studies import StoreSoak
from ecrl_cli.studies.frame.replay_command import command
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, Skip, StudyContext, Trial
from ecrl_cli.studies.mutants.registry import PLANTED
from ecrl_cli.studies.store_soak.findings import findings
from ecrl_cli.studies.store_soak.operations import Op, encoded, program, unrivalled
from ecrl_cli.studies.store_soak.program import Cell, play
from ecrl_cli.studies.store_soak.shrink import shortest

PROGRAMS = 100  # until a planted bug is found, at most


def make(setting: StudyContext) -> PreparedStudy:
    return _StoreSoak(setting)


class _StoreSoak:
    def __init__(self, setting: StudyContext) -> None:
        self._setting = setting
        self._config: StoreSoak = setting.config.study

    def plan(self) -> list[Trial]:
        return [*self._programs(), *self._planted()]

    def skips(self) -> list[Skip]:
        return []

    def run(self, trial: Trial) -> dict[str, Any]:
        if trial.facts["arm"] == "planted":
            return self._search(trial)
        cell = Cell(trial.facts["mode"], trial.facts["layout"])
        ops = program(self._setting.rng(trial.key), trial.facts["ops"])
        played = play(ops, cell)
        found: dict[str, Any] = {"ops": len(ops), "wrong": played.wrong, "met": dict(sorted(played.met.items()))}
        if played.wrong:
            few = _shrunk(ops[: played.at + 1], cell, played.wrong)
            found |= {"shortest": [str(op) for op in few], "program": encoded(few), "replay": command(self._setting.config, trial.key)}
        return found

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(records)

    def close(self) -> None:
        """Nothing is open."""

    def _programs(self) -> Iterator[Trial]:
        cells = [(mode, layout) for mode in self._config.modes for layout in self._config.layouts]
        whole, rest = divmod(self._config.ops, self._config.length)
        for number, length in enumerate([self._config.length] * whole + ([rest] if rest else [])):
            mode, layout = cells[number % len(cells)]
            yield Trial(f"{mode}/{layout}/{number:05d}", {"arm": "programs", "mode": mode, "layout": layout, "ops": length})

    def _planted(self) -> Iterator[Trial]:
        for planted in PLANTED if self._config.planted else ():
            yield Trial(f"planted/{planted.name}", {"arm": "planted", "bug": planted.name, "step": planted.step})

    def _search(self, trial: Trial) -> dict[str, Any]:
        """One program after the other on the store with the bug, until they disagree."""
        bug = next(planted for planted in PLANTED if planted.name == trial.facts["bug"])
        cell, rng, ops = Cell(bug.mode, bug.layout, bug.name), self._setting.rng(trial.key), 0
        for _ in range(PROGRAMS):
            tried = unrivalled(program(rng, self._config.length))
            played = play(tried, cell)
            ops += len(tried) if played.at < 0 else played.at + 1
            if played.wrong:
                return {"found": True, "ops": ops, "wrong": played.wrong, "by": str(tried[played.at])}
        return {"found": False, "ops": ops, "wrong": "", "by": ""}


def _shrunk(ops: Sequence[Op], cell: Cell, wrong: str) -> tuple[Op, ...]:
    """The shortest program that ends in the same kind of disagreement."""
    kind = wrong.partition(":")[0]
    return shortest(ops, lambda candidate: play(candidate, cell).wrong.partition(":")[0] == kind)
