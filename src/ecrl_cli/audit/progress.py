"""Whether a job came back after each failure: how its attempts ended, with the job's own last error
and the file that it was reading.
"""

from __future__ import annotations

from pathlib import Path

from ecrl.files import looks_binary
from ecrl_cli.audit.components import BROKEN, KEPT, NOT_CHECKED, UNKNOWN, ArmFinding, Judged
from ecrl_cli.audit.records import Arm, Launch
from ecrl_cli.errors import plural
from ecrl_cli.records import output_log
from ecrl_cli.storage.safe_read import refuse_links

PROMISE = "progress"
TYPED = "struck"  # the arm of the failures that the user named


def ending(exit_code: int | None, signal: int | None) -> str:
    return f"signal {signal}" if signal else f"exit code {exit_code}"


def how_it_ended(arm: Arm, launch: Launch) -> str:
    """`exit code 1 while it read last.pt: UnpicklingError: Weights only load failed`, as far as
    that is on record.
    """
    if launch.hung:
        return f"{ending(launch.exit_code, launch.signal)}, sent by the audit: it hung"
    error = last_words(arm.folder, launch.attempt)
    reading = "" if _stepped(arm, launch.attempt) else _reading(arm, launch.attempt, error)
    chosen = " (chosen by {latest:...} of audit.resume)" if reading and launch.chosen else ""
    told = f": {error}" if error else ""
    return f"{ending(launch.exit_code, launch.signal)}{reading}{chosen}{told}"


def _stepped(arm: Arm, attempt: int) -> bool:
    return any(process.steps for process in arm.attempts.get(attempt, ()))


def _reading(arm: Arm, attempt: int, error: str) -> str:
    """The checkpoint's file that an attempt without a step opened last, before it ended with
    `error`; empty if none is on record.
    """
    processes = [*arm.attempts.get(attempt, ()), *arm.others.get(attempt, ())]
    read = [
        (float(event.get("at") or 0), str(event["path"]))
        for process in processes
        for event in process.files
        if event.get("op") == "read"
    ]
    if not read:
        return ""
    path = max(read)[1]
    loaded = any(
        str(load.get("path", "")).endswith(path) for process in processes for load in process.loads
    )
    # where a file is missing, it is another one
    over = loaded or not looks_binary(path) or "FileNotFoundError" in error
    return f" {'after it had read' if over else 'while it read'} {path}"


def last_words(arm: Path, attempt: int | None = None) -> str:
    """The error that an attempt (None: the newest) ended with, else the last line with words that
    it printed; empty if there is none.

    What torchrun adds is left out: its log and the report that it ends with.
    """
    outputs = sorted(
        arm.glob("attempt-*/output.log" if attempt is None else f"attempt-{attempt:02d}/output.log")
    )
    if not outputs:
        return ""
    refuse_links(arm, (str(outputs[-1].relative_to(arm)),))
    return output_log.last_words(outputs[-1])


def not_run(name: str) -> ArmFinding:
    """Nothing is judged in an arm in which the audit was stopped, or to which it did not come."""
    return ArmFinding(
        PROMISE, UNKNOWN, f"{name} was not run: the audit was stopped before its end", name
    )


def progress(judged: Judged) -> ArmFinding:
    """The job came back after each fault, never hung and left no process behind."""
    arm, launches = judged.arm.name, judged.arm.launches
    if not launches:
        return ArmFinding(PROMISE, NOT_CHECKED, "nobody watched the job from outside", arm)
    if judged.arm.stopped:
        return not_run(arm)
    hung = [launch for launch in launches if launch.hung and not launch.planned]
    left = sum(launch.left_behind for launch in launches if not launch.hung)
    if hung:
        how = "made no step for too long" if hung[0].no_step else "stood still"
        return ArmFinding(PROMISE, BROKEN, f"attempt {hung[0].attempt} {how} and was ended", arm)
    unplanned = [launch for launch in launches if not launch.planned and (launch.exit_code != 0)]
    if unplanned:
        return ArmFinding(
            PROMISE,
            BROKEN,
            f"attempt {unplanned[0].attempt} ended by itself with"
            f" {how_it_ended(judged.arm, unplanned[0])}",
            arm,
        )
    if left:
        return ArmFinding(
            PROMISE, BROKEN, f"{plural(left, 'process', 'processes')} outlived their attempt", arm
        )
    missed = not_reached(judged.arm)
    if missed and (arm == TYPED or not judged.arm.happened):
        return ArmFinding(PROMISE, UNKNOWN, f"a planned failure never happened: {missed[0]}", arm)
    seconds = sum(before.seconds for _, rank, _, before, _ in judged.path.done_again if rank == 0)
    again = f"{plural(judged.path.steps_done_again, 'step')} done again"
    again += f" ({seconds:.2g} s of work)" if seconds else ""
    evidence = tuple(f"never happened: {said}" for said in missed)
    further = f"; {say_missed(len(missed))}" if missed else ""
    return ArmFinding(
        PROMISE,
        KEPT,
        f"{plural(len(launches) - 1, 'restart')}, {again}{further}",
        arm,
        evidence=evidence,
    )


def not_reached(arm: Arm) -> list[str]:
    """The planned failures that never happened, in words."""
    return [said for number, said in sorted(arm.planned.items()) if number not in arm.happened]


def say_missed(count: int) -> str:
    """The sentence on planned deaths that did not happen, by their number."""
    return f"{count} further {'death was' if count == 1 else 'deaths were'} not reached"
