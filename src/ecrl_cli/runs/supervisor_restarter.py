"""Restarts a supervisor that is killed by plan.

The supervisor runs in a child process (`main`): `python -m ecrl_cli.runs.supervisor_restarter
RUN_DIR RESULT_FD`, with the configuration on standard input; it writes an error to RESULT_FD. It is
started again if a planned failure was injected and it ended as that failure kind ends a supervisor.
Any other end is the end of the run.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import EcrlError, Stopped
from ecrl_cli.failures.fault_kind import fault_kind
from ecrl_cli.failures.fault_log import fired_indices
from ecrl_cli.linux.pdeathsig import with_pdeathsig
from ecrl_cli.records.events import PlannedFailure, SupervisorRecord
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.runs.run_plan import RunPlan
from ecrl_cli.supervision.attempts.stop_signals import StopSignals, held_back
from ecrl_cli.supervision.attempts.supervisor_record import read_record
from ecrl_cli.supervision.console import make_ui
from ecrl_cli.supervision.supervisor import supervise

MODULE = "ecrl_cli.runs.supervisor_restarter"


@dataclass(frozen=True)
class SupervisorRun:
    """How one supervisor process ended: `code` as in subprocess (negative: signal), `error` the
    EcrlError that it reported.
    """

    code: int
    error: EcrlError | None


def wanted(failures: Iterable[PlannedFailure]) -> bool:
    """Whether a planned failure ends the supervisor."""
    return any(fault_kind(entry.kind).supervisor_exit is not None for entry in failures)


def supervise_with_restarts(planned: RunPlan, say: Callable[[str], None]) -> SupervisorRecord:
    """Like `supervise`, with as many supervisor processes as the plan needs. A stop signal is
    forwarded to the supervisor, and it is not restarted.
    """
    layout, kinds = planned.layout, {entry.index: entry.kind for entry in planned.failures}
    stop = StopSignals()
    try:
        with stop:
            while True:
                before = fired_indices(layout)
                ended = _run_supervisor(planned.config, layout, stop)
                fired = {kinds[index] for index in fired_indices(layout) - before}
                cause = next(
                    (
                        kind
                        for kind in sorted(fired)
                        if fault_kind(kind).supervisor_exit == ended.code
                    ),
                    None,
                )
                if cause is None or stop.received():
                    break
                say(
                    f"{layout.root.name}: the supervisor has ended of the planned failure {cause};"
                    " a new one goes on"
                )
        return _result(layout, ended, stop)
    finally:
        stop.pass_on()


def _run_supervisor(config: RunConfig, layout: RunLayout, stop: StopSignals) -> SupervisorRun:
    """Run one supervisor process from start to end."""
    read, write = os.pipe()
    with closing(FileIO(read)) as result:
        try:
            with held_back():
                process = subprocess.Popen(
                    with_pdeathsig(
                        [sys.executable, "-m", MODULE, str(layout.root.absolute()), str(write)]
                    ),
                    stdin=subprocess.PIPE,
                    pass_fds=(write,),
                    process_group=0,  # Ctrl-C reaches only this process, which forwards it once
                )
        finally:
            os.close(write)
        assert process.stdin is not None
        with process.stdin as line, suppress(BrokenPipeError):
            line.write(json.dumps(encode(config)).encode())
        message = _attend(process, result, stop)
        return SupervisorRun(process.wait(), _error(message))


def _attend(process: subprocess.Popen[bytes], result: FileIO, stop: StopSignals) -> bytes:
    """Forward stop signals until the supervisor has ended; returns what it wrote to the result
    pipe.
    """
    forwarded, message = 0, b""
    while True:
        ready, _, _ = select.select([result.fileno(), stop.fileno()], [], [])
        signals = stop.received()
        for number in signals[forwarded:]:
            process.send_signal(number)
        forwarded = len(signals)
        if result.fileno() in ready:
            data = result.read(65536)
            if not data:
                return message
            message += data


def _error(message: bytes) -> EcrlError | None:
    if not message:
        return None
    name, key, fact, remedy, code = json.loads(message)
    return _kinds(EcrlError)[name](key, fact, remedy, code=code)


def _kinds(kind: type[EcrlError]) -> dict[str, type[EcrlError]]:
    below = [_kinds(each) for each in kind.__subclasses__()]
    return {kind.__name__: kind} | {name: each for found in below for name, each in found.items()}


def _result(layout: RunLayout, ended: SupervisorRun, stop: StopSignals) -> SupervisorRecord:
    if ended.error:
        stop.obeyed = isinstance(ended.error, Stopped)
        raise ended.error
    record = read_record(layout)
    # completed: a signal arrived too late to stop the run and ended the process afterwards
    if ended.code and record.terminal_status != "completed":
        raise EcrlError(
            "supervision",
            f"the supervisor ended with {ended.code}",
            "the same command goes on with the run",
            code="died",
        )
    return record


def main(argv: list[str]) -> None:
    """The child process: supervise the run."""
    layout, result = RunLayout(Path(argv[0])), int(argv[1])
    config = decode(RunConfig, json.load(sys.stdin))
    try:
        supervise(config, layout, make_ui(config, layout, None))
    except EcrlError as error:
        error_fields = [type(error).__name__, error.key, error.fact, error.remedy, error.code]
        os.write(result, json.dumps(error_fields).encode())
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(sys.argv[1:])
