"""Starts and ends the process that takes a run's figures to its tracker. Whatever becomes of it is
said in one line and ends nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.trackers import NONE
from ecrl_cli.errors import visible
from ecrl_cli.records.layout import RunLayout

LAST_S = 60.0  # how long a tracker may take to say the rest
COMMAND = (sys.executable, "-m", "ecrl_cli.runs.tracking.follow")


@contextmanager
def tracked(config: RunConfig, layout: RunLayout, say: Callable[[str], None]) -> Iterator[None]:
    """While entered, the run's figures go to its tracker; at the end metrics and verdict follow, as
    far as they are on record.
    """
    if config.tracker.name == NONE.name:
        yield
        return
    with tempfile.TemporaryFile() as output:
        try:
            process = _start(config, layout, output)
        except OSError as error:
            say(f"tracker={config.tracker.name}: {error.strerror}; the run goes on without it")
            yield
            return
        try:
            yield
        finally:
            say_what_went_wrong(process, config.tracker.name, output, say)


def tell(config: RunConfig, layout: RunLayout, say: Callable[[str], None]) -> None:
    """Tells the run's tracker what is on record by now: metrics and verdict, and the steps that it
    has not been told.
    """
    if config.tracker.name == NONE.name:
        say(f"{layout.root.name}: began without a tracker; --track has nobody to tell")
    with tracked(config, layout, say):
        pass


def _start(config: RunConfig, layout: RunLayout, output: object) -> subprocess.Popen[bytes]:
    given = {
        "stdin": subprocess.PIPE,
        "stdout": output,
        "stderr": subprocess.DEVNULL,
        "start_new_session": True,
    }
    process: subprocess.Popen[bytes] = subprocess.Popen(
        [*COMMAND, str(layout.root), config.tracker.name, config.tracker.place], **given
    )  # type: ignore[call-overload]
    return process


def say_what_went_wrong(
    process: subprocess.Popen[bytes], name: str, output: object, say: Callable[[str], None]
) -> None:
    """Lets the tracker say the rest, at most LAST_S."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        code = process.wait(LAST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        say(
            f"tracker={name}: did not end within {LAST_S:.0f} s and was ended; the records are"
            " whole"
        )
        return
    if code:
        output.seek(0)  # type: ignore[attr-defined]
        lines = output.read().decode(errors="replace").splitlines()  # type: ignore[attr-defined]
        say(
            f"tracker={name}: {visible(lines[-1] if lines else f'exit code {code}')}; the records"
            " are whole"
        )
