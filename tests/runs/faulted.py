"""Recorded runs that met failures of other kinds than kills, and their spoils: one that only slowed
a rank down, one whose damage was refused; and a supervisor that was killed during an attempt, and
between two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ecrl_cli.config.codec import encode
from ecrl_cli.config.schema import FailureConfig, RunConfig
from ecrl_cli.failures.fault_log import claim
from ecrl_cli.failures.plan import plan
from ecrl_cli.records.events import Attempt, InjectedFault
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.attempts.supervisor_record import read_record, with_phases
from tests.runs.builder import BOOT, WALL, RunBuilder, config_of
from tests.runs.spoil import at_step, edit_json, edit_lines, line_at

ENTRIES = ("slow_rank@3:1*0.01", "corrupt@20:1", "enospc@9", "kill@900.5s:1")
SLOW, KILL, DAMAGE, FULL, LATE = range(5)
DAMAGED = "checkpoints/step_00000018/model.safetensors"


class ListedBuilder(RunBuilder):
    """Of the configuration's entries, those that no rank strikes at a boundary are claimed by
    `struck`.
    """

    def fault_fired(self, index: int, attempt: int, **more: Any) -> None:
        entry, at = plan(self.config)[index], more.pop("at", self.now)
        assert claim(
            self.layout,
            InjectedFault(
                index, entry.kind, entry.rank, entry.global_step, attempt, at, at + WALL, **more
            ),
        )
        self.fired.add(index)


class StruckBuilder(ListedBuilder):
    """Rank 1 is slow at step 3; the save of step 12 fails; rank 1 is killed after step 20, the
    checkpoint of step 18 damaged before attempt 1.
    """

    def attempt(self, number: int) -> Attempt:
        if number == 1:
            self.fault_fired(DAMAGE, 1, detail=f"{DAMAGED}: bytes 5 changed")
        made = super().attempt(number)
        if number == 0:
            log = self.layout.attempt(0)
            self.fault_fired(SLOW, 0, at_step=3, at=line_at(log.rank(1), 3)["at"] - 0.01)
            self.fault_fired(FULL, 0, at_step=12, at=line_at(log.checkpoints, 12)["at"])
        return made


def listed(*entries: str) -> RunConfig:
    config = replace(config_of("blk"), failure=FailureConfig("listed", entries=entries))
    return replace(config, variant=replace(config.variant, failures=True))


def build_faulted(folder: Path) -> RunLayout:
    return StruckBuilder(folder / "struck", listed(*ENTRIES), spoil={1: 18}).build()


def saved(event: str, reason: str | None) -> Callable[[RunLayout], Any]:
    """How the save of step 12 ended by the journal."""

    def ended(line: dict[str, Any]) -> dict[str, Any]:
        return (
            line | {"event": event, "reason": reason}
            if line["event"] == "committed" and line["global_step"] == 12
            else line
        )

    return lambda run: edit_lines(run.attempt(0).checkpoints, ended)


def refused(**changes: Any) -> Callable[[RunLayout], Any]:
    """What attempt 1 says of the damaged checkpoint."""
    return lambda run: edit_json(
        run.supervisor, lambda s: s["attempts"][1]["rejected"][0].update(changes)
    )


FAILED = saved("failed", "E-storage write: ENOSPC at model.safetensors (No space left on device)")

# By name, what is done to the run (whose save of step 12 has failed as planned) and what the
# verdict on its failures then says.
WRONG: dict[str, tuple[Callable[[RunLayout], Any], str]] = {
    "the full disk was met by nobody": (
        lambda run: None,
        "the save of step 12 in attempt 0 ended as committed (None)",
    ),
    "the save failed of something else": (
        saved("failed", "E-storage write: EACCES at x"),
        "not as failed with ENOSPC",
    ),
    "the save has no end": (
        lambda run: edit_lines(
            run.attempt(0).checkpoints, lambda line: None if line["global_step"] == 12 else line
        ),
        "no end on record",
    ),
    "the slow rank was not slow": (
        lambda run: edit_lines(run.attempt(0).rank(1), at_step(3, seconds=0.001)),
        "which took 0.001 s",
    ),
    "the damage was not refused": (
        lambda run: edit_json(run.supervisor, lambda s: s["attempts"][1].update(rejected=[])),
        "attempt 1 did not refuse it",
    ),
    "another damage was refused": (
        refused(path="checkpoints/step_00000012"),
        "attempt 1 did not refuse it",
    ),
    "refused for something else": (
        refused(layer="file", reason="is gone"),
        "refused for something else: file: is gone",
    ),
    "nobody knows what was damaged": (
        lambda run: edit_json(run.fired_entry(DAMAGE), lambda fired: fired | {"detail": ""}),
        "does not say what it damaged",
    ),
    "a harmless entry armed again": (
        lambda run: edit_json(
            run.attempt(1).launch,
            lambda o: (
                o
                | {"pending": [vars(e) | {"others": []} for e in plan(read_run_config(run).config)]}
            ),
        ),
        "attempt 1 was armed with it again",
    ),
    "a wall time that was reached": (
        lambda run: edit_json(run.supervisor, lambda s: s["sessions"][0].update(started_at=10.0)),
        "entries [4] never fired",
    ),
}


class BereftBuilder(ListedBuilder):
    """The supervisor is killed in attempt 0, whose end nobody saw; rank 1 is killed in attempt 1,
    and the supervisor after it: three stays.
    """

    def attempt(self, number: int) -> Attempt:
        if number == 2:
            self.fault_fired(2, 2)
        made = replace(super().attempt(number), session=number)
        return made if number else replace(made, exit_code=None, signal=None, rank=None)


def build_bereft(folder: Path) -> RunLayout:
    """Each stay begins with its attempt; the last one alone has an end."""
    run = BereftBuilder(
        folder / "struck", listed("supervisor@9", "kill@15:1", "supervisor@15.rest")
    ).build()
    begun = [a.launched_at - 0.01 for a in read_record(run).attempts]
    sessions = [
        {"started_at": at, "time": at + WALL, "boot_id": BOOT, "ended_at": end}
        for at, end in zip(begun, (None, None, 2000.0), strict=True)
    ]
    edit_json(run.supervisor, lambda record: record | {"sessions": sessions})
    write_json(
        run.supervisor,
        encode(replace(read_record(run), attempts=with_phases(run, read_record(run)))),
    )
    return run


def session(number: int, **changes: Any) -> Callable[[RunLayout], Any]:
    return lambda run: edit_json(
        run.supervisor, lambda record: record["sessions"][number].update(changes)
    )


def one_session(run: RunLayout) -> None:
    """As if the supervisor had lived through it all."""
    edit_json(
        run.supervisor,
        lambda record: (
            record | {"attempts": [attempt | {"session": 0} for attempt in record["attempts"]]}
        ),
    )


# As WRONG, of `build_bereft`.
NOT_BEREFT: dict[str, tuple[Callable[[RunLayout], Any], str]] = {
    "nobody saw the end, and the supervisor lived": (
        session(0, ended_at=1500.0),
        "(supervisor of rank 0) is not how attempt 0 died: rank None",
    ),
    "no other session followed": (
        one_session,
        "entry 0 (supervisor) ended the supervisor session, and no other followed",
    ),
    "the session that was struck between two attempts ended well": (
        session(1, ended_at=1500.0),
        "entry 2 hit the supervisor, and its session went on",
    ),
    "the next session had begun before": (
        session(2, started_at=1000.5),
        "entry 2 hit the supervisor, and its session went on",
    ),
}
