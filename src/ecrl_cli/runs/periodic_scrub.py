"""Scrubs a run's checkpoints every `supervision.scrub_every_s` seconds while it is supervised, so
that damage is said when it happens.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ecrl_cli.checkpoint.repair.scrub import Scrub, ScrubConfig, scrub
from ecrl_cli.checkpoint.store.store import StoreConfig
from ecrl_cli.config.identity import run_id
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import EcrlError
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.records.events import ScrubLine
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout

_NICENESS = 10  # training goes before
_JOIN_S = 1.0  # a scrub of large checkpoints is not waited for: it only reads

Say = Callable[[str], None]


@contextmanager
def scrubbed(layout: RunLayout, config: RunConfig, say: Say) -> Iterator[None]:
    """Scrub the checkpoints of `layout` while the context is open; 0 s: off. Damage and errors are
    reported through `say`, once each, not raised.
    """
    every_s, strategy = config.supervision.scrub_every_s, strategy_of(config)
    if not every_s or not strategy.saves:
        yield
        return
    if strategy.checkpointer:
        say(
            "the checkpoints are not scrubbed: another checkpointer wrote them, only that can read"
            " them"
        )
        yield
        return
    try:
        scrubber = Scrubber(layout, config, say)
    except OSError as error:
        say(f"the checkpoints are not scrubbed: {error}")
        yield
        return
    scrubber.start(every_s)
    try:
        yield
    finally:
        scrubber.stop()


class Scrubber:
    """Scrubs in a thread of its own, and keeps what each scrub found in scrub.jsonl."""

    def __init__(self, layout: RunLayout, config: RunConfig, say: Say) -> None:
        self._layout, self._say = layout, say
        self._config = ScrubConfig(integrity=StoreConfig.of(config, run_id(config)).integrity)
        self._journal: Journal | None = Journal(layout.scrubs)
        self._told: set[str] = set()
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, every_s: float) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(every_s,), name="scrub", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends it; a scrub that is still reading writes nothing any more."""
        self._stop.set()
        if self._thread:
            self._thread.join(_JOIN_S)
        with self._lock:
            assert self._journal is not None
            self._journal.close()
            self._journal = None

    def scrub_once(self) -> None:
        """Scrub, record it, and report damage that was not reported before."""
        began = monotonic()
        try:
            found = scrub(self._layout.checkpoints, config=self._config)
        except EcrlError as error:
            self._tell(f"the checkpoints cannot be scrubbed: {error.line()}")
            return
        damaged = damage(found)
        with self._lock:
            if self._journal is None:
                return
            try:
                self._journal.append(
                    ScrubLine(monotonic(), wall(), monotonic() - began, len(found.looked), damaged)
                )
            except EcrlError as error:
                self._tell(f"scrubs are not recorded: {error.line()}")
        for text in damaged:
            self._tell(
                f"scrub: {text}; recovery goes on from an older one, `ecrl verify"
                f" {self._layout.checkpoints}` says more"
            )

    def _run(self, every_s: float) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while not self._stop.wait(every_s):
            if self._layout.checkpoints.is_dir():
                self.scrub_once()

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)


def damage(found: Scrub) -> tuple[str, ...]:
    """The damage in words."""
    refused = [one.report for one in found.looked if not one.ok]
    return (
        *(f"{report.path.name} is damaged: {report.layer}: {report.reason}" for report in refused),
        *found.pointers,
    )
