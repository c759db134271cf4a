"""Malicious inputs must be rejected by name, in few calls, without being read whole, and none of
their code may run.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ecrl_cli.config.studies import Hostile
from ecrl_cli.errors import plural
from ecrl_cli.linux.prerequisites import lacking
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.gates import none_of
from ecrl_cli.studies.frame.result import ResultTable
from ecrl_cli.studies.frame.study import (
    Arm,
    Record,
    Skip,
    Study,
    StudyContext,
    Trial,
    TrialResults,
    needs,
)
from ecrl_cli.studies.frame.tables import (
    Group,
    TableSpec,
    cell,
    count,
    fact,
    items,
    most,
    outcomes,
    size,
    table,
)
from ecrl_cli.studies.hostile import audit, pickles
from ecrl_cli.studies.hostile.inputs import all_inputs
from ecrl_cli.studies.hostile.readers import COMMAND_S, PROGRAMS, ROOM, isolated, measured
from ecrl_cli.studies.hostile.store_fixture import FixtureTemplate, RunFixture

INPUTS = 120  # minimum number
GROWTH = 64 * 2**20  # bytes of memory beyond the size of the input
# bytes read beyond twice the size of the input: size limits of the records, and Python's own files
READ = 64 * 2**20


def _skips(context: StudyContext) -> Iterator[Skip]:
    if reason := lacking("torch"):
        yield Skip("input: torch", f"{reason}: the format torch is not tried")


def _input_trials(context: StudyContext) -> Iterator[Trial]:
    torch = not lacking("torch")
    for key, one in list(all_inputs().items())[:: context.keys.every]:
        if one.look != "load" or torch:
            yield Trial(
                f"input/{key}",
                {"arm": "input", "input": key, "group": one.group, "look": one.look.split()[0]},
            )


def _template(context: StudyContext) -> FixtureTemplate:
    return FixtureTemplate(context.scratch / "stage", context.seed)


def _try(context: StudyContext, trial: Trial) -> dict[str, Any]:
    hostile = all_inputs()[trial.facts["input"]]
    with context.shared(_template).fixture() as fixture:
        payload = _bytes(fixture)
        hostile.act(fixture)
        payload = min(max(payload, _bytes(fixture)), 2**30)
        before = _names(fixture)
        alone = hostile.look in PROGRAMS
        seconds = 2 * COMMAND_S if alone else context.keys.deadline_s
        found = isolated(lambda: measured(hostile, fixture), seconds, 0 if alone else ROOM)
        expected = found["by"] in hostile.refusers
        escaped = sorted(set(_names(fixture)) ^ set(before)) if not hostile.during else []
        return found | {
            "payload": payload,
            "expected": expected,
            "canary": fixture.canary.exists(),
            "escaped": escaped,
        }


def _control(context: StudyContext, trial: Trial) -> dict[str, Any]:
    return _in_folder(context.scratch / "control", pickles.run_control)


def _audit(context: StudyContext, trial: Trial) -> dict[str, Any]:
    return _in_folder(
        context.scratch / "audit",
        lambda folder: audit.run(folder, context.seed, context.keys.every),
    )


def _in_folder(folder: Path, run: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    folder.mkdir()
    try:
        return run(folder)
    finally:
        shutil.rmtree(folder)


def _names(fixture: RunFixture) -> list[str]:
    return [str(path.relative_to(fixture.outside)) for path in fixture.outside.rglob("*")]


def _bytes(fixture: RunFixture) -> int:
    """Total size of the checkpoint and the run's records: the cost of reading everything once."""
    files = (path for path in fixture.root.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(min(path.lstat().st_size, path.lstat().st_blocks * 512 + 4096) for path in files)


def _measured(record: Record) -> bool:
    """For separate programs (ecrl, torch) only exit and answer are measured."""
    return record.facts["look"] not in PROGRAMS and "grown" in record.found


def _ended(outcome: str) -> Callable[[Record], bool]:
    return lambda record: bool(record.found["outcome"] == outcome)


def _by(group: Group) -> str:
    return ", ".join(
        f"{name} {times}"
        for name, times in Counter(record.found["by"] for record in group).most_common()
    )


_WORDS = {
    "detected": "refused",
    "silent_wrong": "taken for good",
    "untyped": "untyped error",
    "hung": "hung",
}

_TABLES = (
    TableSpec(
        "hostile",
        "Hostile inputs, by group",
        ("input",),
        by=(fact("group", "hostile input"),),
        columns=(
            size("n", "inputs"),
            cell("by", "refused by", "text", _by),
            outcomes(_WORDS),
            count("expected", "by whom it is to be", lambda r: r.found["expected"]),
            count("canary", "canary made", lambda r: r.found["canary"]),
        ),
        note="A fixed list, each input once: no interval.",
    ),
    TableSpec(
        "costs",
        "What refusing costs",
        ("input",),
        by=(fact("group", "hostile input"),),
        columns=(
            most("grown", "most memory taken", "bytes"),
            most("read", "most bytes read", "bytes"),
            most("calls", "most read calls"),
            most("payload", "largest that was looked at", "bytes"),
        ),
        note=(
            "Of looks within a process; a program of its own (ecrl, torch) is watched for its end"
            " and its answer only."
        ),
        where=_measured,
    ),
)


def _control_table(results: TrialResults) -> ResultTable:
    rows = [
        {"payload": name, "ran": "yes" if name in r.found["ran"] else "no"}
        for r in results.of("control")
        for name in r.found["of"]
    ]
    columns = items("text", payload="payload", ran="ran under torch.load(weights_only=False)")
    return table("control", "The same payloads, unpickled without restriction", columns, rows)


def _enough(results: TrialResults) -> Iterator[Gate]:
    tried = len(results.of("input"))
    yield Gate(
        "inputs",
        tried >= INPUTS or results.keys.every > 1,
        f"{tried} hostile inputs, {INPUTS} at least",
    )


def _controls(results: TrialResults) -> Iterator[Gate]:
    """Gates on the controls: each payload ran."""
    for found in (record.found for record in results.of("control")):
        message = (
            f"{len(found['ran'])} of {len(found['of'])} payloads ran under torch.load without"
            " restriction: else the canary would be blind"
        )
        yield Gate("control", len(found["ran"]) == len(found["of"]) > 0, message)
    for found in (record.found for record in results.of("audit")):
        message = (
            f"{plural(len(found['outside']), 'file')} outside the run touched in {found['looks']}"
            f" looks ({found['opened']} opened inside)"
        )
        message += f": {found['outside'][0]}" if found["outside"] else ""
        yield Gate(
            "audit", not found["outside"] and found["looks"] > 0 and found["opened"] > 0, message
        )


def _notes(results: TrialResults) -> Iterator[str]:
    yield (
        f"{len(results.of('input'))} prepared inputs; they show that these are refused, not that no"
        " other input exists."
    )
    yield (
        "The adversary may write the run directory, not the configuration, the code or the key, and"
        " has not the user's own uid while a run goes on."
    )
    yield (
        "Whoever rewrites part, manifest, commit and chain alike is not seen without"
        " checkpoint.hmac_key_file."
    )
    if not results.of("audit"):
        yield "Which files are opened was not audited here (no strace)."


STUDY = Study(
    keys=Hostile,
    description=(
        "Checkpoints and records prepared by an adversary: refused by name, in few calls, and"
        " nothing of them is ever run."
    ),
    arms=(
        Arm("input", _input_trials, _try),
        Arm(
            "control",
            lambda context: [Trial("control", {"arm": "control"})],
            _control,
            missing=needs("torch"),
        ),
        Arm(
            "audit",
            lambda context: [Trial("audit", {"arm": "audit"})],
            _audit,
            missing=needs("strace"),
        ),
    ),
    tables=(*_TABLES, _control_table),
    gates=(
        _enough,
        none_of("executed", "input", lambda r: r.found["canary"], "ran code"),
        none_of(
            "untyped", "input", _ended("untyped"), "ended in an error that nobody raised on purpose"
        ),
        none_of("hung", "input", _ended("hung"), "did not come to an end"),
        none_of("accepted", "input", _ended("silent_wrong"), "were taken for good"),
        none_of(
            "named",
            "input",
            lambda r: not r.found["expected"],
            "were refused by another layer than the one that is to name them",
        ),
        none_of("escaped", "input", lambda r: r.found["escaped"], "left something outside the run"),
        none_of(
            "memory",
            "input",
            lambda r: r.found["grown"] > GROWTH + r.found["payload"],
            "took more memory than 64 MiB and what they hold",
            _measured,
        ),
        none_of(
            "read",
            "input",
            lambda r: r.found["read"] > READ + 2 * r.found["payload"],
            "were read further than the caps",
            _measured,
        ),
        _controls,
    ),
    notes=_notes,
    skips=_skips,
)
