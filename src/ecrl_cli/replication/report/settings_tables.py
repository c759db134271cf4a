"""Tables 2 to 4: what it ran on, what was run, and which factors were held and which varied; all from the runs' own records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ecrl_cli.replication.report.sample import Experiment
from ecrl_cli.replication.report.setting import WORDS, facts, shown
from ecrl_cli.replication.report.values import EXP4_PREFIX, MANIFEST, SUITES, TABLE2, TABLE3, TABLE4
from ecrl_cli.report.formats import NONE, listed, plural, printable
from ecrl_cli.report.model.replication import PublishedTable
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.suite_gates import unlike

COLUMNS2 = ("Item", "Published", "Measured", "n", "What differs")
COLUMNS3 = ("Axis", "Published", "Count there", "Measured", "Count here", "Role", "What differs")
COLUMNS4 = ("Factor", "Role there", "Treatment there", "Role here", "Values here", "What differs")
_GIB = 2**30

Read = Callable[[Run], str]
_ITEMS: dict[str, Read] = {
    "os": lambda run: f"kernel {run.environment.get('kernel', '?')}, {run.environment.get('machine', '?')}",
    "cpu": lambda run: str(run.environment.get("cpu", {}).get("model", NONE)),
    "cores": lambda run: _cores(run.environment.get("cpu", {})),
    "memory": lambda run: _memory(run.environment.get("memory_bytes")),
    "gpus": lambda run: ", ".join(str(gpu.get("name")) for gpu in run.environment.get("gpus", ())) or "none",
    "driver": lambda run: ", ".join(sorted({str(gpu.get("driver")) for gpu in run.environment.get("gpus", ())})) or "none",
    "python": lambda run: str(run.environment.get("python", NONE)),
    "torch": lambda run: str(run.environment.get("packages", {}).get("torch", NONE)),
    "cuda_build": lambda run: str(run.environment.get("packages", {}).get("torch", "")).partition("+")[2] or "not in the version",
    "visible": lambda run: f"device {facts(run).get('device', '?')}, {plural(len(run.environment.get('gpus', ())), 'GPU')}",
    "ranks": lambda run: f"{run.config.get('world_size', '?')} ranks by {run.config.get('supervision', {}).get('launcher', '?')}",
}
_MORE: dict[str, tuple[str, Read]] = {
    "file system": ("not stated", lambda run: str(run.environment.get("file_system", {}).get("type", NONE))),
    "code revision": ("not stated", lambda run: f"ecrl {run.environment.get('ecrl', '?')} {run.environment.get('git_revision') or ''}".strip()),
}


def table2(experiment: Experiment) -> PublishedTable:
    runs = [run for run in experiment.runs if run.environment]
    items = [(label, published, _ITEMS[key]) for key, (label, published) in TABLE2.items()]
    items += [(name.capitalize(), published, read) for name, (published, read) in _MORE.items()]
    rows = []
    for label, published, read in items:
        values = list(dict.fromkeys(printable(read(run)) for run in runs))
        measured = "; ".join(values) or NONE
        verdict = NONE if published == "not stated" or not values else "nothing" if values == [published] else "differs"
        rows.append((label, published, measured, plural(len(runs), "run"), verdict))
    note = "The published runs used four of six GPUs of two kinds, and it is not said which."
    return PublishedTable("table2", f"Table 2: environment ({experiment.scale})", note, COLUMNS2, tuple(rows), experiment.setting)


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
    rows.append(("finished runs", NONE, "72", _statuses(runs), str(finished), "completion accounting", _short_of(finished, len(runs))))
    there = ", ".join(f"{status} {number}" for status, number in MANIFEST.items())
    note = f"The published matrix is {EXP4_PREFIX}; its manifest counts suites ({there}) and averages both kinds. {_reuse(runs)}"
    title = f"Table 3: run matrix, {len(experiment.present)} of {len(SUITES)} suites at hand ({experiment.scale})"
    return PublishedTable("table3", title, " ".join([note, *experiment.remarks()]), COLUMNS3, tuple(rows), experiment.setting)


def _axis(key: str, found: Sequence[str], missing: str) -> tuple[str, ...]:
    published, count, role = TABLE3[key]
    names = {"units": "run units", "runs": "seed-runs", "failure": "failure schedule", "dataset": "data set"}
    listed_here = NONE if key in ("units", "runs") else "; ".join(map(printable, found))
    return names.get(key, key), published, str(count), listed_here, str(len(found)), role, missing


def _missing(experiment: Experiment) -> list[str]:
    """By axis of Table 3, what of it is not at hand."""
    here = [values for values in SUITES if values.suite in experiment.present]
    gone = [sorted({getattr(v, axis) for v in SUITES} - {getattr(v, axis) for v in here}) for axis in ("dataset", "model", "failure")]
    variants = {run.variant for run in experiment.runs}
    units = {(run.suite, run.variant) for run in experiment.runs}
    lacking = [f"{values.suite} {arm}" for values in here for arm in ("ref", "blk", "ovl") if (values.suite, arm) not in units]
    beyond = sorted(variants - {"ref", "blk", "ovl"})
    arms = [f"{arm} missing" for arm in ("ref", "blk", "ovl") if arm not in variants] + [f"{arm} besides" for arm in beyond]
    texts = [", ".join(f"{name} missing" for name in names) for names in gone] + [", ".join(arms)]
    texts += [f"missing: {', '.join(experiment.missing)}" if experiment.missing else "", f"missing: {', '.join(lacking)}" if lacking else ""]
    runs = len(experiment.runs)
    return [text or "nothing" for text in texts] + ["nothing" if runs == TABLE3["runs"][1] else f"{runs} instead of {TABLE3['runs'][1]}"]


def _statuses(runs: Sequence[Run]) -> str:
    """The manifest's statuses, counted in runs."""
    said = [run.place.said.get("status") or "no manifest" for run in runs]
    return ", ".join(f"{printable(status)} {said.count(status)}" for status in dict.fromkeys(said))


