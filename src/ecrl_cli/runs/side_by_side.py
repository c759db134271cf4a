"""Runs of a sweep side by side, each in a process of its own: for sweeps whose times do not matter,
because the runs disturb each other's.

A run's process (`python -m ecrl_cli.runs.side_by_side RUN_DIR RUNS_AT_ONCE RESULT_FD`, the
configuration on standard input) writes its RunResult to RESULT_FD. What it prints goes to a log
file. Stop signals are forwarded to it, once; it is killed when the sweep's process dies.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import DEFECT, EcrlError, visible
from ecrl_cli.linux.pdeathsig import with_pdeathsig
from ecrl_cli.records.layout import SweepLayout
from ecrl_cli.runs.run import RunContext, RunResult, copy_initial, failed, run
from ecrl_cli.runs.run_plan import RunPlan, plan_run
from ecrl_cli.runs.sweep import SweepPlan, SweepProgress, SweepRecord
from ecrl_cli.supervision.attempts.stop_signals import StopSignals, held_back
from ecrl_cli.supervision.launch.launcher import LauncherCache
from ecrl_cli.supervision.run_lock import run_lock

MODULE = "ecrl_cli.runs.side_by_side"
_MOST_BYTES = 1 << 20  # of a result


class RunProcess:
    """One run in a process of its own. `fileno`: readable when it has ended."""

    def __init__(self, plan: RunPlan, runs_at_once: int, log: Path) -> None:
        self._log = log
        self._read, write = os.pipe()
        log.parent.mkdir(parents=True, exist_ok=True)
        copy_initial(plan)  # the process is told the configuration alone
        command = [
            sys.executable,
            "-m",
            MODULE,
            str(plan.layout.root.absolute()),
            str(runs_at_once),
            str(write),
        ]
        try:
            with log.open("ab") as output, held_back():
                self._process = subprocess.Popen(
                    with_pdeathsig(command),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=(write,),
                    process_group=0,
                )
        finally:
            os.close(write)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as line:  # closing it writes the rest
            line.write(json.dumps(encode(plan.config)).encode())

    def fileno(self) -> int:
        return self._read

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def result(self) -> RunResult:
        """How the run ended. Waits until its process has."""
        message = os.read(self._read, _MOST_BYTES)
        os.close(self._read)
        code = self._process.wait()
        if message:
            return decode(RunResult, json.loads(message))
        return RunResult(
            DEFECT, "failed", f"its process ended with {code} and without a result; see {self._log}"
        )


def sweep_side_by_side(
    layout: SweepLayout,
    do: SweepPlan,
    begin: Callable[[str], RunProcess],
    progress: SweepProgress,
    runs_at_once: int,
) -> dict[str, RunResult]:
    """Like `sweep`, with up to `runs_at_once` runs at a time. After a stop signal no run begins,
    and those at work stop in order.

    `begin` starts the process of a run; an expected error that it raises is the run's result.
    """
    layout.root.mkdir(parents=True, exist_ok=True)
    stop = StopSignals()
    try:
        with run_lock(layout), stop:
            record = SweepRecord(layout, do, progress)
            waiting = [name for name in do.runs if name not in record.results]
            at_work: dict[str, RunProcess] = {}
            forwarded = 0
            while at_work or (waiting and not forwarded):
                while waiting and len(at_work) < runs_at_once and not stop.received():
                    name = waiting.pop(0)
                    record.began(name)
                    try:
                        at_work[name] = begin(name)
                    except (EcrlError, OSError) as error:
                        record.ended(name, failed(error, progress.say))
                ready, _, _ = select.select(
                    [*(process.fileno() for process in at_work.values()), stop.fileno()],
                    [],
                    [],
                    0 if not at_work else None,
                )
                for number in stop.received()[forwarded:]:
                    for process in at_work.values():
                        process.send(number)
                forwarded = len(stop.received())
                for name, process in [
                    each for each in at_work.items() if each[1].fileno() in ready
                ]:
                    del at_work[name]
                    record.ended(name, process.result())
            stop.obeyed = any(result.stopped for result in record.results.values())
            return record.in_order()
    finally:
        stop.pass_on()


def main(run_dir: Path, runs_at_once: int, result_fd: int) -> int:
    """The run's own process."""
    config = decode(RunConfig, json.loads(sys.stdin.read()))
    launchers = LauncherCache()

    def say(line: str) -> None:
        sys.stderr.write(visible(line) + "\n")
        sys.stderr.flush()

    try:
        planned = replace(plan_run(config, run_dir), runs_at_once=runs_at_once)
        result = run(planned, RunContext(say, launchers))
    except (EcrlError, OSError) as error:
        result = failed(error, say)
    finally:
        launchers.close()
    os.write(result_fd, json.dumps(encode(result)).encode())
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
