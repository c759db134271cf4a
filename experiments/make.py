"""Makes the results of an experiment: runs its commands, verifies, reports, and keeps what
docs/results/NAME is to hold.

Started again it goes on where it was stopped: sweeps and studies do that themselves. Nothing in
docs/results changes before all is there.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import IO, Any

from experiments.packed import pack
from experiments.registry import RESULTS, Experiment, ExperimentError
from experiments.stamp import Session, judged, session, stamp

ECRL = (sys.executable, "-m", "ecrl_cli.cli.main")
STOPPED = (130, 143, -2, -15)  # by a signal; the same command goes on
# bad input, a run that another process holds, fenced: nothing was run, or not by this call
REFUSED = (2, 8, 9)
JUDGED = (0, 1, 3)  # ended: all is well, a verdict or gate failed, a verdict is missing
TRAINED = (0,)  # training judges nothing: with any other code a run of it has not ended
KEPT = (
    "runs.csv",
    "summary.csv",
    "comparisons.csv",
    "restarts.csv",
    "recoveries.csv",
    "checkpointers.csv",
    "publication_summary.md",
)
LARGEST_TABLE = 100_000  # bytes of a study's table that is kept


class Stopped(Exception):
    """A command was stopped; its exit code."""


def make(experiment: Experiment, outputs: Path, data: str, results: Path = RESULTS) -> int:
    """Runs and keeps `experiment` in `results`. 0; 1 where a verdict or gate failed, 3 where one is
    missing (kept all the same: the page says so).

    ExperimentError with nothing kept where a command was refused or failed; Stopped where it was
    stopped.
    """
    if experiment.wants_data and not data:
        raise ExperimentError(
            f"{experiment.name}: needs real images: add DATA=DIR, a folder with cifar10/ and"
            " cifar100/ in it"
        )
    sessions = _run(experiment, outputs, data)
    return _kept(experiment, outputs, results, lambda run: stamp(run, sessions))


def judge(experiment: Experiment, outputs: Path, results: Path = RESULTS) -> int:
    """Verifies and reports anew the runs that are kept, with the judge as it is now. As `make`
    returns.

    ExperimentError with nothing changed where these runs are no longer in `outputs`.
    """
    path = results / experiment.name / "stamp.json"
    if experiment.is_study or not path.is_file():
        raise ExperimentError(
            f"{experiment.name}:"
            f" {'a study is judged while it runs' if experiment.is_study else 'nothing is kept'};"
            " make it"
        )
    before = json.loads(path.read_text(encoding="utf-8"))
    made = {
        each["source_sha256"]
        for folder in experiment.folders(outputs)
        for each in _environments(folder)
    }
    if made != {before["source_sha256"]}:
        raise ExperimentError(
            f"{experiment.name}: the runs in {outputs} are not those that are kept; make it anew"
        )
    return _kept(experiment, outputs, results, lambda run: judged(before))


def _kept(
    experiment: Experiment,
    outputs: Path,
    results: Path,
    stamped: Callable[[dict[str, Any]], dict[str, Any]],
) -> int:
    """Verifies, reports and keeps what lies in `outputs`; `stamped` makes the content of stamp.json
    from an environment.json.
    """
    folders = experiment.folders(outputs)
    with tempfile.TemporaryDirectory(prefix=f".{experiment.name}-", dir=_made(results)) as scratch:
        new, report = Path(scratch) / experiment.name, Path(scratch) / "report"
        new.mkdir()
        verdicts = (
            {} if experiment.is_study else _verified(experiment, experiment.run_folders(outputs))
        )
        code = _ended(
            experiment,
            JUDGED,
            "report",
            *map(str, folders),
            "--out",
            str(report),
            out=subprocess.DEVNULL,
        )
        if not (report / "report.json").is_file():  # a study was ended from outside
            raise ExperimentError(
                f"{experiment.name}: nothing to report, for it has not ended; the same command goes"
                " on from here"
            )
        document = json.loads((report / "report.json").read_text(encoding="utf-8"))
        # a lost worker ends it with 1, too
        if unfinished := [
            study["name"] for study in document.get("studies", ()) if not study.get("complete")
        ]:
            raise ExperimentError(
                f"{experiment.name}: not all trials of {', '.join(unfinished)} have ended; the same"
                " command goes on from here"
            )
        _keep(experiment, report, folders, new)
        runs = [document for folder in folders for document in _environments(folder)]
        _write(new / "environment.json", runs[0])
        # of a run on a GPU where there is one: the page names the machine
        _write(new / "stamp.json", stamped(next((run for run in runs if run["gpus"]), runs[0])))
        _write(new / "result.json", _result(document, verdicts))
        if experiment.records:
            pack(folders, new / "records.tar.xz")
        _replace(new, results / experiment.name)
    return code


def _run(experiment: Experiment, outputs: Path, data: str) -> list[Session]:
    """All sessions of the folders as they are, the one of this call at last."""
    folders = experiment.folders(outputs)
    log = folders[0].with_name(f"{folders[0].name}.sessions.jsonl")
    if not any(folder.exists() for folder in folders):
        log.unlink(missing_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    called: list[Session] = []
    try:
        with session(called):
            for given in experiment.given(outputs, data):
                if given[0] == "study":
                    _ended(experiment, JUDGED, *given)
                else:
                    _ended(experiment, TRAINED, *given, "--yes")
    finally:
        with log.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(each)) + "\n" for each in called)
    lines = log.read_text(encoding="utf-8").splitlines()
    return [Session(**json.loads(line)) for line in lines]


def _ended(
    experiment: Experiment, codes: tuple[int, ...], *given: str, out: int | IO[str] | None = None
) -> int:
    """The exit code of `ecrl GIVEN...`, one of `codes`. Stopped where it was stopped;
    ExperimentError where it was refused or failed.
    """
    code = _ecrl(*given, out=out)
    if code in STOPPED:
        raise Stopped(code)
    if code not in codes:
        ended = (
            "was refused, for the reason above"
            if code in REFUSED
            else "failed; once the cause is gone the same command goes on from here"
        )
        raise ExperimentError(
            f"{experiment.name}: nothing was kept: exit code {code}: the command {ended}: ecrl"
            f" {shlex.join(given)}"
        )
    return code


def _ecrl(*given: str, out: int | IO[str] | None = None) -> int:
    """The exit code of `ecrl GIVEN...`, with standard output to `out`. It has a process group of
    its own, and SIGINT and SIGTERM are handed on to it: it saves and ends by itself, and a second
    one ends it at once.
    """
    running: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        for process in running:
            process.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        running.append(subprocess.Popen([*ECRL, *given], stdout=out, process_group=0))
        return running[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _verified(experiment: Experiment, folders: list[Path]) -> dict[str, dict[str, Any]]:
    """By folder of a run, what `ecrl verify` says of it: without findings where it could not be
    judged.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        _ended(experiment, JUDGED, "verify", *map(str, folders), "--json", out=out)
        out.seek(0)
        return dict(json.load(out))


