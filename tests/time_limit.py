"""A test that reaches its limit fails alone: its own process, and the tests after it, go on.

pytest-timeout's two methods do not fit here. `thread` ends the whole worker process, and with it
every test that the worker still had. `signal` owns the process's one interval timer, which code
under test uses too. So this module only takes pytest-timeout's limits and marks, and keeps the time
itself: a thread waits, then sends the main thread a signal of its own, whose handler fails the
test.

Where the main thread does not come back to Python (it stands in a C call that no signal ends), it
is sent the signal again, then the processes that it may be waiting for are killed, and at last this
process ends: pytest-xdist replaces it. It would also run the same test in the new process, and in
the next one, and never come to the tests after it; so a test leaves its name in a file while it
runs, and one whose name is there already has failed and is skipped.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

from tests.reaper import RUNNING

EXPIRED = signal.SIGRTMIN + 7  # nothing in the project, its dependencies or the C library uses it
# how long what follows the failure (fixtures, a call that no signal ends) may take before it is
# interrupted too
AGAIN_S = 60.0
ATTEMPTS = 2
NAME = "time limit of"


class TimeLimit:
    """The time of one test, its fixtures included. `running`: whether a failure raised now is this
    test's, and not pytest's own.
    """

    def __init__(self, item: pytest.Item, seconds: float) -> None:
        self.running = False
        self._item, self._seconds = item, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name=f"{NAME} {item.nodeid}", daemon=True
        )

    def start(self) -> None:
        signal.signal(EXPIRED, self._expired)
        self._thread.start()

    def cancel(self) -> None:
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        wait = self._seconds
        for _ in range(ATTEMPTS):
            if self._over.wait(wait):
                return
            signal.pthread_kill(threading.main_thread().ident or 0, EXPIRED)
            wait = AGAIN_S
        for end in (_kill_children, self._end_process):
            if self._over.wait(wait):
                return
            end()

    def _expired(self, number: int, frame: FrameType | None) -> None:
        if self.running and not self._over.is_set():
            pytest.fail(
                f"reached its limit of {self._seconds:g} s\n{_other_threads()}", pytrace=True
            )

    def _end_process(self) -> None:
        capture = self._item.config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture(in_=True)
        os.write(
            2,
            f"\n{self._item.nodeid} reached its limit of {self._seconds:g} s and cannot be"
            " interrupted: this process ends\n".encode(),
        )
        faulthandler.dump_traceback(2)
        os._exit(1)


def _kill_children() -> None:
    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue


def _other_threads() -> str:
    """Where every other thread stands; pytest itself shows the main one."""
    frames = sys._current_frames()
    others = [
        each
        for each in threading.enumerate()
        if each is not threading.main_thread()
        and not each.name.startswith(NAME)
        and each.ident in frames
    ]
    return "\n".join(
        f"thread {each.name}:\n{''.join(traceback.format_stack(frames[each.ident or 0]))}"
        for each in others
    )


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """pytest-timeout's hook: the limit begins, with fixtures. Not outside the main thread, where no
    signal can be handled.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    item.time_limit = TimeLimit(item, settings.timeout)  # type: ignore[attr-defined]
    item.time_limit.start()  # type: ignore[attr-defined]
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    limit: TimeLimit | None = getattr(item, "time_limit", None)
    if limit is not None:
        limit.cancel()
    return True


def _marker(item: pytest.Item) -> Path | None:
    folder = os.environ.get(RUNNING)
    return Path(folder) / hashlib.sha256(item.nodeid.encode()).hexdigest()[:32] if folder else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    marker = _marker(item)
    if marker is None:
        return (yield)
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        item.add_marker(
            pytest.mark.skip(
                reason="the process that ran it first has died, and the test has failed"
            )
        )
    try:
        return (yield)
    finally:
        marker.unlink(missing_ok=True)


def _phase(item: pytest.Item) -> Any:
    limit: TimeLimit | None = getattr(item, "time_limit", None)
    if limit is None:
        return (yield)
    limit.running = True
    try:
        return (yield)
    finally:
        limit.running = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Any:
    return (yield from _phase(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    return (yield from _phase(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Any:
    return (yield from _phase(item))
