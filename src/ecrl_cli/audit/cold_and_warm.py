"""Whether a warm start has changed anything in an undisturbed run, against runs started cold."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.audit.components import (
    BROKEN,
    by_model_input,
    compare,
    judged_arm,
    unseeded,
    without_batches,
)
from ecrl_cli.audit.files import read_inventory
from ecrl_cli.audit.lineage import path_of
from ecrl_cli.audit.progress import ending
from ecrl_cli.audit.records import Arm
from ecrl_cli.audit.same_files import same_files
from ecrl_cli.audit.saving import kind_of
from ecrl_cli.errors import plural


def changed_by_warmth(cold: Sequence[Arm], warm: Arm) -> str:
    """The differences of `warm`, in words; empty if there are none. `cold`: one undisturbed run, or
    two, which show what differs anyway in the files that they leave.
    """
    launch = warm.launches[-1]
    if launch.exit_code != 0:
        return f"it ended with {ending(launch.exit_code, launch.signal)}"
    if launch.left_behind > cold[0].launches[-1].left_behind:
        return "it left processes behind"
    return steps_apart(cold[0], warm) or _events_apart(cold[0], warm) or _files_apart(cold, warm)


def steps_apart(one: Arm, other: Arm) -> str:
    """The first step in which two undisturbed runs differ, in words; empty where they are equal."""
    if by_model_input([one, other]):
        one, other = without_batches(one), without_batches(other)
    ours, theirs = path_of(other), path_of(one)
    if ours.last != theirs.last:
        return f"{theirs.last} and {plural(ours.last, 'step')}"
    left_out = unseeded([judged_arm(one), judged_arm(other)])
    differs = compare(ours, theirs, left_out)
    return f"step {min(differs)} differs in {differs[min(differs)][0]}" if differs else ""


def _events_apart(one: Arm, other: Arm) -> str:
    """Processes and operations on files that only one of two runs has on record."""
    if len(one.processes) != len(other.processes):
        return f"{len(one.processes)} and {plural(len(other.processes), 'process', 'processes')}"
    apart = _operations(one) ^ _operations(other)
    if apart:
        operation, path = min(apart)
        return f"only one of two runs has a {operation} of {path} on record"
    troubles = {text for process in other.processes for text in process.troubles}
    troubles -= {text for process in one.processes for text in process.troubles}
    return f"the recorder had trouble: {min(troubles)}" if troubles else ""


def _operations(arm: Arm) -> set[tuple[str, str]]:
    processes = [*arm.processes, *(process for more in arm.others.values() for process in more)]
    return {
        (str(event.get("op")), kind_of(str(event.get("path"))))
        for process in processes
        for event in process.files
    }


def _files_apart(cold: Sequence[Arm], warm: Arm) -> str:
    inventories = [read_inventory(arm.folder) for arm in (cold if len(cold) > 1 else [*cold] * 2)]
    finding = same_files(inventories, judged_arm(warm))
    return finding.message if finding.status == BROKEN else ""
