"""Tables 1 to 4: what is logged, the machine, what was run, and which factors were held and which
varied; all from the runs' own records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ecrl_cli.errors import EcrlError
from ecrl_cli.records.safe_read import read_lines, read_whole
from ecrl_cli.replication.report.cells import published_table
from ecrl_cli.replication.report.sample import Experiment
from ecrl_cli.replication.report.setting import WORDS, facts, revision, shown
from ecrl_cli.replication.report.values import PUBLISHED, SUITES
from ecrl_cli.report.formats import NONE, listed, plural, printable
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.suite_gates import pooling_obstacles
from ecrl_cli.report.render.publication import PublishedTable
from ecrl_cli.report.tables.table import Cell, Column, Row

COLUMNS1 = (
    *map(Column, ("Published field", "Used there for", "Here", "In")),
    *(Column("Runs that have it", "count"), Column("What differs")),
)
COLUMNS2 = (
    Column("Item"),
    Column("Published"),
    Column("Measured"),
    Column("n", "count"),
    Column("What differs"),
)
COLUMNS3 = (
    Column("Axis"),
    Column("Published"),
    Column("Count there", "count"),
    Column("Measured"),
    Column("Count here", "count"),
    *(Column("Role"), Column("What differs")),
)
COLUMNS4 = tuple(
    map(
        Column,
        ("Factor", "Role there", "Treatment there", "Role here", "Values here", "What differs"),
    )
)
_GIB = 2**30

Read = Callable[[Run], str]
_ITEMS: dict[str, Read] = {
    "os": lambda run: (
        f"kernel {run.environment.get('kernel', '?')}, {run.environment.get('machine', '?')}"
    ),
    "cpu": lambda run: str(run.environment.get("cpu", {}).get("model", NONE)),
    "cores": lambda run: _cores(run.environment.get("cpu", {})),
    "memory": lambda run: (
        f"{size / _GIB:.0f} GiB RAM"
        if isinstance(size := run.environment.get("memory_bytes"), int)
        else NONE
    ),
    "gpus": (
        lambda run: (
            ", ".join(str(gpu.get("name")) for gpu in run.environment.get("gpus", ())) or "none"
        )
    ),
    "driver": (
        lambda run: (
            ", ".join(sorted({str(gpu.get("driver")) for gpu in run.environment.get("gpus", ())}))
            or "none"
        )
    ),
    "python": lambda run: str(run.environment.get("python", NONE)),
    "torch": lambda run: str(run.environment.get("packages", {}).get("torch", NONE)),
    "cuda_build": (
        lambda run: (
            str(run.environment.get("packages", {}).get("torch", "")).partition("+")[2]
            or "not in the version"
        )
    ),
    "visible": lambda run: (
        f"device {facts(run).get('device', '?')},"
        f" {plural(len(run.environment.get('gpus', ())), 'GPU')}"
    ),
    "ranks": lambda run: (
        f"{run.config.get('world_size', '?')} ranks by"
        f" {run.config.get('supervision', {}).get('launcher', '?')}"
    ),
}
_MORE: dict[str, tuple[str, Read]] = {
    "file system": (
        "not stated",
        lambda run: str(run.environment.get("file_system", {}).get("type", NONE)),
    ),
    "code revision": ("not stated", revision),
}


@dataclass(frozen=True)
class _Logged:
    """A row of table 1. `purpose`: in the published table. `file`, `fields`: where it stands here,
    the first with `N` and `R` for attempt and rank;
    `differs`: what it is otherwise here.
    """

    name: str
    purpose: str
    file: str
    fields: tuple[str, ...]
    differs: str = "nothing"

    def in_run(self, run: Run) -> bool:
        """Whether the first attempt's file, or the run's, has every field in its first line."""
        path = run.input.layout.root / self.file.replace("NN", "00").replace("R.", "0.")
        try:
            first = read_whole(path) if path.suffix == ".json" else next(read_lines(path))[0]
            return set(self.fields) <= set(json.loads(first))
        except (OSError, EcrlError, ValueError, TypeError, StopIteration):
            return False


_RANK, _SAVES = "logs/attempt-NN/rankR.jsonl", "logs/attempt-NN/checkpoint_rank0.jsonl"
LOGGED = (
    _Logged("global_step", "progress; boundaries of restarts", _RANK, ("global_step",)),
    _Logged("epoch, cursor_step", "which window of samples", _RANK, ("epoch", "cursor_step")),
    _Logged(
        "sample_ids_hash/count",
        "what was consumed, without the ids",
        _RANK,
        ("sample_ids_hash", "sample_ids_count"),
        "SHA-256 of the ids in order, and a digest of the inputs beside it",
    ),
    _Logged("world_size, rank", "ranks held against each other", _RANK, ("world_size", "rank")),
    _Logged(
        "loss",
        "trajectory and divergence",
        _RANK,
        ("loss",),
        "at full precision, so that equal means equal",
    ),
    _Logged(
        "checkpoint_rank0.jsonl",
        "snapshot, write, enqueue, backpressure, stall",
        _SAVES,
        ("event", "global_step", "snapshot_s"),
        "an event a line, each save ended once",
    ),
    _Logged(
        "supervisor.json",
        "attempts, restarts, how it ended",
        "supervisor.json",
        ("attempts", "terminal_status"),
        "sessions and signals too",
    ),
)


def table1(experiment: Experiment) -> PublishedTable:
    """The fields that the published table of logs names, where each stands here, and in how many
    runs it was found.
    """
    rows = []
    for each in LOGGED:
        # a run without checkpoints logs none
        due = [run for run in experiment.runs if each.file != _SAVES or run.checkpoints]
        having = sum(each.in_run(run) for run in due)
        differs = (
            each.differs
            if having == len(due)
            else f"missing in {len(due) - having} of {plural(len(due), 'run')}"
        )
        rows.append((each.name, each.purpose, ", ".join(each.fields), each.file, having, differs))
    note = "NN: the attempt, R: the rank. What else is logged: docs/decisions/event-schema.md."
    return published_table(experiment, "table1", "Table 1: logged fields", COLUMNS1, rows, [note])


def table2(experiment: Experiment) -> PublishedTable:
    runs = [run for run in experiment.runs if run.environment]
    items = [(item.label, item.value, _ITEMS[key]) for key, item in PUBLISHED.table2.items()]
    items += [(name.capitalize(), published, read) for name, (published, read) in _MORE.items()]
    rows = []
    for label, published, read in items:
        values = list(dict.fromkeys(printable(read(run)) for run in runs))
        measured = "; ".join(values) or NONE
        verdict = (
            NONE
            if published == "not stated" or not values
            else "nothing"
            if values == [published]
            else "differs"
        )
        rows.append(
            (label, published, measured, Cell(len(runs), text=plural(len(runs), "run")), verdict)
        )
    note = "The published runs used four of six GPUs of two kinds, and it is not said which."
    return published_table(experiment, "table2", "Table 2: environment", COLUMNS2, rows, [note])


def table3(experiment: Experiment) -> PublishedTable:
    runs = experiment.runs
    axes: dict[str, list[str]] = {
        "dataset": _distinct(runs, lambda run: str(facts(run).get("dataset.name", ""))),
        "model": _distinct(runs, lambda run: str(facts(run).get("model.name", ""))),
        "failure": _distinct(runs, lambda run: run.suite.rpartition("-")[2]),
        "variant": _distinct(runs, lambda run: run.variant),
        "suites": list(experiment.present),
        "units": _distinct(runs, lambda run: f"{run.suite} {run.variant}"),
        "runs": [run.name for run in runs],
    }
    lines = zip(axes.items(), _missing(experiment), strict=True)
    rows = [_axis(key, found, missing) for (key, found), missing in lines]
    finished = sum(run.counted is not None for run in runs)
    left = "nothing" if finished == len(runs) else f"{len(runs) - finished} unfinished"
    rows.append(
        (
            "finished runs",
            None,
            PUBLISHED.table3["runs"].count,
            _statuses(runs),
            finished,
            "completion accounting",
            left,
        )
    )
    there = ", ".join(f"{status} {number}" for status, number in PUBLISHED.manifest.items())
    note = (
        f"The published matrix is {PUBLISHED.exp4_prefix}; its manifest counts suites ({there}) and"
        f" averages both kinds. {_reuse(runs)}"
    )
    title = f"Table 3: run matrix, {len(experiment.present)} of {len(SUITES)} suites at hand"
    notes = [note, *experiment.remarks()]
    return published_table(experiment, "table3", title, COLUMNS3, rows, notes)


def _axis(key: str, found: Sequence[str], missing: str) -> Row:
    axis = PUBLISHED.table3[key]
    names = {
        "units": "run units",
        "runs": "seed-runs",
        "failure": "failure schedule",
        "dataset": "data set",
    }
    listed_here = None if key in ("units", "runs") else "; ".join(map(printable, found))
    return names.get(key, key), axis.values, axis.count, listed_here, len(found), axis.role, missing


def _missing(experiment: Experiment) -> list[str]:
    """Settings that are not at hand, by axis of table 3."""
    here = [values for values in SUITES if values.suite in experiment.present]
    gone = [
        sorted({getattr(v, axis) for v in SUITES} - {getattr(v, axis) for v in here})
        for axis in ("dataset", "model", "failure")
    ]
    variants = {run.variant for run in experiment.runs}
    units = {(run.suite, run.variant) for run in experiment.runs}
    lacking = [
        f"{values.suite} {arm}"
        for values in here
        for arm in ("ref", "blk", "ovl")
        if (values.suite, arm) not in units
    ]
    beyond = sorted(variants - {"ref", "blk", "ovl"})
    arms = [f"{arm} missing" for arm in ("ref", "blk", "ovl") if arm not in variants] + [
        f"{arm} besides" for arm in beyond
    ]
    texts = [", ".join(f"{name} missing" for name in names) for names in gone] + [", ".join(arms)]
    texts += [
        f"missing: {', '.join(experiment.missing)}" if experiment.missing else "",
        f"missing: {', '.join(lacking)}" if lacking else "",
    ]
    runs, wanted = len(experiment.runs), PUBLISHED.table3["runs"].count
    return [text or "nothing" for text in texts] + [
        "nothing" if runs == wanted else f"{runs} instead of {wanted}"
    ]


def _statuses(runs: Sequence[Run]) -> str:
    """The manifest's statuses, counted in runs."""
    said = [run.input.manifest_row.get("status") or "no manifest" for run in runs]
    return ", ".join(f"{printable(status)} {said.count(status)}" for status in dict.fromkeys(said))


