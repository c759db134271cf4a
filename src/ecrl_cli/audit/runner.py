"""Runs a user's command as one arm: with the recorder in its environment, restarted after each
death, leaving no process behind.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import shlex
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from ecrl_cli.audit.lineage import path_of
from ecrl_cli.audit.plan import PlannedFault
from ecrl_cli.audit.progress import ending, last_words
from ecrl_cli.audit.records import Arm, Launch, read_arm
from ecrl_cli.audit.warm import ColdStarts, StartedProcess
from ecrl_cli.config.audit import GRACEFUL, AuditKeys
from ecrl_cli.config.codec import encode
from ecrl_cli.errors import ConfigError, EcrlError, Stopped
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.processes import become_subreaper, open_pidfd, reap, sweep, tagged, wait_all
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.attempts.stop_signals import StopSignals

Say = Callable[[str], None]
_LOOK_S = 0.5  # how often the records are checked for growth
# How long processes of an attempt may keep running after its command has ended: a loader's worker
# looks for a dead parent every 5 s (torch's MP_STATUS_CHECK_INTERVAL), later on a busy machine.
_LEAVE_S = 20.0
# a job hangs that makes no step for so many times its longest gap, and for so long
_GAPS, _LEAST_GAP_S = 10.0, 60.0
_LATEST = re.compile(r"\{latest:([^{}]+)\}")
_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Job:
    """The command to audit.

    `words`: the command line, in which {dir} and {attempt} stand for the arm's own folder and the
    attempt. `recorder`: the folder for PYTHONPATH. `last`: the undisturbed run's last step, 0 if
    that is not known yet. `no_step_s`: how long it may make no step; 0: for ever. `control`: what
    a restart leaves out on purpose (ecrl/control.py). `starts`: how each attempt is started.
    """

    words: tuple[str, ...]
    keys: AuditKeys
    recorder: Path
    cold: bool = False  # the words of a second attempt, though nothing is there to resume from
    last: int = 0
    no_step_s: float = 0.0
    control: str = ""
    starts: ColdStarts = field(default_factory=ColdStarts)

    def beside(self, reference: Arm) -> Job:
        """This job, once its undisturbed run is on record."""
        limit = self.keys.no_step_s or max(_LEAST_GAP_S, _GAPS * longest_gap(reference))
        return replace(self, last=path_of(reference).last, no_step_s=limit)

    def command(self, arm: Path, attempt: int) -> list[str]:
        """The command line of attempt `attempt`."""
        words = list(self.words)
        if attempt and self.keys.elastic:
            words = shlex.split(self.keys.elastic)
        words += self.resume(arm, attempt)
        places = {"{dir}": str(arm / "work"), "{attempt}": str(attempt)}
        return [_filled(word, places) for word in words]

    def resume(self, arm: Path, attempt: int) -> list[str]:
        """The words that `audit.resume` adds to the command line of attempt `attempt`."""
        if not ((attempt or self.cold) and self.keys.resume):
            return []
        return _latest(shlex.split(self.keys.resume), arm / "work")


def _latest(words: list[str], folder: Path) -> list[str]:
    """`words` with the newest match of GLOB in `folder` for each {latest:GLOB}; nothing where one
    has no match.
    """
    filled = []
    for word in words:
        for glob in _LATEST.findall(word):
            matches = sorted(
                folder.glob(glob), key=lambda path: (path.stat().st_mtime_ns, _natural(path))
            )
            if not matches:
                return []
            word = word.replace(f"{{latest:{glob}}}", str(matches[-1]))
        filled.append(word)
    return filled


def _natural(path: Path) -> list[tuple[int, str]]:
    """The order in which step-9 comes before step-10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in _NUMBERS.split(str(path))]


def longest_gap(arm: Arm) -> float:
    """The longest time, in seconds, without a step in an arm's first launch: between two steps, or
    before the first and after the last together.
    """
    longest = 0.0
    for process in arm.attempts[min(arm.attempts)]:
        times = [step.at for step in process.steps if step.at]
        longest = max([longest, *(after - before for before, after in itertools.pairwise(times))])
        if times and arm.launches:
            longest = max(longest, arm.launches[0].seconds - (times[-1] - times[0]))
    return longest


