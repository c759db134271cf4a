"""The promise that a job recovers from a death inside a save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ecrl_cli.audit.components import BROKEN, KEPT, NOT_CHECKED, ArmFinding, Judged, steps_apart
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


def recoverable(judged: Judged, undisturbed: Judged | None = None) -> Iterator[ArmFinding]:
    """After each death inside a save the job went on from a finished checkpoint: it did not begin
    anew although one had been finished, did not go on from a torn file or from files of two saves,
    did not fail to start. Nothing where no failure was injected inside a save. `undisturbed`: a
    run to compare with, of a job that is deterministic.
    """
    arm, inside = judged.arm, deaths(judged.arm)
    if not inside or arm.stopped:
        return
    apart = _first_apart(judged, undisturbed)
    after = [(death, _after(judged, death, apart)) for death in inside]
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
    message = f"after {plural(len(recovered), 'death')} inside a save ({told}) it went on"
    message += _from_where(judged, recovered)
    open_ones = tuple(finding.message for _, finding in after if finding is not None)
    more = plural(len(open_ones), "further death")
    message += f"; after {more} no step was done" if open_ones else ""
    yield ArmFinding(RECOVERABLE, KEPT, message, arm.name, evidence=open_ones)


def _from_where(judged: Judged, recovered: Sequence[DeathInSave]) -> str:
    """Whether it went on from finished checkpoints, and which attempt went on from a save that had
    not ended; empty where no checkpoint had been finished.
    """
    struck = {death.attempt for death in recovered}
    resumed = [begun for begun in judged.path.resumed if begun.newest_saved is not None]
    early = [begun for begun in resumed if begun.early and begun.attempt - 1 in struck]
    if not early:
        return " from a finished checkpoint" if resumed else ""
    steps = ", ".join(f"attempt {begun.attempt} from step {begun.after}" for begun in early)
    some = len(early) < len(recovered)
    return (
        f"{' from a finished checkpoint, ' if some else ', '}{steps}, whose save had not ended and"
        " was whole"
    )


def _first_apart(judged: Judged, undisturbed: Judged | None) -> tuple[int, int] | None:
    """The first attempt of a run that left the undisturbed one, and the first step in which it did;
    None if it did not leave it, or there is none to compare with.
    """
    if undisturbed is None or not judged.differs:
        return None
    apart = steps_apart(judged, undisturbed)
    return min(((number, min(steps)) for number, steps in apart.items() if steps), default=None)


def _after(judged: Judged, death: DeathInSave, apart: tuple[int, int] | None) -> ArmFinding | None:
    """A finding if the attempt after `death` did not recover, or if that is not known. `apart`: as
    `_first_apart` gives it.
    """
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
    if apart is not None and apart[0] == attempt:
        damaged = _went_on_wrong(judged, death, begun, apart[1])
        if damaged is not None:
            return damaged
    return _went_on(judged, death, begun, where)


def _went_on_wrong(
    judged: Judged, death: DeathInSave, begun: Resumed, step: int
) -> ArmFinding | None:
    """The finding on an attempt that is the first to leave the undisturbed run, if it went on from
    what the death had left of a save. `step`: the first that differs.
    """
    arm, differs = judged.arm, f"differs from step {step} on"
    if _torn(arm, death, begun, step - 1 - judged.path.offsets.get(begun.attempt, 0)):
        message = f"attempt {begun.attempt} read {death.path}, which a death inside the save of"
        message += f" step {death.step} had left {death.how}, and {differs}"
    elif begun.early:
        message = (
            f"attempt {begun.attempt} went on from step {begun.after}, whose save had not ended"
            f" ({death}), and {differs}"
        )
        if death.how == "before" and death.path in begun.loaded:
            message += f": {death.path} was still that of an earlier save"
    elif newer := _newer(judged, death, begun):
        message = (
            f"attempt {begun.attempt} went on from step {begun.after} and read {newer}, which the"
            f" save of step {death.step} had replaced before a death ended it ({death}), and"
            f" {differs}"
        )
    else:
        return None
    return ArmFinding(RECOVERABLE, BROKEN, message, arm.name, min(step, begun.after or step))


def _newer(judged: Judged, death: DeathInSave, begun: Resumed) -> str:
    """A file that the save of `death` had finished, and that attempt `begun`, which went on from an
    earlier step, read before it wrote it; empty if none.
    """
    if begun.after is None or begun.after >= death.step:
        return ""
    local = death.step - judged.path.offsets.get(death.attempt, 0)
    finished = {
        str(event.get("to") or event.get("path"))
        for process in judged.arm.attempts[death.attempt]
        for event in process.files
        if event.get("op") in ("closed", "rename") and event["after_step"] == local
    }
    for process in judged.arm.attempts[begun.attempt]:
        for event in process.files:
            path = str(event.get("to") or event.get("path"))
            if path in finished and event.get("op") == "read" and not event["after_step"]:
                return path
            finished.discard(path)
    return ""


def _torn(arm: Arm, death: DeathInSave, begun: Resumed, until: int = 0) -> bool:
    """Whether attempt `begun` read the file that `death` tore or left empty before it wrote it
    itself, with at most `until` steps done.
    """
    if death.how not in ("empty", "torn"):
        return False
    for process in arm.attempts[begun.attempt]:
        events = [
            event for event in process.files if death.path in (event.get("path"), event.get("to"))
        ]
        if events and events[0].get("op") == "read" and events[0]["after_step"] <= until:
            return True
    return any((read.attempt, read.path) == (begun.attempt, death.path) for read in reads(arm))


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
    if begun.after is None:
        if not _torn(arm, death, begun):
            return ArmFinding(
                RECOVERABLE,
                NOT_CHECKED,
                f"where attempt {begun.attempt} went on is not known",
                arm.name,
            )
        return ArmFinding(
            RECOVERABLE,
            BROKEN,
            f"attempt {begun.attempt} went on from {death.path}, which was {death.how} by {where}",
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
        message = (
            f"attempt {begun.attempt} began anew after {where}, although the checkpoint of step"
            f" {step} had been finished{gone}"
        )
        return ArmFinding(RECOVERABLE, BROKEN, message, arm.name, step)
    return None
