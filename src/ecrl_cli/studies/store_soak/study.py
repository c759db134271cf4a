"""`store-soak`: random programs of saves, kills, power losses, faults, damage and late writers,
against a reference model of recovery.

A trial is one program from an empty disk, in memory and without a clock, so it is reproducible. A
program in which store and model disagree is shrunk to the shortest that still shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ecrl_cli.config.studies import StoreSoak
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.gates import mutants_found
from ecrl_cli.studies.frame.result import ResultTable, upper_bound
from ecrl_cli.studies.frame.study import (
    Arm,
    Record,
    Study,
    StudyContext,
    Trial,
    TrialResults,
    command,
    planted,
)
from ecrl_cli.studies.frame.tables import (
    Group,
    TableSpec,
    cell,
    count,
    fact,
    found,
    item,
    mutants_table,
    size,
    table,
    total,
    value,
    yes,
)
from ecrl_cli.studies.mutants.registry import STORE_MUTANTS
from ecrl_cli.studies.store_soak.model_run import SoakSetup, play, shortest
from ecrl_cli.studies.store_soak.operations import SHARES, Op, encoded, program, unrivalled

PROGRAMS = 100  # maximum programs run to find a planted bug
# minimum occurrences of every operation and event, in a study of a thousand operations or more
ENOUGH = 20
_THOUSAND = 1000
_TROUBLES = {
    "met kill": "killed between two calls",
    "met O": "power lost between two calls (O: names in order)",
    "met X": "power lost between two calls (X: what POSIX promises)",
    "met rival": "a newer attempt began between two calls",
    "met a fault": "a call was refused",
}


def _programs(context: StudyContext) -> Iterator[Trial]:
    keys = context.keys
    cells = [(mode, layout) for mode in keys.modes for layout in keys.layouts]
    whole, rest = divmod(keys.ops, keys.length)
    for number, length in enumerate([keys.length] * whole + ([rest] if rest else [])):
        mode, layout = cells[number % len(cells)]
        yield Trial(
            f"{mode}/{layout}/{number:05d}",
            {"arm": "programs", "mode": mode, "layout": layout, "ops": length},
        )


def _play(context: StudyContext, trial: Trial) -> dict[str, Any]:
    store = SoakSetup(trial.facts["mode"], trial.facts["layout"])
    ops = program(context.rng(trial.key), trial.facts["ops"])
    played = play(ops, store)
    result: dict[str, Any] = {
        "ops": len(ops),
        "wrong": played.wrong,
        "met": dict(sorted(played.met.items())),
    }
    if played.wrong:
        few = _shrunk(ops[: played.at + 1], store, played.wrong)
        result |= {
            "shortest": [str(op) for op in few],
            "program": encoded(few),
            "replay": command(context.config, trial.key),
        }
    return result


def _shrunk(ops: Sequence[Op], store: SoakSetup, wrong: str) -> tuple[Op, ...]:
    """The shortest program that ends in the same kind of disagreement."""
    kind = wrong.partition(":")[0]
    return shortest(ops, lambda candidate: play(candidate, store).wrong.partition(":")[0] == kind)


def _search(context: StudyContext, trial: Trial) -> dict[str, Any]:
    """Run programs on the store with the bug until one disagrees."""
    bug = next(each for each in STORE_MUTANTS if each.name == trial.facts["bug"])
    store, rng, ops = SoakSetup(bug.mode, bug.layout, bug.name), context.rng(trial.key), 0
    for _ in range(PROGRAMS):
        tried = unrivalled(program(rng, context.keys.length))
        played = play(tried, store)
        ops += len(tried) if played.at < 0 else played.at + 1
        if played.wrong:
            return {"found": True, "ops": ops, "wrong": played.wrong, "by": str(tried[played.at])}
    return {"found": False, "ops": ops, "wrong": "", "by": ""}


def _wrong(record: Record) -> bool:
    return bool(record.found["wrong"])


def _acknowledged(group: Group) -> int:
    return sum(record.found["met"].get("acknowledged", 0) for record in group)


def _met(results: TrialResults) -> Counter[str]:
    return sum((Counter(record.found["met"]) for record in results.of("programs")), Counter[str]())


def _met_table(results: TrialResults) -> ResultTable:
    met, said = _met(results), {**{do: f"{do} (operation)" for do in SHARES}, **_TROUBLES}
    rows = [
        {"what": said.get(what, what), "n": met[what]}
        for what in (*said, *sorted(what for what in met if what.startswith("recovered")))
    ]
    columns = (item("what", "what"), item("n", "times", "count"))
    return table("met", "What was done, and what befell it", columns, rows)


def _gates(results: TrialResults) -> Iterator[Gate]:
    programs, met = results.of("programs"), _met(results)
    ops, wrong = (
        sum(record.found["ops"] for record in programs),
        [record.found for record in programs if _wrong(record)],
    )
    first = (
        f"; the first: {wrong[0]['wrong']}: {' | '.join(wrong[0]['shortest'])}:"
        f" {wrong[0]['replay']}"
        if wrong
        else ""
    )
    yield Gate(
        "agreed",
        bool(programs) and not wrong,
        f"{len(wrong)} disagreements in {ops} operations{first}",
    )
    if ops >= _THOUSAND:
        rare = [what for what in (*SHARES, *_TROUBLES) if met[what] < ENOUGH]
        yield Gate(
            "met",
            not rare,
            f"each operation and each trouble at least {ENOUGH} times"
            + (f"; not {', '.join(rare)}" if rare else ""),
        )


def _notes(results: TrialResults) -> Iterator[str]:
    programs = results.of("programs")
    if programs and not any(map(_wrong, programs)):
        yield (
            f"0 disagreements in {sum(record.found['ops'] for record in programs)} operations of"
            f" {len(programs)} programs, each from an empty disk on: a program of this make that"
            f" disagrees is rarer than {upper_bound(len(programs)):.2%} (one-sided exact 95%). Two"
            " supervisors at once are not among the operations: the run's lock, for which the"
            " study writers races, lets one in at a time."
        )


STUDY = Study(
    keys=StoreSoak,
    description=(
        "Random programs of saves, deaths, power losses, faults, damage and late writers, against a"
        " reference of what may be recovered."
    ),
    arms=(
        Arm("programs", _programs, _play),
        Arm(
            "planted",
            lambda context: [
                Trial(f"planted/{bug.name}", {"arm": "planted", "bug": bug.name, "step": bug.step})
                for bug in STORE_MUTANTS
            ],
            _search,
            planted,
        ),
    ),
    tables=(
        TableSpec(
            "programs",
            "Random programs against the reference",
            ("programs",),
            by=(fact("mode", "write mode"), fact("layout", "layout")),
            columns=(
                size("programs", "programs"),
                total("ops", "operations"),
                cell("acknowledged", "saves acknowledged", "count", _acknowledged),
                count("wrong", "disagreements", _wrong),
            ),
        ),
        _met_table,
        TableSpec(
            "disagreements",
            "Disagreements",
            ("programs",),
            columns=(
                value("trial", "trial", lambda r: r.key),
                found("wrong", "the store"),
                value("ops", "shortest program", lambda r: " | ".join(r.found["shortest"])),
                found("replay", "again"),
            ),
            where=_wrong,
        ),
        mutants_table(
            (
                fact("bug", "planted bug"),
                fact("step", "step of the protocol"),
                yes("answer", "answer", lambda r: r.found["found"], ("found", "NOT FOUND")),
                found("ops", "operations until then", "count"),
                found("wrong", "what showed it"),
            ),
            "Is the study blind? Bugs planted in the store",
        ),
    ),
    gates=(_gates, mutants_found()),
    notes=_notes,
)