def _filled(word: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        word = word.replace(name, value)
    return word


def install_recorder(folder: Path) -> Path:
    """Copy the recorder to where the job's interpreter finds it, whatever its environment has
    installed; returns the folder for PYTHONPATH.
    """
    import ecrl

    source, target = Path(ecrl.__file__).parent, folder / "recorder"
    if target.exists():
        shutil.rmtree(target)
    (target / "ecrl").mkdir(parents=True)
    for file in source.glob("*.py"):
        shutil.copyfile(file, target / "ecrl" / file.name)
    shutil.copyfile(source / "startup" / "sitecustomize.py", target / "sitecustomize.py")
    return target


def run_arm(job: Job, arm: Path, faults: tuple[PlannedFault, ...], say: Say) -> tuple[Launch, ...]:
    """Run `job` in `arm` until it has come to its end or may not be restarted again; arm.json
    records how each attempt ended.
    """
    if arm.exists():
        shutil.rmtree(arm)
    (arm / "work").mkdir(parents=True)
    become_subreaper()
    launches: list[Launch] = []
    while True:
        try:
            launches.append(_attempt(job, arm, _next_attempt(arm), faults))
        except Stopped:
            _record(
                arm,
                faults,
                [*launches, Launch(_next_attempt(arm) - 1, None, None, 0.0, stopped=True)],
            )
            raise
        _record(arm, faults, launches)
        last, unplanned = launches[-1], sum(not launch.planned for launch in launches)
        if last.exit_code == 0:
            asked = last.planned and any(fault.kind in GRACEFUL for fault in faults)
            if not asked or not job.last or _last_step(arm) >= job.last:
                return tuple(launches)
            say(
                f"{arm.name}: attempt {last.attempt} ended with exit code 0 before its last step;"
                " starting again, as a scheduler would"
            )
            continue
        if unplanned > job.keys.max_restarts or _hopeless(launches):
            return tuple(launches)
        say(
            f"{arm.name}: attempt {last.attempt} ended"
            f" ({'hung' if last.hung else last.signal or last.exit_code}); starting again"
        )


def _record(arm: Path, faults: tuple[PlannedFault, ...], launches: list[Launch]) -> None:
    write_json(
        arm / "arm.json",
        {
            "strikes": [encode(fault) for fault in faults],
            "launches": [encode(launch) for launch in launches],
        },
    )


def _last_step(arm: Path) -> int:
    """The last step that the arm's attempts have come to, by their records: an exit code tells
    nothing of a job that was asked to end.
    """
    try:
        return path_of(read_arm(arm)).last
    except EcrlError:
        return 0


def _next_attempt(arm: Path) -> int:
    """The next attempt number after those on record: a job that restarts itself has made
    several.
    """
    return max(
        (int(path.name[8:]) + 1 for path in arm.glob("attempt-*") if path.name[8:].isdigit()),
        default=0,
    )


def _hopeless(launches: list[Launch]) -> bool:
    """Whether two attempts in a row ended without a planned fault."""
    return len(launches) > 1 and not launches[-1].planned and not launches[-2].planned


def _attempt(job: Job, arm: Path, number: int, faults: tuple[PlannedFault, ...]) -> Launch:
    logs = arm / f"attempt-{number:02d}"
    logs.mkdir()
    command, tag = job.command(arm, number), f"ECRL_AUDIT_ARM={arm}"
    chosen = _LATEST.search(job.keys.resume) and any(job.resume(arm, number))
    seeds = (
        {"ECRL_SEED": str(job.keys.seed), "PYTHONHASHSEED": str(job.keys.seed % 2**32)}
        if job.keys.seed >= 0
        else {}
    )
    environment = (
        os.environ
        | seeds
        | {
            "PYTHONPATH": os.pathsep.join(
                filter(None, (str(job.recorder), os.environ.get("PYTHONPATH", "")))
            ),
            "ECRL_RECORD": str(arm),
            "ECRL_ARM_DIR": str(arm / "work"),
            "ECRL_ATTEMPT": str(number),
            "ECRL_AUDIT_ARM": str(arm),
            "ECRL_DIGESTS": str(job.keys.digests),
            "ECRL_STRIKES": json.dumps([encode(fault) for fault in faults]),
            "ECRL_CONTROL": job.control,
        }
        | job.starts.environment()
    )
    began = monotonic()
    with StopSignals() as stop, (logs / "output.log").open("wb") as output:
        try:
            child = job.starts.start(command, environment, output, number)
        except OSError as error:
            fact = f"{command[0]} cannot be started ({error.strerror})"
            raise ConfigError(
                "COMMAND", fact, "give its path, or activate the environment that has it"
            ) from error
        hung, no_step = _wait(child, arm, job, stop)
        left = 0 if hung or stop.first else len(_leftovers(tag, stop))
        if hung or stop.first:
            child.kill()
        # before the sweep, which reaps whatever it kills: the status would be lost then, and read
        # as 0
        status = child.wait()
        if hung or left or stop.first:
            sweep(tagged(tag), seconds=5.0)
        if stop.first:
            raise Stopped(
                signal.Signals(stop.first).name,
                f"the audit was stopped in arm {arm.name}",
                "the same command begins again",
            )
    code, signal_number = (status, None) if status >= 0 else (None, -status)
    return Launch(
        number,
        code,
        signal_number,
        monotonic() - began,
        hung,
        left,
        _fault_recorded(arm, number),
        no_step,
        chosen=bool(chosen),
    )


def _wait(child: StartedProcess, arm: Path, job: Job, stop: StopSignals) -> tuple[bool, bool]:
    """Wait for the command to end, or for a signal that stops the audit; returns whether it hangs,
    and whether it does so while it prints.
    """
    pidfd, ready = open_pidfd(child.pid), select.poll()
    for fd in (pidfd, stop.fileno()):
        if fd is not None:
            ready.register(fd, select.POLLIN)
    seen, since, steps = -1, monotonic(), Steps(arm)
    try:
        while child.poll() is None and not stop.first:
            ready.poll(_LOOK_S * 1000)
            grown = sum(path.stat().st_size for path in arm.glob("attempt-*/*") if path.is_file())
            if grown != seen:
                seen, since = grown, monotonic()
            elif monotonic() - since > (
                job.keys.silence_s if steps.any else job.keys.start_timeout_s
            ):
                return True, False
            limit = job.no_step_s or job.keys.no_step_s
            if limit and steps.seconds_without() > limit:
                return True, True
        return False, False
    finally:
        if pidfd is not None:
            os.close(pidfd)


class Steps:
    """Looks for new steps in the records of an arm."""

    def __init__(self, arm: Path) -> None:
        self._arm, self._read, self._since = arm, dict[Path, int](), monotonic()
        self.seconds_without()
        self.any = False  # since now

    def seconds_without(self) -> float:
        """How long ago the last look found a new step, in seconds."""
        for path in self._arm.glob("attempt-*/*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            if b'"type":"step"' in whole:
                self._since, self.any = monotonic(), True
        return monotonic() - self._since


def _leftovers(tag: str, stop: StopSignals) -> list[int]:
    """Processes of the arm that still run `_LEAVE_S` seconds after their command ended."""
    deadline, belongs = monotonic() + _LEAVE_S, tagged(tag)
    while True:
        found = [pid for pid in psutil.pids() if pid != os.getpid() and belongs(pid)]
        for pid in found:
            reap(pid)
        if not found or stop.first or monotonic() > deadline:
            return found
        descriptors = [fd for pid in found if (fd := open_pidfd(pid)) is not None]
        wait_all(descriptors, min(1.0, _LEAVE_S))
        for fd in descriptors:
            os.close(fd)


def _fault_recorded(arm: Path, first: int) -> bool:
    """Whether a planned fault fired in this launch."""
    for folder in arm.glob("attempt-*"):
        if folder.name[8:].isdigit() and int(folder.name[8:]) >= first:
            for path in folder.glob("*.jsonl"):
                if b'"type":"strike"' in path.read_bytes():
                    return True
    return False


def failed(arm: Path, launch: Launch) -> EcrlError:
    """The error for a job that fails even without faults."""
    how = ending(launch.exit_code, launch.signal)
    return ConfigError(
        "COMMAND",
        f"ended with {how} without any failure: {last_words(arm) or 'it printed nothing'}",
        f"look at {arm}/attempt-00/output.log",
    )
