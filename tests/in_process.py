"""`ecrl` inside the test's own process: the code path of the command, without a new interpreter for
it, and with one zygote for all runs of this process, as the runs of one sweep have it. Importing
torch takes the zygote seconds, a run of a few steps does not.

For tests of what becomes of a run. Those of the command as a process (signals, its death, what a
planted bug changes in it) start one.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from unittest import mock

from ecrl_cli.cli import hydra_jobs
from ecrl_cli.cli.main import main
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.supervision.launch import launcher
from ecrl_cli.supervision.launch.launcher import Launcher, LauncherCache

# of the session: what a test sets is not for the runs of the tests after it
_ENVIRONMENT = dict(os.environ)


class SharedLaunchers(LauncherCache):
    """Outlives each command; `end` ends it. `variables` are added to the environment of what it
    starts.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._environment = _ENVIRONMENT | dict(variables or {})

    def of(self, config: RunConfig, failures: Iterable[PlannedFailure]) -> Launcher:
        with mock.patch.dict(os.environ, self._environment, clear=True):
            return super().of(config, failures)

    def close(self) -> None:
        """A command is over, and others follow."""

    def end(self) -> None:
        super().close()


SHARED = SharedLaunchers()


def ecrl_in_process(
    folder: Path, *arguments: str, check: int | None = 0, launchers: SharedLaunchers = SHARED
) -> subprocess.CompletedProcess[str]:
    """Run `ecrl ARGS...` in `folder`; gives its exit code and text as `run_ecrl` does. `check`: the
    exit code that is due.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(hydra_jobs, "LauncherCache", lambda: launchers),
        # imported where it is used
        mock.patch.object(launcher, "LauncherCache", lambda: launchers),
    ):
        code = main(arguments)
    if check is not None:
        assert code == check, f"exit {code}\n{out.getvalue()[-4000:]}\n{err.getvalue()[-4000:]}"
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
