"""The promise that a job recovers from a death inside a save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ecrl_cli.audit.components import BROKEN, KEPT, NOT_CHECKED, ArmFinding, Judged
from ecrl_cli.audit.lineage import FinishedCheckpoint, Resumed
from ecrl_cli.audit.progress import how_it_ended
from ecrl_cli.audit.records import Arm, Launch
from ecrl_cli.audit.saving import checkpoints, processes_of, reads
from ecrl_cli.errors import plural

RECOVERABLE = "recoverable inside a save"


@dataclass(frozen=True)
class DeathInSave:
    """A planned failure inside a save, in attempt `attempt`, at step `step` of the job. `path` and
    `how`: which file, in which state; empty where the files of the save are not on record.
    """

    attempt: int
    step: int
    path: str
    how: str

    def __str__(self) -> str:
        return f"{self.path} {self.how}" if self.path else f"step {self.step}"


def deaths(arm: Arm) -> list[DeathInSave]:
    """The deaths inside a save, in order."""
    return [
        DeathInSave(
            attempt, int(fault["step"]), str(fault.get("path") or ""), str(fault.get("how") or "")
        )
        for attempt, process in processes_of(arm)
        for fault in process.faults
        if fault.get("moment") == "save"
    ]


def recoverable(judged: Judged) -> Iterator[ArmFinding]:
    """After each death inside a save the job went on from a finished checkpoint: it did not begin
    anew although one had been finished, did not go on from a torn file, did not fail to start.
    Nothing where no failure was injected inside a save.
    """
    arm, inside = judged.arm, deaths(judged.arm)
    if not inside or arm.stopped:
        return
    after = [(death, _after(judged, death)) for death in inside]
    broken = [finding for _, finding in after if finding is not None and finding.status == BROKEN]
    yield from broken
    if broken:
        return
    recovered = [death for death, finding in after if finding is None]
    counts = Counter(map(str, recovered or inside))
    told = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in counts.items())
    if not recovered:
        yield ArmFinding(
            RECOVERABLE,
            NOT_CHECKED,
            f"what the job went on from after {told} is not on record",
            arm.name,
        )
        return
    whole = any(one.newest_saved is not None for one in judged.path.resumed)
    said = (
        f"after {plural(len(recovered), 'death')} inside a save ({told}) it went on"
        f"{' from a finished checkpoint' if whole else ''}"
    )
    open_ones = tuple(finding.message for _, finding in after if finding is not None)
    more = plural(len(open_ones), "further death")
    said += f"; after {more} no step was done" if open_ones else ""
    yield ArmFinding(RECOVERABLE, KEPT, said, arm.name, evidence=open_ones)


def _after(judged: Judged, death: DeathInSave) -> ArmFinding | None:
    """A finding if the attempt after `death` did not recover, or if that is not known."""
    arm = judged.arm
    following = [
        number
        for number in sorted({*arm.attempts, *(launch.attempt for launch in arm.launches)})
        if number > death.attempt
    ]
    if not following:
        return ArmFinding(RECOVERABLE, NOT_CHECKED, f"nothing was started after {death}", arm.name)
    attempt, where = (
        following[0],
        f"a death inside the save of step {death.step}" + (f" ({death})" if death.path else ""),
    )
    failed = _failed_to_start(arm, attempt)
    if failed is not None:
        again = (
            ", and so did the next"
            if len(following) > 1 and _failed_to_start(arm, following[1]) is not None
            else ""
        )
        return ArmFinding(
            RECOVERABLE,
            BROKEN,
            f"after {where}, attempt {attempt} ended with {how_it_ended(arm, failed)}{again}",
            arm.name,
            death.step,
        )
    begun = next((one for one in judged.path.resumed if one.attempt == attempt), None)
    if begun is None or not any(process.steps for process in arm.attempts.get(attempt, ())):
        return ArmFinding(
            RECOVERABLE, NOT_CHECKED, f"attempt {attempt} has no step on record", arm.name
        )
    return _went_on(judged, death, begun, where)


def _failed_to_start(arm: Arm, attempt: int) -> Launch | None:
    """The launch of `attempt`, if it ended by itself without a step."""
    stepped = any(process.steps for process in arm.attempts.get(attempt, ()))
    return next(
        (
            one
            for one in arm.launches
            if one.attempt == attempt and not one.planned and one.exit_code != 0 and not stepped
        ),
        None,
    )


def _went_on(judged: Judged, death: DeathInSave, begun: Resumed, where: str) -> ArmFinding | None:
    arm, offsets = judged.arm, judged.path.offsets
    before = [
        one
        for one in checkpoints(arm)
        if one.finished
        and one.attempt <= death.attempt
        and offsets.get(one.attempt, 0) + one.step > 0
        and FinishedCheckpoint(one.step, one.paths).families >= judged.needed
    ]
    torn = [
        read.path
        for read in reads(arm)
        if read.attempt == begun.attempt
        and read.path == death.path
        and death.how in ("empty", "torn")
    ]
    if begun.after is None:
        if not torn:
            return ArmFinding(
                RECOVERABLE,
                NOT_CHECKED,
                f"where attempt {begun.attempt} went on is not known",
                arm.name,
            )
        return ArmFinding(
            RECOVERABLE,
            BROKEN,
            f"attempt {begun.attempt} went on from {torn[0]}, which was {death.how} by {where}",
            arm.name,
            death.step,
        )
    if begun.after == 0 and before:
        newest = max(before, key=lambda one: (offsets.get(one.attempt, 0) + one.step, one.at))
        step = offsets.get(newest.attempt, 0) + newest.step
        gone = (
            ", and was removed before the next was finished"
            if newest.removed is not None and newest.removed[0] <= death.attempt
            else ""
        )
        if death.path in newest.paths:
            gone = ", and was being overwritten"
        said = (
            f"attempt {begun.attempt} began anew after {where}, although the checkpoint of step"
            f" {step} had been finished{gone}"
        )
        return ArmFinding(RECOVERABLE, BROKEN, said, arm.name, step)
    return None
