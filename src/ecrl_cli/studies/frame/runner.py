"""Runs the planned trials that are not yet recorded; after an interruption the same command
resumes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from ecrl_cli.config.codec import encode
from ecrl_cli.config.study import StudyConfig, study_id
from ecrl_cli.errors import EcrlError, RecordError, RunDirectoryError, Stopped, plural, shown
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.pdeathsig import die_with_parent
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import StudyLayout
from ecrl_cli.runs.environment import code_revision, environment
from ecrl_cli.runs.run_dir import claim_folder
from ecrl_cli.storage.files import write_json
from ecrl_cli.studies.frame.registry import load_study, make_study
from ecrl_cli.studies.frame.result import SCHEMA_VERSION, Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, StudyContext, Trial
from ecrl_cli.supervision.run_lock import run_lock

Say = Callable[[str], None]


def check_folder(config: StudyConfig, root: Path) -> None:
    """Raises RunDirectoryError unless `root` is free for, or already holds, exactly this study.
    Writes nothing.
    """
    layout = StudyLayout(root)
    if not layout.study.exists():
        claim_folder(
            root,
            ours=(
                layout.lock.name,
                layout.scratch.name,
                layout.environment.name,
                *(path.name for path in _torn(root)),
            ),
        )
        return
    try:
        document = json.loads(layout.study.read_text(encoding="utf-8"))
        there, code = str(document["study_id"]), document["code"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            "study.json",
            f"cannot be read at {root} ({shown(str(error), 60)})",
            "restore the file or choose another run_dir",
        ) from error
    if there != study_id(config):
        fact = f"{root} belongs to study {there[:8]}, this configuration is {study_id(config)[:8]}"
        raise RunDirectoryError("run_dir", fact, "set it back or choose another run_dir")
    if code != code_revision():
        fact = (
            f"{root} was begun by {shown(code)}, this is {shown(code_revision())}: trials of both"
            " would be mixed"
        )
        raise RunDirectoryError(
            "run_dir", fact, "choose another run_dir, or go on with the code that began it"
        )


def run_study(config: StudyConfig, root: Path, say: Say) -> int:
    """Run the missing trials and write result.json. 0: complete and every gate passed; 1: a gate
    failed; 130: interrupted, resumes on the next start.
    """
    layout = StudyLayout(root)
    root.mkdir(parents=True, exist_ok=True)
    with (
        _terminable(),
        run_lock(layout),
        _scratch(layout),
        _opened(StudyContext(config, layout.scratch / "main")) as study,
    ):
        plan = _planned(study)
        _write_headers(config, layout)
        say(f"{config.name}: {plural(len(plan), 'trial')}, seed {config.seed}: {root}")
        for skip in study.skips():
            say(f"{config.name}: skipped: {skip.arm}: {skip.reason}")
        try:
            _run_missing(config, layout, study, plan, say)
        except KeyboardInterrupt as stop:
            say(f"{config.name}: stopped; the same command goes on from here")
            return 143 if stop.args == (signal.SIGTERM,) else 130
        finally:
            document = _conclude(config, layout, study, plan)
    return _answer(config, document, say)


def replay(config: StudyConfig) -> int:
    """Run the one trial that `config.trial` names, in the study's folder or its future place, and
    print its record; nothing is stored.
    """
    import tempfile

    beside = next(
        path
        for path in (
            Path(config.run_dir or "outputs").expanduser().absolute(),
            Path.cwd(),
            Path("/"),
        )
        if path.is_dir()
    )
    with (
        _terminable(),
        tempfile.TemporaryDirectory(prefix=".replay-", dir=beside) as folder,
        _opened(StudyContext(config, Path(folder) / "main")) as study,
    ):
        found = {trial.key: trial for trial in study.plan()}
        if config.trial not in found:
            raise RunDirectoryError(
                "trial",
                f"no trial {shown(config.trial)} in {config.name} with seed {config.seed}",
                "take a key from trials.jsonl",
            )
        trial = found[config.trial]
        record = {"key": trial.key, "facts": trial.facts, "found": study.run(trial)}
    sys.stdout.write(json.dumps(record, indent=2) + "\n")
    return 0


@contextmanager
def _opened(setting: StudyContext) -> Iterator[PreparedStudy]:
    setting.scratch.mkdir(parents=True)
    study = make_study(setting)
    try:
        yield study
    finally:
        study.close()


@contextmanager
def _scratch(layout: StudyLayout) -> Iterator[None]:
    """An empty scratch folder, also if a killed predecessor left one; removed on exit."""
    for path in _torn(layout.root):
        path.unlink()
    shutil.rmtree(layout.scratch, ignore_errors=True)
    layout.scratch.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(layout.scratch, ignore_errors=True)


def _torn(root: Path) -> list[Path]:
    """Temporary files of JSON files whose writer died before the rename."""
    return list(root.glob(".*.json.*.tmp"))


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: records stay, resources are closed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number))

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt as stopped:
        if stopped.args != (signal.SIGTERM,):
            raise
        raise Stopped("SIGTERM", "stopped", "start the same command again") from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _write_headers(config: StudyConfig, layout: StudyLayout) -> None:
    if not layout.study.exists():
        write_json(layout.environment, environment(layout.root))
        write_json(
            layout.study,
            {
                "schema_version": SCHEMA_VERSION,
                "study_id": study_id(config),
                "code": code_revision(),
                **encode(config),
            },
        )


def _planned(study: PreparedStudy) -> list[Trial]:
    plan = list(study.plan())
    if len({trial.key for trial in plan}) != len(plan):
        raise ValueError("two trials of a plan have the same key")
    return plan


def _run_missing(
    config: StudyConfig, layout: StudyLayout, study: PreparedStudy, plan: Sequence[Trial], say: Say
) -> None:
    done = _records(layout, plan)
    missing = [trial for trial in plan if trial.key not in done]
    journal, progress = (
        Journal(layout.trials),
        TrialProgress(config.name, len(plan), len(plan) - len(missing), say),
    )
    try:
        for record in results(config, layout.scratch, study, missing, say):
            journal.append(record)
            progress.step()
    finally:
        journal.close()
        progress.close()


def _records(layout: StudyLayout, plan: Sequence[Trial]) -> dict[str, Record]:
    """The records of `plan`, in its order; a record with the same key but other facts is
    ignored.
    """
    found = {record.key: record for record in read_journal(layout.trials, Record).events}
    planned = {trial.key: encode(trial.facts) for trial in plan}
    return {
        key: found[key]
        for key, facts in planned.items()
        if key in found and found[key].facts == facts
    }


def _conclude(
    config: StudyConfig, layout: StudyLayout, study: PreparedStudy, plan: Sequence[Trial]
) -> dict[str, Any]:
    """Write result.json from the records so far, and return it."""
    kept = list(_records(layout, plan).values())
    found = study.findings(kept) if kept else Findings()
    complete = len(kept) == len(plan) > 0
    ran = Gate("trials", complete, f"{len(kept)} of {len(plan)} planned trials are on record")
    document = {
        "schema_version": SCHEMA_VERSION,
        "name": config.name,
        "study_id": study_id(config),
        "config": encode(config),
        "planned": len(plan),
        "done": len(kept),
        "complete": complete,
        "seconds": sum(record.seconds for record in kept),
        "skips": encode(tuple(study.skips())),
        **encode(found),
        "gates": encode((ran, *found.gates)),
    }
    write_json(layout.result, document)
    return document


def _answer(config: StudyConfig, document: dict[str, Any], say: Say) -> int:
    failed = [gate for gate in document["gates"] if not gate["passed"]]
    for gate in failed:
        say(f"{config.name}: gate failed: {gate['name']}: {gate['message']}")
    for note in document["notes"]:
        say(f"{config.name}: {note}")
    say(
        f"{config.name}: {plural(document['done'], 'trial')},"
        f" {len(document['gates']) - len(failed)} of {len(document['gates'])} gates passed"
    )
    return 1 if failed else 0


_EVERY_S = 10.0


class TrialProgress:
    """Counts trials; call `step` for each recorded one."""

    def __init__(self, name: str, total: int, done: int, say: Callable[[str], None]) -> None:
        self._name, self._total, self._done, self._say = name, total, done, say
        self._began = self._said = monotonic()
        self._bar: Bar | None = None
        if done:
            say(f"{name}: {done} of {plural(total, 'trial is', 'trials are')} on record already")
        if sys.stderr.isatty():
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task(name, total=total, completed=done)
            self._bar.start()

    def step(self) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._task)
        elif monotonic() - self._said > _EVERY_S:
            self._said = monotonic()
            self._say(
                f"{self._name}: {self._done} of {plural(self._total, 'trial')},"
                f" {self._said - self._began:.0f} s"
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


_AHEAD = 4  # trials in the queue per worker


def results(
    config: StudyConfig,
    scratch: Path,
    study: PreparedStudy,
    trials: Sequence[Trial],
    say: Callable[[str], None],
) -> Iterator[Record]:
    """The record of each trial as it completes."""
    alone = load_study(config.name).alone  # timing measurements suffer from parallel load
    workers = 1 if alone else min(config.workers or len(os.sched_getaffinity(0)), len(trials))
    if workers <= 1:
        for trial in trials:
            yield timed(study, trial)
    else:
        yield from _shared(config, scratch, trials, workers, say)


def timed(study: PreparedStudy, trial: Trial) -> Record:
    """Run `trial` and measure its duration."""
    began = monotonic()
    found = study.run(trial)
    return Record(trial.key, trial.facts, found, monotonic() - began)


def _shared(
    config: StudyConfig,
    scratch: Path,
    trials: Sequence[Trial],
    workers: int,
    say: Callable[[str], None],
) -> Iterator[Record]:
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=(config, scratch, os.getpid())
    )
    waiting = iter(trials)
    pending = {
        pool.submit(_work, trial)
        for _, trial in zip(range(workers * _AHEAD), waiting, strict=False)
    }
    try:
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
                if (trial := next(waiting, None)) is not None:
                    pending.add(pool.submit(_work, trial))
    except KeyboardInterrupt:
        say(f"{config.name}: stopping after the trials that run")
        raise
    except BrokenProcessPool as error:
        fact = "a worker process has died (killed, or out of memory)"
        raise EcrlError(
            "workers",
            fact,
            "the same command goes on from here; fewer workers take less memory",
            code="worker",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_study: PreparedStudy | None = None


def _begin(config: StudyConfig, scratch: Path, parent: int) -> None:
    """Worker initialization. Ctrl-C is handled by the parent; the worker dies with the parent."""
    global _study
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)
    own = scratch / f"worker-{os.getpid()}"
    own.mkdir()
    _study = make_study(StudyContext(config, own))
    # stands in for `atexit`, which pool workers do not run
    Finalize(None, _study.close, exitpriority=10)


def _work(trial: Trial) -> Record:
    assert _study is not None
    return timed(_study, trial)
