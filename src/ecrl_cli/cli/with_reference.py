"""`ecrl verify --with-reference`: train the undisturbed runs that struck ones lack, before anything is judged."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ecrl_cli.config.machine import check_torch
from ecrl_cli.errors import EcrlError
from ecrl_cli.verify.reference import References

_STOPPED = (130, 143)


def train_references(runs: Sequence[Path], known: References) -> int:
    """Train one reference for all of `runs` that share it, where none vouches for them: 0, or the exit code where that was stopped by a signal.

    What keeps one from being trained is said, and the run is judged as it stands.
    """
    # Here and not above: the supervising side loads in half a second that a judge of records alone need not wait for.
    from ecrl_cli.runs.reference_training import announcement, required
    from ecrl_cli.runs.run import RunContext, run
    from ecrl_cli.supervision.launch.launcher_cache import LauncherCache

    launchers, mask = LauncherCache(), os.umask(0o077)
    try:
        for folder in runs:
            try:
                due = required(folder, known)
                if not isinstance(due, str):
                    check_torch()
            except (EcrlError, OSError) as error:
                _say(f"{folder}: no reference is trained ({error.line() if isinstance(error, EcrlError) else error.strerror})")
                continue
            if isinstance(due, str):
                _say(f"{folder}: {due}")
                continue
            reference, records = due
            _say(announcement(reference.layout.root, records))
            result = run(reference, RunContext(_say, launchers))
            if result.exit_code in _STOPPED:
                _say("the same command trains it again")
                return result.exit_code
    finally:
        launchers.close()
        os.umask(mask)
    return 0


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
