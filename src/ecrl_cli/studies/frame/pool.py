"""Runs trials in sequence or in worker processes, each of which builds the study itself and has its own scratch folder; and shows the progress."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.util import Finalize
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from ecrl_cli.config.study import StudyConfig
from ecrl_cli.errors import EcrlError, plural
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.pdeathsig import die_with_parent
from ecrl_cli.studies.frame.registry import load_study, make_study
from ecrl_cli.studies.frame.study import PreparedStudy, Record, StudyContext, Trial

_EVERY_S = 10.0


class Progress:
    """Counts trials; call `step` for each recorded one."""

    def __init__(self, name: str, total: int, done: int, say: Callable[[str], None]) -> None:
        self._name, self._total, self._done, self._say = name, total, done, say
        self._began = self._said = monotonic()
        self._bar: Bar | None = None
        if done:
            say(f"{name}: {done} of {plural(total, 'trial is', 'trials are')} on record already")
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task(name, total=total, completed=done)
            self._bar.start()

    def step(self) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._task)
        elif monotonic() - self._said > _EVERY_S:
            self._said = monotonic()
            self._say(f"{self._name}: {self._done} of {plural(self._total, 'trial')}, {self._said - self._began:.0f} s")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


_AHEAD = 4  # trials in the queue per worker


def results(config: StudyConfig, scratch: Path, study: PreparedStudy, trials: Sequence[Trial], say: Callable[[str], None]) -> Iterator[Record]:
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


def _shared(config: StudyConfig, scratch: Path, trials: Sequence[Trial], workers: int, say: Callable[[str], None]) -> Iterator[Record]:
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(config, scratch, os.getpid()))
    waiting = iter(trials)
    pending = {pool.submit(_work, trial) for _, trial in zip(range(workers * _AHEAD), waiting, strict=False)}
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
        raise EcrlError("workers", fact, "the same command goes on from here; fewer workers take less memory", code="worker") from error
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
    Finalize(None, _study.close, exitpriority=10)  # stands in for `atexit`, which pool workers do not run


def _work(trial: Trial) -> Record:
    assert _study is not None
    return timed(_study, trial)
