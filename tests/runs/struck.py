"""A recorded run that met failures of other kinds than kills: one that only slowed a rank down, one whose damage was refused; and their spoils."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ecrl_cli.config.schema import FailureConfig
from ecrl_cli.failures.fired import claim
from ecrl_cli.failures.plan import plan
from ecrl_cli.records.events import Attempt, Fired
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from tests.runs.builder import RunBuilder, config_of
from tests.runs.spoil import at_step, edit_json, edit_lines

ENTRIES = ("slow_rank@3:1*0.01", "corrupt@20:1", "enospc@9", "kill@900.5s:1")
SLOW, KILL, DAMAGE, FULL, LATE = range(5)
DAMAGED = "checkpoints/step_00000018/model.safetensors"


class StruckBuilder(RunBuilder):
    """Rank 1 is slow at step 3; the save of step 12 fails; rank 1 is killed behind step 20, the checkpoint of step 18 damaged before attempt 1."""

    def attempt(self, number: int) -> Attempt:
        if number == 1:
            self.struck(DAMAGE, 1, detail=f"{DAMAGED}: bytes 5 changed")
        made = super().attempt(number)
        if number == 0:
            self.struck(SLOW, 0, at_step=3)
            self.struck(FULL, 0, at_step=12)
        return made

    def struck(self, index: int, attempt: int, **more: Any) -> None:
        entry = plan(self.config)[index]
        assert claim(self.layout, Fired(index, entry.kind, entry.rank, entry.global_step, attempt, 1000.0, 1000.0, **more))
        self.fired.add(index)


def build_struck(folder: Path) -> RunLayout:
    config = replace(config_of("blk"), failure=FailureConfig("listed", entries=ENTRIES))
    config = replace(config, variant=replace(config.variant, failures=True))
    return StruckBuilder(folder / "struck", config, spoil={1: 18}).build()


def saved(event: str, reason: str | None) -> Callable[[RunLayout], Any]:
    """How the save of step 12 ended by the journal."""

    def ended(line: dict[str, Any]) -> dict[str, Any]:
        return line | {"event": event, "reason": reason} if line["event"] == "committed" and line["global_step"] == 12 else line

    return lambda run: edit_lines(run.attempt(0).checkpoints, ended)


def refused(**changes: Any) -> Callable[[RunLayout], Any]:
    """What attempt 1 says of the damaged checkpoint."""
    return lambda run: edit_json(run.supervisor, lambda s: s["attempts"][1]["rejected"][0].update(changes))


FAILED = saved("failed", "E-storage write: ENOSPC at model.safetensors (No space left on device)")

# By name, what is done to the run (whose save of step 12 has failed as planned) and what the verdict on its failures then says.
WRONG: dict[str, tuple[Callable[[RunLayout], Any], str]] = {
    "the full disk was met by nobody": (lambda run: None, "the save of step 12 in attempt 0 ended as committed (None)"),
    "the save failed of something else": (saved("failed", "E-storage write: EACCES at x"), "not as failed with ENOSPC"),
    "the save has no end": (
        lambda run: edit_lines(run.attempt(0).checkpoints, lambda line: None if line["global_step"] == 12 else line),
        "no end on record",
    ),
    "the slow rank was not slow": (lambda run: edit_lines(run.attempt(0).rank(1), at_step(3, seconds=0.001)), "which took 0.001 s"),
    "the damage was not refused": (
        lambda run: edit_json(run.supervisor, lambda s: s["attempts"][1].update(rejected=[])),
        "attempt 1 did not refuse it",
    ),
    "another damage was refused": (refused(path="checkpoints/step_00000012"), "attempt 1 did not refuse it"),
    "refused for something else": (refused(layer="file", reason="is gone"), "refused for something else: file: is gone"),
    "nobody knows what was damaged": (
        lambda run: edit_json(run.fired_entry(DAMAGE), lambda fired: fired | {"detail": ""}),
        "does not say what it damaged",
    ),
    "a harmless entry armed again": (
        lambda run: edit_json(
            run.attempt(1).launch, lambda o: o | {"pending": [vars(e) | {"others": []} for e in plan(read_run_config(run).config)]}
        ),
        "attempt 1 was armed with it again",
    ),
    "a wall time that was reached": (
        lambda run: edit_json(run.supervisor, lambda s: s["sessions"][0].update(started_at=10.0)),
        "entries [4] never fired",
    ),
}