def _reuse(runs: Sequence[Run]) -> str:
    """Whether runs of two codes or machines stand side by side here: what the manifest says of reused runs, and what the runs recorded."""
    mixed = [run.name for run in runs if run.place.said.get("reason", "").startswith("mixed")]
    known = [run for run in runs if run.environment]
    others = sorted({key for run in known for key in unlike(known[0], run)})
    told = [f"{plural(len(mixed), 'run')} reused in spite of another code or machine (manifest: mixed)"] if mixed else []
    told += [f"runs differ in {listed(others)}"] if others else []
    return f"Here {listed(told)}." if told else "Here all runs are of one code, one machine and one scale." if known else ""


def _short_of(finished: int, runs: int) -> str:
    return "nothing" if finished == runs else f"{runs - finished} unfinished"


def table4(experiment: Experiment) -> PublishedTable:
    """Published factors, then every other key that differs between the runs; the roles from the runs' configurations."""
    known = [facts(run) | _strategy(run) | {"seed": run.seed} for run in experiment.runs]
    differing: dict[str, list[str]] = {}
    for difference in experiment.differs_in(experiment.present):
        differing.setdefault(difference.key, []).append(str(difference))
    rows = [_factor(key, _values(known, key), _role(key, known, experiment.runs), differing) for key in TABLE4]
    others = [key for key in WORDS if key not in TABLE4 and len(_values(known, key)) > 1]
    rows += [(WORDS[key], "not named", NONE, "varied", _listed(_values(known, key)), "varied here") for key in others]
    note = "The published text calls the seed fixed (section 5.3); its table counts three of them. Arms without failures have no failure steps."
    title = f"Table 4: controlled and varied factors ({experiment.scale})"
    return PublishedTable("table4", title, note, COLUMNS4, tuple(rows), experiment.setting)


def _strategy(run: Run) -> dict[str, Any]:
    return {"checkpoint.strategy": run.config["checkpoint"]["strategy"]} if run.config else {}


def _role(key: str, known: Sequence[dict[str, Any]], runs: Sequence[Run]) -> str:
    """Whether the runs differ in `key`; seeds are controlled where every arm has the same ones."""
    if key != "seed":
        return "varied" if len(_values(known, key)) > 1 else "controlled"
    by_arm: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        by_arm.setdefault((run.suite, run.variant), set()).add(run.seed)
    return "controlled" if len({frozenset(seeds) for seeds in by_arm.values()}) == 1 else "varied"


def _factor(key: str, values: Sequence[str], here: str, differing: dict[str, list[str]]) -> tuple[str, ...]:
    label, role, treatment = TABLE4[key]
    told = [f"{role} there, {here} here"] if role != here else []
    told += differing.get(key, [])
    return label, role, treatment, here, _listed(values), "; ".join(told) or "nothing"


def _values(known: Sequence[dict[str, Any]], key: str) -> list[str]:
    return list(dict.fromkeys(shown(item[key]) for item in known if key in item and item[key] not in ([], ())))


def _listed(values: Sequence[str]) -> str:
    return "; ".join(values) or NONE


def _distinct(runs: Sequence[Run], read: Read) -> list[str]:
    return list(dict.fromkeys(found for run in runs if (found := read(run))))


def _cores(cpu: dict[str, Any]) -> str:
    return f"{cpu.get('physical', '?')} physical cores, {cpu.get('logical', '?')} logical CPUs" if cpu else NONE


def _memory(size: object) -> str:
    return f"{size / _GIB:.0f} GiB RAM" if isinstance(size, int) else NONE
