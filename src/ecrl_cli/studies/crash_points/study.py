"""The writer is killed: at every point of the protocol, before every call, at random microseconds. Published Table 2, Figures 3 and 4.

A trial: a run whose store holds two checkpoints; the save of a third, which SIGKILL ends inside the store's own code; recovery as the
supervisor does it; and the next attempt's save of the same step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ecrl_cli.config.studies import CrashPoints
from ecrl_cli.studies.crash_points.crash_server import memory_there
from ecrl_cli.studies.crash_points.crash_targets import Save
from ecrl_cli.studies.crash_points.findings import findings
from ecrl_cli.studies.crash_points.points import AFTER_MODEL, NONE, survivor
from ecrl_cli.studies.crash_points.search import search, unseen
from ecrl_cli.studies.crash_points.store_fixture import Payload
from ecrl_cli.studies.crash_points.trial import Bench
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, Skip, StudyContext, Trial
from ecrl_cli.studies.mutants.registry import PLANTED

KILL_AFTER_S = (0.5e-3, 20e-3)  # uniform


def make(setting: StudyContext) -> PreparedStudy:
    return _CrashPoints(setting)


class _CrashPoints:
    def __init__(self, setting: StudyContext) -> None:
        self._setting = setting
        self._config: CrashPoints = setting.config.study
        in_memory = self._config.in_memory and memory_there(self._config.model_bytes + self._config.optimizer_bytes)
        self._where = "memory" if in_memory else str(setting.scratch)
        self._bench = Bench(self._where, Payload(setting.config.seed, self._config.model_bytes, self._config.optimizer_bytes))

    def plan(self) -> list[Trial]:
        return [*self._points(), *self._calls(), *self._kills(), *self._planted()]

    def skips(self) -> list[Skip]:
        return []

    def run(self, trial: Trial) -> dict[str, Any]:
        facts = trial.facts
        if facts["kind"] == "planted":
            return {"seen": False} if facts["unseen"] else {"seen": True, **search(self._bench, facts["bug"])}
        save = Save(facts["mode"], facts["layout"], point=facts.get("point", NONE), call=facts.get("call", -1))
        if facts["kind"] == "kill":
            return self._bench.kill(save, self._setting.rng(trial.key).uniform(*KILL_AFTER_S))
        return self._bench.crash(save, facts["strategy"])

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(records, in_memory=self._where == "memory")

    def close(self) -> None:
        self._bench.close()

    def _points(self) -> Iterator[Trial]:
        """Round by round, so that drift of the machine hits all arms alike."""
        config = self._config
        arms = [(mode, layout, strategy) for mode in config.modes for layout in config.layouts for strategy in config.strategies]
        visited = {(mode, layout): self._bench.visited(Save(mode, layout))[0] for mode, layout, _ in arms}
        for number in range(max(config.trials, config.fewer)):
            for mode, layout, strategy in arms:
                for point in (NONE, *visited[mode, layout]):
                    if number < self._count(layout, strategy, point):
                        facts = {"kind": "point", "mode": mode, "layout": layout, "strategy": strategy, "point": point}
                        facts["survivor"] = survivor(mode, point, visited[mode, layout])
                        yield Trial(f"{mode}/{layout}/{strategy}/{point}/{number:03d}", facts)

    def _count(self, layout: str, strategy: str, point: str) -> int:
        """The published counts where the published study tried: it had groups only. The reference is the same for both strategies."""
        published = layout == "group" and (point == AFTER_MODEL or (point == NONE and strategy == self._config.strategies[0]))
        return self._config.trials if published else self._config.fewer

    def _calls(self) -> Iterator[Trial]:
        for mode in self._config.modes:
            for layout in self._config.layouts:
                for number, call in enumerate(self._bench.visited(Save(mode, layout))[1]):
                    facts = {"kind": "call", "mode": mode, "layout": layout, "strategy": "blocking", "call": number}
                    yield Trial(f"call/{mode}/{layout}/{number:03d}", facts | {"before": call.partition(" ")[0]})

    def _kills(self) -> Iterator[Trial]:
        layouts = self._config.layouts
        for number in range(self._config.kills):
            for mode in self._config.modes:
                yield Trial(f"kill/{mode}/{number:04d}", {"kind": "kill", "mode": mode, "layout": layouts[number % len(layouts)]})

    def _planted(self) -> Iterator[Trial]:
        for planted in PLANTED if self._config.planted else ():
            yield Trial(f"planted/{planted.name}", {"kind": "planted", "bug": planted.name, "step": planted.step, "unseen": unseen(planted)})
