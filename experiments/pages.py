"""The pages of docs/results that are made from what is kept there: one for each experiment, and the
table of all in README.md.

Everything on them comes from the kept files.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.registry import RESULTS, ROOT, Experiment, Registry
from experiments.stamp import BUSY
from experiments.tables import ARMS

from ecrl_cli.config.estimates import human_bytes, human_seconds

INDEX, ESTIMATES = RESULTS / "README.md", RESULTS / "estimates.json"
BEGIN, END = (
    "<!-- experiments: made by python -m experiments --pages -->",
    "<!-- experiments: end -->",
)
FIGURES = {
    "goodput": "goodput: steps that count in a second of wall time",
    "effects": "goodput of arms against each other, with intervals",
    "recoveries": "what each recovery cost",
}


@dataclass(frozen=True)
class Kept:
    """What docs/results/NAME holds; `made`: None where nothing is there. Results of before there
    were stamps have an environment and tables alone.
    """

    environment: dict[str, Any] | None
    stamp: dict[str, Any]
    result: dict[str, Any]
    verdicts: Counter[str]

    @classmethod
    def of(cls, folder: Path) -> Kept:
        def document(name: str) -> Any:
            path = folder / name
            return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

        result = document("result.json") or {}
        verdicts = (
            Counter(result["verdicts"].values()) if result else _in_table(folder / "runs.csv")
        )
        return cls(document("environment.json"), document("stamp.json") or {}, result, verdicts)

    @property
    def runs(self) -> str:
        """How many there are, and of what."""
        runs = [f"{self.verdicts.total()} runs"] if self.verdicts else []
        trials = (
            [f"{sum(each['done'] for each in studies):,} trials"]
            if (studies := self.result.get("studies"))
            else []
        )
        return ", ".join([*runs, *trials]) or "see below"

    @property
    def judged(self) -> str:
        """Verdicts of runs, or gates of studies."""
        found = [
            f"{count} {status}"
            for status, count in sorted(self.verdicts.items(), key=lambda each: -each[1])
        ]
        if studies := self.result.get("studies"):
            gates = [gate["passed"] for each in studies for gate in each["gates"]]
            found.append(f"{sum(gates)} of {len(gates)} gates")
        return ", ".join(found) or "see below"

    @property
    def commit(self) -> str:
        return abbreviated(
            (self.stamp or self.environment or {}).get("commit")
            or (self.environment or {}).get("git_revision")
            or "not recorded"
        )

    @property
    def made_with(self) -> str:
        """The version and commit of the code that made it."""
        return f"ecrl {(self.environment or {}).get('ecrl', '?')} at `{self.commit}`"

    @property
    def date(self) -> str:
        sessions = self.stamp.get("sessions", [])
        return sessions[-1]["began"][:10] if sessions else "not recorded"

    @property
    def others(self) -> float:
        """The share of the processors that other work took, over all sessions."""
        sessions = self.stamp["sessions"]
        total = sum(each["seconds"] for each in sessions)
        return (
            float(sum(each["others"] * each["seconds"] for each in sessions) / total)
            if total
            else 0.0
        )

    @property
    def seconds(self) -> float:
        return float(sum(each["seconds"] for each in self.stamp["sessions"]))


def _in_table(path: Path) -> Counter[str]:
    if not path.is_file():
        return Counter()
    with path.open(encoding="utf-8", newline="") as file:
        return Counter(row["verdict"] for row in csv.DictReader(file))


def abbreviated(commit: str) -> str:
    """Ten digits of a commit, and whether the tree had changes that it has not."""
    return commit[:10] + ("-dirty" if commit.endswith("-dirty") else "")


def page(experiment: Experiment) -> str:
    """docs/results/NAME/README.md."""
    kept = Kept.of(experiment.folder)
    lines = [
        f"# {experiment.title}",
        "",
        "*Made by `python -m experiments`; edit `docs/results/experiments.yaml`.*",
        "",
        f"Shows: {experiment.shows}.",
        "",
    ]
    lines += [experiment.note, ""] if experiment.note else []
    lines += [
        "```bash",
        f"make results RESULTS={experiment.name}{' DATA=DIR' if experiment.wants_data else ''}",
        "```",
        "",
        "which runs",
        "",
    ]
    lines += ["```bash", *_commands(experiment), "```", ""]
    if kept.environment is None:
        return "\n".join(
            [
                *lines,
                f"**Not {'kept' if experiment.is_study else 'run'}.** {_expected(experiment)}",
                "",
            ]
        )
    lines += _stamp(experiment, kept)
    lines += (
        _outcome(experiment, kept)
        if kept.result
        else ["Kept before there were stamps; what it says: [results](../README.md).", ""]
    )
    for name in experiment.figures:
        if (experiment.folder / "figures" / f"{name}.png").is_file():
            lines += [
                f"![{FIGURES.get(name, re.sub(r'[-_.]', ' ', name))}](figures/{name}.png)",
                "",
            ]
    if (experiment.folder / "records.tar.xz").is_file():
        lines += _records(experiment)
    files = sorted(
        path.name
        for path in experiment.folder.iterdir()
        if path.is_file() and path.name != "README.md"
    )
    return "\n".join([*lines, f"Kept here: {', '.join(f'`{name}`' for name in files)}.", ""])


def _commands(experiment: Experiment) -> list[str]:
    folders = " ".join(map(str, experiment.folders()))
    judged = (
        []
        if experiment.is_study
        else [f"ecrl verify {' '.join(map(str, experiment.run_folders()))}"]
    )
    return [*experiment.commands, *judged, f"ecrl report {folders}"]


def _stamp(experiment: Experiment, kept: Kept) -> list[str]:
    environment = kept.environment or {}
    cpu = environment["cpu"]
    rows = {
        "runs": kept.runs,
        "verdicts": (
            kept.judged
            + (
                f", judged anew at `{abbreviated(kept.stamp['judged'])}`"
                if "judged" in kept.stamp
                else ""
            )
        ),
        "made with": f"{kept.made_with}, torch {environment['packages'].get('torch', '-')}",
        "made": kept.date,
        "machine": (
            f"{cpu['model']}, {cpu['logical']} cores, {human_bytes(environment['memory_bytes'])},"
            f" {len(environment['gpus'])} GPUs"
        ),
    }
    if kept.stamp:
        load = ", ".join(
            f"{each['load'][0]:.1f} to {each['load'][1]:.1f}" for each in kept.stamp["sessions"]
        )
        rows["took"] = (
            f"{human_seconds(kept.seconds)} in {len(kept.stamp['sessions'])} session(s); load"
            f" {load}"
        )
        busy = kept.others > BUSY
        told = (
            "**seconds and goodput here are of a busy machine and compare nothing**; verdicts and"
            " counts do not depend on it"
            if busy
            else "idle otherwise"
        )
        rows["other work on the machine"] = f"{kept.others:.0%} of its processor time: {told}"
    return ["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows.items()), ""]


def _outcome(experiment: Experiment, kept: Kept) -> list[str]:
    """What was found, then its tables, then what was checked."""
    lines = [f"- {sentence}" for sentence in kept.result["sentences"]] + [""]
    for table in (*experiment.tables, *([] if experiment.is_study else [ARMS])):
        lines += table.markdown(experiment.folder)
    for study in kept.result["studies"]:
        lines += [f"{study['name']}: {study['done']:,} of {study['planned']:,} trials.", ""]
        lines += [
            f"- {'passed' if gate['passed'] else '**failed**'}: {gate['name']}: {gate['message']}"
            for gate in study["gates"]
        ]
        # results kept before have none
        lines += [f"- {note}" for note in study.get("notes", ())] + [""]
    if promises := kept.result["promises"]:
        lines += [
            "| promise | valid | invalid | unknown | not checked |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        lines += [
            f"| {name} | {' | '.join(str(counts.get(status, 0)) for status in _STATUSES)} |"
            for name, counts in promises.items()
        ] + [""]
    if failed := kept.result["failed_gates"]:
        lines += [
            f"- **failed**: {each['suite']}: {each['gate']}: {each['message']}" for each in failed
        ] + [""]
    return lines


_STATUSES = ("valid", "invalid", "unknown", "not checked")


def _records(experiment: Experiment) -> list[str]:
    size = human_bytes((experiment.folder / "records.tar.xz").stat().st_size)
    archive, there = (
        f"{experiment.folder.relative_to(ROOT)}/records.tar.xz",
        f"outputs/{experiment.name}-records",
    )
    return [
        (
            f"## Judge these runs yourself\n\nThe runs are kept ({size}), with the checkpoints that"
            " a verdict reads and without any verdict:\n"
        ),
        "```bash",
        f"mkdir -p {there}",
        f"tar -xf {archive} -C {there}",
        f"ecrl verify {there}",
        "```\n",
    ]


def _expected(experiment: Experiment) -> str:
    """What keeps it from being run here, or what ECRL expects of it."""
    if experiment.needs:
        return f"It needs {experiment.needs}; no result of one is kept."
    if experiment.is_study:
        return (
            "A study says no time ahead; what came of it at other times:"
            " [studies](../../studies.md#what-came-of-it)."
        )
    if not (found := _estimate(experiment)):
        return ""
    return (
        f"ECRL expects {found} on two idle cores (`python -m experiments --estimate"
        f" {experiment.name}`)."
    )


def _estimate(experiment: Experiment) -> str:
    found = (json.loads(ESTIMATES.read_text(encoding="utf-8")) if ESTIMATES.is_file() else {}).get(
        experiment.name
    )
    return f"{found['runs']} runs and {human_seconds(found['seconds'])}" if found else ""


def index(registry: Registry) -> str:
    """docs/results/README.md with its table made anew; the rest as it stands."""
    text = INDEX.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    rows = [_row(each) for each in registry.experiments.values()]
    table = [
        (
            "| experiment | what it shows | `make results ...` | runs | verdicts | made with |"
            " made |"
        ),
        "| --- " * 7 + "|",
        *rows,
    ]
    return "\n".join([before + BEGIN, *table, END]) + rest.partition(END)[2]


def _row(experiment: Experiment) -> str:
    kept = Kept.of(experiment.folder)
    given = f"`RESULTS={experiment.name}{' DATA=DIR' if experiment.wants_data else ''}`"
    if kept.environment is None:
        why = f"needs {experiment.needs}" if experiment.needs else _estimate(experiment)
        cells = [
            f"**not {'kept' if experiment.is_study else 'run'}**{f': {why}' if why else ''}",
            "-",
            "-",
            "-",
        ]
    else:
        busy = ", busy" if kept.stamp and kept.others > BUSY else ""
        cells = [
            kept.runs,
            kept.judged,
            kept.made_with,
            f"{kept.date}{busy}",
        ]
    link = f"[{experiment.name}]({experiment.name}/README.md)"
    return f"| {' | '.join([link, experiment.shows, given, *cells])} |"


def write(registry: Registry) -> None:
    """Every page anew."""
    for experiment in registry.experiments.values():
        experiment.folder.mkdir(exist_ok=True)
        (experiment.folder / "README.md").write_text(page(experiment), encoding="utf-8")
    INDEX.write_text(index(registry), encoding="utf-8")
