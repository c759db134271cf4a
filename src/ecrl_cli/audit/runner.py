"""Runs a user's command as one arm: with the recorder in its environment, restarted after each death, leaving no process behind."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from ecrl_cli.audit.plan import PlannedFault
from ecrl_cli.audit.promises import ending
from ecrl_cli.audit.records import Launch
from ecrl_cli.config.audit import AuditKeys
from ecrl_cli.config.codec import encode
from ecrl_cli.errors import ConfigError, EcrlError, Stopped
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.processes import become_subreaper, open_pidfd, reap, sweep, tagged, wait_all
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.attempts.stop_signals import StopSignals

Say = Callable[[str], None]
_LOOK_S = 0.5  # how often the records are checked for growth
_LEAVE_S = 3.0  # how long processes of an attempt may keep running after its command has ended
_LAST_WORDS = 16_000  # bytes: the report of torchrun takes 3,000
_RANK = re.compile(r"(?:\[rank\d+\]:\s*)+")  # torch puts it in front of the lines of a rank that fails
_LOGGED = re.compile(r"\[?[IWEF]\d{4} \d\d:")  # by torch or torchrun: what they do about a death, not why it came


@dataclass(frozen=True)
class Job:
    """The command to audit.

    `words`: the command line, in which {dir} and {attempt} stand for the arm's own folder and the attempt. `recorder`: the folder for
    PYTHONPATH.
    """

    words: tuple[str, ...]
    keys: AuditKeys
    recorder: Path
    cold: bool = False  # the words of a second attempt, though nothing is there to resume from

    def command(self, arm: Path, attempt: int) -> list[str]:
        """The command line of attempt `attempt`."""
        words = list(self.words)
        if attempt and self.keys.elastic:
            words = shlex.split(self.keys.elastic)
        if (attempt or self.cold) and self.keys.resume:
            words += shlex.split(self.keys.resume)
        places = {"{dir}": str(arm / "work"), "{attempt}": str(attempt)}
        return [_filled(word, places) for word in words]


def _filled(word: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        word = word.replace(name, value)
    return word


def install_recorder(folder: Path) -> Path:
    """Copy the recorder to where the job's interpreter finds it, whatever its environment has installed; returns the folder for PYTHONPATH."""
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
    """Run `job` in `arm` until it succeeds or may not be restarted again; arm.json records how each attempt ended."""
    if arm.exists():
        shutil.rmtree(arm)
    (arm / "work").mkdir(parents=True)
    become_subreaper()
    launches: list[Launch] = []
    while True:
        launches.append(_attempt(job, arm, _next_attempt(arm), faults))
        write_json(arm / "arm.json", {"strikes": [encode(fault) for fault in faults], "launches": [encode(launch) for launch in launches]})
        last = launches[-1]
        if last.exit_code == 0 or len(launches) > job.keys.max_restarts or _hopeless(launches):
            return tuple(launches)
        say(f"{arm.name}: attempt {last.attempt} ended ({'hung' if last.hung else last.signal or last.exit_code}); starting again")


def _next_attempt(arm: Path) -> int:
    """The next attempt number after those on record: a job that restarts itself has made several."""
    return max((int(path.name[8:]) + 1 for path in arm.glob("attempt-*") if path.name[8:].isdigit()), default=0)


def _hopeless(launches: list[Launch]) -> bool:
    """Whether two attempts in a row ended without a planned fault."""
    return len(launches) > 1 and not launches[-1].planned and not launches[-2].planned


def _attempt(job: Job, arm: Path, number: int, faults: tuple[PlannedFault, ...]) -> Launch:
    logs = arm / f"attempt-{number:02d}"
    logs.mkdir()
    command, tag = job.command(arm, number), f"ECRL_AUDIT_ARM={arm}"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(job.recorder), os.environ.get("PYTHONPATH", "")))),
        "ECRL_RECORD": str(arm),
        "ECRL_ARM_DIR": str(arm / "work"),
        "ECRL_ATTEMPT": str(number),
        "ECRL_AUDIT_ARM": str(arm),
        "ECRL_DIGESTS": str(job.keys.digests),
        "ECRL_STRIKES": json.dumps([encode(fault) for fault in faults]),
    }
    began = monotonic()
    with StopSignals() as stop, (logs / "output.log").open("wb") as output:
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True)
        except OSError as error:
            fact = f"{command[0]} cannot be started ({error.strerror})"
            raise ConfigError("COMMAND", fact, "give its path, or activate the environment that has it") from error
        hung = _wait(child, arm, job.keys, stop)
        left = 0 if hung or stop.first else len(_leftovers(tag))
        if hung or stop.first:
            child.kill()
        status = child.wait()  # before the sweep, which reaps whatever it kills: the status would be lost then, and read as 0
        if hung or left or stop.first:
            sweep(tagged(tag), seconds=5.0)
        if stop.first:
            raise Stopped(signal.Signals(stop.first).name, f"the audit was stopped in arm {arm.name}", "the same command begins again")
    code, signal_number = (status, None) if status >= 0 else (None, -status)
    return Launch(number, code, signal_number, monotonic() - began, hung, left, planned=_fault_recorded(arm, number))


def _wait(child: subprocess.Popen[bytes], arm: Path, keys: AuditKeys, stop: StopSignals) -> bool:
    """Wait for the command to end, or for a signal that stops the audit; returns whether it hangs."""
    pidfd, ready = open_pidfd(child.pid), select.poll()
    for fd in (pidfd, stop.fileno()):
        if fd is not None:
            ready.register(fd, select.POLLIN)
    seen, since = -1, monotonic()
    try:
        while child.poll() is None and not stop.first:
            ready.poll(_LOOK_S * 1000)
            grown = sum(path.stat().st_size for path in arm.glob("attempt-*/*") if path.is_file())
            if grown != seen:
                seen, since = grown, monotonic()
            elif monotonic() - since > (keys.silence_s if _stepped(arm) else keys.start_timeout_s):
                return True
        return False
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _stepped(arm: Path) -> bool:
    """Whether the newest attempt has recorded anything."""
    newest = max(arm.glob("attempt-*"), default=None)
    return newest is not None and any(newest.glob("*.jsonl"))


def _leftovers(tag: str) -> list[int]:
    """Processes of the arm that still run `_LEAVE_S` seconds after their command ended."""
    deadline, belongs = monotonic() + _LEAVE_S, tagged(tag)
    while True:
        found = [pid for pid in psutil.pids() if pid != os.getpid() and belongs(pid)]
        for pid in found:
            reap(pid)
        if not found or monotonic() > deadline:
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


def last_words(arm: Path) -> str:
    """The last line with words that the arm's newest attempt printed, without what torchrun adds: its log and the report that it ends with."""
    newest = max(arm.glob("attempt-*/output.log"), default=None)
    text = newest.read_bytes()[-_LAST_WORDS:].decode("utf-8", "replace") if newest else ""
    job, failed, _ = text.rpartition("ChildFailedError(")  # in the traceback of torchrun, which its report follows
    if failed:
        text = job.rpartition("Traceback (most recent call last):")[0]
    lines = [_RANK.sub("", line.strip(), count=1) for line in text.splitlines() if any(map(str.isalnum, line))]
    return next((line[:300] for line in reversed(lines) if not _LOGGED.match(line)), "it printed nothing")


def failed(arm: Path, launch: Launch) -> EcrlError:
    """The error for a job that fails even without faults."""
    how = ending(launch.exit_code, launch.signal)
    return ConfigError("COMMAND", f"ended with {how} without any failure: {last_words(arm)}", f"look at {arm}/attempt-00/output.log")
