"""Kills the writer at every point of the protocol, before every call, and at random microseconds.
Published table 2, figures 3 and 4.

A trial: a run whose store holds two checkpoints; a third save, ended by SIGKILL inside the store's
own code; recovery as by the supervisor; and the next attempt's save of the same step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ecrl_cli.config.studies import CrashPoints
from ecrl_cli.studies.crash_points.crash_server import memory_there
from ecrl_cli.studies.crash_points.crash_targets import AFTER_MODEL, NONE, Save, survivor
from ecrl_cli.studies.crash_points.findings import FIGURES, TABLES, gates, notes
from ecrl_cli.studies.crash_points.trial import CrashRig, search, unseen
from ecrl_cli.studies.frame.store_fixture import Payload
from ecrl_cli.studies.frame.study import Arm, Study, StudyContext, Trial, planted
from ecrl_cli.studies.mutants.registry import STORE_MUTANTS

KILL_AFTER_S = (0.5e-3, 20e-3)  # uniformly distributed


def in_memory(keys: CrashPoints) -> bool:
    """Whether the trials lie in memory: if asked for, and if there is room."""
    return keys.in_memory and memory_there(keys.model_bytes + keys.optimizer_bytes)


def _rig(context: StudyContext) -> CrashRig:
    keys = context.keys
    return CrashRig(
        "memory" if in_memory(keys) else str(context.scratch),
        Payload(context.seed, keys.model_bytes, keys.optimizer_bytes),
    )


def _points(context: StudyContext) -> Iterator[Trial]:
    """Round by round, so that machine drift affects all arms alike."""
    keys, rig = context.keys, context.shared(_rig)
    arms = [
        (mode, layout, strategy)
        for mode in keys.modes
        for layout in keys.layouts
        for strategy in keys.strategies
    ]
    visited = {(mode, layout): rig.visited(Save(mode, layout))[0] for mode, layout, _ in arms}
    for number in range(max(keys.trials, keys.fewer)):
        for mode, layout, strategy in arms:
            for point in (NONE, *visited[mode, layout]):
                if number < _count(keys, layout, strategy, point):
                    facts = {
                        "kind": "point",
                        "mode": mode,
                        "layout": layout,
                        "strategy": strategy,
                        "point": point,
                    }
                    facts["survivor"] = survivor(mode, point, visited[mode, layout])
                    yield Trial(f"{mode}/{layout}/{strategy}/{point}/{number:03d}", facts)


def _count(keys: CrashPoints, layout: str, strategy: str, point: str) -> int:
    """The published counts for published conditions (groups only). The reference is shared by both
    strategies.
    """
    published = layout == "group" and (
        point == AFTER_MODEL or (point == NONE and strategy == keys.strategies[0])
    )
    return keys.trials if published else keys.fewer


def _calls(context: StudyContext) -> Iterator[Trial]:
    for mode in context.keys.modes:
        for layout in context.keys.layouts:
            for number, call in enumerate(context.shared(_rig).visited(Save(mode, layout))[1]):
                facts = {
                    "kind": "call",
                    "mode": mode,
                    "layout": layout,
                    "strategy": "blocking",
                    "call": number,
                }
                yield Trial(
                    f"call/{mode}/{layout}/{number:03d}", facts | {"before": call.partition(" ")[0]}
                )


def _kills(context: StudyContext) -> Iterator[Trial]:
    layouts = context.keys.layouts
    for number in range(context.keys.kills):
        for mode in context.keys.modes:
            yield Trial(
                f"kill/{mode}/{number:04d}",
                {"kind": "kill", "mode": mode, "layout": layouts[number % len(layouts)]},
            )


def _planted(context: StudyContext) -> Iterator[Trial]:
    for bug in STORE_MUTANTS:
        yield Trial(
            f"planted/{bug.name}",
            {"kind": "planted", "bug": bug.name, "step": bug.step, "unseen": unseen(bug)},
        )


def _crash(context: StudyContext, trial: Trial) -> dict[str, Any]:
    return context.shared(_rig).crash(_save(trial), trial.facts["strategy"])


def _kill(context: StudyContext, trial: Trial) -> dict[str, Any]:
    return context.shared(_rig).kill(_save(trial), context.rng(trial.key).uniform(*KILL_AFTER_S))


def _save(trial: Trial) -> Save:
    facts = trial.facts
    return Save(
        facts["mode"], facts["layout"], point=facts.get("point", NONE), call=facts.get("call", -1)
    )


def _search(context: StudyContext, trial: Trial) -> dict[str, Any]:
    return (
        {"seen": False}
        if trial.facts["unseen"]
        else {"seen": True, **search(context.shared(_rig), trial.facts["bug"])}
    )


STUDY = Study(
    keys=CrashPoints,
    description=(
        "The writer is killed: at every point of the protocol, before every call, at random"
        " microseconds. Published Table 2, Figures 3, 4."
    ),
    arms=(
        Arm("point", _points, _crash),
        Arm("call", _calls, _crash),
        Arm("kill", _kills, _kill),
        Arm("planted", _planted, _search, planted),
    ),
    tables=TABLES,
    figures=lambda results: [figure(results) for figure in FIGURES],
    gates=(gates,),
    notes=lambda results: notes(results, in_memory(results.keys)),
    fact="kind",
)