def _reuse(runs: Sequence[Run]) -> str:
    """Whether runs of different code or machines are mixed: from the manifest's reused runs and the
    runs' records.
    """
    mixed = [
        run.name for run in runs if run.input.manifest_row.get("reason", "").startswith("mixed")
    ]
    known = [run for run in runs if run.environment]
    others = sorted({key for run in known for key in pooling_obstacles(known[0], run)})
    told = (
        [
            f"{plural(len(mixed), 'run')} reused in spite of another code or machine (manifest:"
            " mixed)"
        ]
        if mixed
        else []
    )
    told += [f"runs differ in {listed(others)}"] if others else []
    return (
        f"Here {listed(told)}."
        if told
        else "Here all runs are of one code, one machine and one scale."
        if known
        else ""
    )


def table4(experiment: Experiment) -> PublishedTable:
    """Published factors, then every other key that differs between the runs; roles come from the
    runs' configurations.
    """
    known = [
        facts(run)
        | {"seed": run.seed}
        | ({"checkpoint.strategy": run.config["checkpoint"]["strategy"]} if run.config else {})
        for run in experiment.runs
    ]
    differing: dict[str, list[str]] = {}
    for difference in experiment.differs_in(experiment.present):
        differing.setdefault(difference.key, []).append(str(difference))
    rows = [
        _factor(key, _values(known, key), _role(key, known, experiment.runs), differing)
        for key in PUBLISHED.table4
    ]
    others = [key for key in WORDS if key not in PUBLISHED.table4 and len(_values(known, key)) > 1]
    rows += [
        (WORDS[key], "not named", None, "varied", "; ".join(_values(known, key)), "varied here")
        for key in others
    ]
    note = (
        "The published text calls the seed fixed (section 5.3); its table counts three of them."
        " Arms without failures have no failure steps."
    )
    title = "Table 4: controlled and varied factors"
    return published_table(experiment, "table4", title, COLUMNS4, rows, [note])