def _environments(folder: Path) -> Iterator[dict[str, Any]]:
    for path in (folder / "environment.json", *sorted(folder.glob("*/environment.json"))):
        if path.is_file():
            yield json.loads(path.read_text(encoding="utf-8"))


def _result(document: dict[str, Any], verdicts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the page is made of: the report's sentences, a verdict for each run and counts for each
    promise, gates.
    """
    promises: dict[str, Counter[str]] = {}
    for verdict in verdicts.values():
        for finding in verdict.get("findings", ()):
            promises.setdefault(finding["promise"], Counter())[finding["status"]] += 1
    studies = [
        {key: each[key] for key in ("name", "gates", "planned", "done", "notes")}
        for each in document.get("studies", [])
    ]
    return {
        "headline": document["headline"],
        "sentences": document["sentences"],
        "verdicts": {
            verdict.get("run", Path(folder).name): verdict["status"]
            for folder, verdict in verdicts.items()
        },
        "promises": {name: dict(counts) for name, counts in promises.items()},
        "failed_gates": [
            {"suite": suite, "gate": gate["name"], "message": gate["message"]}
            for suite, gates in document["gates"].items()
            for gate in gates
            if not gate["passed"]
        ],
        "studies": studies,
    }


def _keep(experiment: Experiment, report: Path, folders: list[Path], new: Path) -> None:
    """Files of the report, those of its subfolders in the same; what the report lacks (a sweep's
    manifest.csv) from the experiment's own folders.
    """
    tables = [
        path.name
        for path in report.glob("*.csv")
        if experiment.is_study and path.stat().st_size <= LARGEST_TABLE
    ]
    shown = [table.file for table in experiment.tables]
    figures = [f"figures/{name}.png" for name in experiment.figures]
    for name in {*KEPT, *experiment.keeps, *tables, *shown, *figures}:
        if found := next(
            (folder / name for folder in (report, *folders) if (folder / name).is_file()), None
        ):
            shutil.copyfile(found, _made((new / name).parent) / found.name)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _replace(new: Path, target: Path) -> None:
    """`target` as `new` is; what stood there goes."""
    if target.exists():
        target.rename(new.parent / "old")
    new.rename(target)