def _role(key: str, known: Sequence[dict[str, Any]], runs: Sequence[Run]) -> str:
    """Whether `key` differs between the runs; seeds are controlled if every arm has the same
    ones.
    """
    if key != "seed":
        return "varied" if len(_values(known, key)) > 1 else "controlled"
    by_arm: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        by_arm.setdefault((run.suite, run.variant), set()).add(run.seed)
    return "controlled" if len({frozenset(seeds) for seeds in by_arm.values()}) == 1 else "varied"


def _factor(key: str, values: Sequence[str], here: str, differing: dict[str, list[str]]) -> Row:
    there = PUBLISHED.table4[key]
    told = [f"{there.role} there, {here} here"] if there.role != here else []
    told += differing.get(key, [])
    return (
        there.label,
        there.role,
        there.treatment,
        here,
        "; ".join(values),
        "; ".join(told) or "nothing",
    )


def _values(known: Sequence[dict[str, Any]], key: str) -> list[str]:
    return list(
        dict.fromkeys(
            shown(item[key]) for item in known if key in item and item[key] not in ([], ())
        )
    )


def _distinct(runs: Sequence[Run], read: Read) -> list[str]:
    return list(dict.fromkeys(found for run in runs if (found := read(run))))


def _cores(cpu: dict[str, Any]) -> str:
    return (
        f"{cpu.get('physical', '?')} physical cores, {cpu.get('logical', '?')} logical CPUs"
        if cpu
        else NONE
    )
