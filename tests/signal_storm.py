"""Signals to every process of a run in every phase of it, drawn evenly from a seed: each run must
end as the calm one, be called valid, and leave nothing.

    python -m tests.signal_storm                 # 500 signals, under both launchers
    python -m tests.signal_storm --signals 60 --seed 3 --write    # the table of docs/failures.md

STOP: the process stands until somebody kills it (the supervisor, which nobody watches: for two
seconds). CONT: it stands for a fifth of a second. A command that a signal ended, or that gave up
because of signals, is started again, as a person or a scheduler would.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from ecrl_cli.linux import processes
from ecrl_cli.records.layout import AttemptLayout, RunLayout
from ecrl_cli.studies.frame.limits import remaining, shared_memory
from ecrl_cli.studies.training.training_study import ending
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, Finding, render
from ecrl_cli.verify.verify_run import verify_run
from tests.e2e.runs import tiny

TARGETS = ("supervisor", "rank", "writer", "zygote", "agent", "store")
PHASES = ("start", "rendezvous", "step", "save", "write in flight", "restart", "end")
EARLY = ("start", "rendezvous", "restart")  # once an attempt, and before its first step
SIGNALS = ("STOP", "CONT", "SEGV", "TERM", "KILL")
# By run: its launcher and strategy, and which processes it has.
KINDS = {
    "zygote blocking": ("supervisor", "rank", "zygote", "store"),
    "zygote overlapped": ("supervisor", "rank", "zygote", "store", "writer"),
    "torchrun blocking": ("supervisor", "rank", "agent"),
    "torchrun overlapped": ("supervisor", "rank", "agent", "writer"),
}
PER_RUN = 6  # signals
TRIES = 5  # runs in which a drawn signal may find its phase
COMMANDS = 40  # with which a run must come to its end
RUN_S, POLL_S, GAP_S = 1200.0, 0.001, 0.05
STANDS_S = {"CONT": 0.2, "STOP": 2.0}  # STOP: of the supervisor alone
# Signals end the command so, or make it give up: the same command goes on.
# A TERM before the command takes signals, or after, ends it as it ends any program: in a shell 143.
GOES_ON = {-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGTERM, 143, 6, 7}
WHY = "nothing on record explains that"
PAGE = Path(__file__).parent.parent / "docs" / "failures.md"
BEGIN, END = "<!-- storm -->\n", "<!-- / -->"


@dataclass(frozen=True)
class Drawn:
    """One signal: to whom, in which phase, which, and in which kind of run."""

    target: str
    phase: str
    name: str
    kind: str


def impossible(target: str, phase: str, kind: str) -> bool:
    """Whether there is no such process in that phase of such a run."""
    return (
        target not in KINDS[kind]
        or (phase == "write in flight" and "overlapped" not in kind)
        or (phase == "start" and target == "rank" and "zygote" in kind)  # forked when all is loaded
    )


def draw(count: int, seed: int) -> list[Drawn]:
    """`count` signals spread evenly over targets and phases, and over signals within each pair."""
    rng = random.Random(seed)
    pairs = [
        (target, phase, kinds)
        for target in TARGETS
        for phase in PHASES
        if (kinds := [kind for kind in KINDS if not impossible(target, phase, kind)])
    ]
    rng.shuffle(pairs)
    names = {pair[:2]: cycle(rng.sample(SIGNALS, len(SIGNALS))) for pair in pairs}
    return [
        Drawn(target, phase, next(names[target, phase]), rng.choice(kinds))
        for (target, phase, kinds), _ in zip(cycle(pairs), range(count), strict=False)
    ]


def command(kind: str, root: Path, *more: str) -> list[str]:
    launcher, strategy = kind.split()
    changes = tiny(
        "model.width=4",
        "global_batch=16",
        "target_steps=200",
        "checkpoint.every=5",
        f"checkpoint={strategy}",
        f"supervision.launcher={launcher}",
        "failure=none",
        "failure.steps=",
        "failure.rank=",
        "supervision.max_restarts=1000",
        "supervision.hang_timeout_s=10",
        "supervision.start_timeout_s=90",
        "storage.bytes_per_s=1e6",  # a write takes long enough to be met
        f"run_dir={root}",
    )
    return [str(Path(sys.executable).with_name("ecrl")), "train", *changes, *more]


class Observer:
    """What a run is doing and who its processes are, seen from outside. `first`: the attempt that
    the command at work began with.
    """

    def __init__(self, layout: RunLayout, supervisor: int) -> None:
        self.layout, self.supervisor = layout, supervisor
        self.first = len(layout.attempts())

    def phases(self) -> set[str]:
        numbers = self.layout.attempts()
        newest = max(numbers, default=-1)
        if newest < self.first:
            return {"start"}
        logs = self.layout.attempt(newest)
        if logs.final.exists():
            return {"end"}
        if logs.rank(0).exists() and logs.rank(0).stat().st_size:
            return _saving(logs) or {"step"}
        begun = b'"import"' in content(logs.spans(0))
        return {"rendezvous" if begun else "start"} | (
            {"restart"} if newest > self.first else set()
        )

    def pids(self, target: str) -> list[int]:
        return [pid for pid in self._all() if self._role(pid) == target]

    def _all(self) -> Iterator[int]:
        below = [self.supervisor]
        while below:
            pid = below.pop()
            yield pid
            with suppress(OSError):  # it may have ended
                for thread in Path(f"/proc/{pid}/task").glob("*/children"):  # torchrun's forks
                    below += map(int, content(thread).split())

    def _role(self, pid: int) -> str:
        words = content(Path(f"/proc/{pid}/cmdline"))
        if pid == self.supervisor:
            return "supervisor"
        if b"writer_main" in words:
            return "writer"
        try:
            logged = "/logs/attempt-" in str(Path(f"/proc/{pid}/fd/1").readlink())
            parent = int(content(Path(f"/proc/{pid}/stat")).rpartition(b") ")[2].split()[1])
        except (OSError, IndexError):
            return ""
        if b"torchrun_main" in words:  # its ranks have that in their command line too
            above = content(Path(f"/proc/{parent}/cmdline"))
            return "rank" if b"torchrun_main" in above else "agent"
        if b"zygote_main" not in words:
            return ""
        return "rank" if logged else "zygote" if parent == self.supervisor else "store"


def content(path: Path) -> bytes:
    """The bytes of a file; empty if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _saving(logs: AttemptLayout) -> set[str]:
    """The phases of the newest save; empty if none is open."""
    lines = content(logs.checkpoints).splitlines()
    opened = [line for line in lines if b'"submitted"' in line]
    if not opened:
        return set()
    step = re.search(rb'"global_step":\d+', opened[-1])
    of_it = [line for line in lines if step and step[0] + b"," in line]
    said = {word for line in of_it for word in re.findall(rb'"event":"(\w+)"', line)}
    found = set() if b"released" in said else {"save"}
    if not said & {b"committed", b"failed", b"lost"} and said & {b"received", b"released"}:
        found.add("write in flight")
    return found


@dataclass
class Played:
    """`sent`: the signals that met their phase. `problem`: why the run is not good; empty if it
    is.
    """

    sent: list[Drawn] = field(default_factory=list)
    problem: str = ""
    commands: int = 0
    by_decision: bool = False  # a rank ended badly after the final record: called unknown


def _ended_badly(finding: Finding) -> bool:
    """Whether all that is unknown is why a rank ended badly after the final record, which is called
    unknown by decision where no planned failure did it.
    """
    return finding.status == UNKNOWN and finding.message.endswith(WHY)


class Storm:
    """One run and the signals that it is to get, in the order in which its phases come."""

    def __init__(self, kind: str, drawn: list[Drawn], root: Path, rng: random.Random) -> None:
        self.kind, self.root, self.rng = kind, root, rng
        self.open = sorted(drawn, key=lambda each: each.phase == "end")
        self.played = Played()
        self._later: list[tuple[float, int]] = []  # when to continue which process (a pidfd)

    def play(self, calm: Path) -> Played:
        began, before = time.monotonic(), shared_memory()
        while self.played.commands < COMMANDS:
            self.played.commands += 1
            code = self._one_command(began + RUN_S)
            if code == 0:
                self.played.problem = self._judge(calm, before)
                return self.played
            if code is None or code not in GOES_ON:
                self.played.problem = (
                    f"not over after {RUN_S:g} s" if code is None else f"exit {code}"
                )
                return self.played
        self.played.problem = f"not at its end after {COMMANDS} commands"
        return self.played

    def _one_command(self, until: float) -> int | None:
        with (self.root.parent / f"{self.root.name}.log").open("ab") as log:
            process = subprocess.Popen(
                command(self.kind, self.root), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        observer, last = Observer(RunLayout(self.root), process.pid), 0.0
        while process.poll() is None:
            now = time.monotonic()
            if now > until:
                process.kill()
                process.wait()
                return None
            self._continue(now)
            if now - last > GAP_S and self._send(observer, now):
                last = now
            time.sleep(POLL_S)
        self._continue(float("inf"))
        return process.returncode

    def _send(self, observer: Observer, now: float) -> bool:
        """Send the next signal whose phase has come; whether there was one."""
        phases = observer.phases()
        due = [each for each in self.open if each.phase in phases]
        for each in due:
            pids = observer.pids(each.target)
            if pids and self._signal(each, self.rng.choice(pids), observer, now):
                self.open.remove(each)
                self.played.sent.append(each)
                return True
        if "step" in phases and self.open and all(each.phase in EARLY for each in self.open):
            self._restart(observer)
            return True
        return False

    def _restart(self, observer: Observer) -> None:
        """Kill a rank, which counts for nothing: the rest of the signals is for a start."""
        for pid in observer.pids("rank")[:1]:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _signal(self, drawn: Drawn, pid: int, observer: Observer, now: float) -> bool:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return False
        stands = drawn.name == "CONT" or (drawn.name == "STOP" and drawn.target == "supervisor")
        try:
            if pid not in observer.pids(drawn.target):
                return False
            number = signal.SIGSTOP if drawn.name == "CONT" else signal.Signals[f"SIG{drawn.name}"]
            signal.pidfd_send_signal(pidfd, number)
        except OSError:
            return False
        finally:
            if stands:
                self._later.append((now + STANDS_S[drawn.name], pidfd))
            else:
                os.close(pidfd)
        return True

    def _continue(self, now: float) -> None:
        for when, pidfd in [each for each in self._later if each[0] <= now]:
            with suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            os.close(pidfd)
            self._later.remove((when, pidfd))

    def _judge(self, calm: Path, before: set[str]) -> str:
        """Why the run that came to its end is not as the calm one; empty if it is."""
        deadline = time.monotonic() + 5.0
        while (left := remaining(self.root)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if left or shared_memory() - before:
            return f"left {left} {sorted(shared_memory() - before)}"
        if ending(RunLayout(self.root)) != ending(RunLayout(calm)):
            return "ends in another state than the calm run"
        verdict = verify_run(self.root, calm)
        unexplained = [f for f in verdict.findings if f.status in (INVALID, UNKNOWN)]
        self.played.by_decision = bool(unexplained)
        return "" if all(_ended_badly(f) for f in unexplained) else render(verdict)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def play_all(
    drawn: list[Drawn], seed: int, folder: Path, played: list[Played], lost: list[Drawn]
) -> None:
    """Play runs until every signal was sent or has missed its phase TRIES times: appends the runs
    to `played`, and to `lost` the signals that were not sent.
    """
    calm = folder / "calm"
    subprocess.run(command("zygote blocking", calm), check=True, stdout=subprocess.DEVNULL)
    rng, missed = random.Random(seed), Counter[Drawn]()
    waiting = {kind: [each for each in drawn if each.kind == kind] for kind in KINDS}
    while any(waiting.values()):
        kind = max(waiting, key=lambda each: len(waiting[each]))
        batch, waiting[kind] = waiting[kind][:PER_RUN], waiting[kind][PER_RUN:]
        root = folder / f"run-{len(played):03d}"
        storm = Storm(kind, batch, root, rng)
        played.append(storm.play(calm))
        for each in storm.open:
            missed[each] += 1
            (waiting[kind] if missed[each] < TRIES else lost).append(each)
        sent, bad = sum(len(run.sent) for run in played), [run for run in played if run.problem]
        said = storm.played.problem or "as the calm run"
        say(
            f"{root.name} {kind}: {len(storm.played.sent)} sent, {storm.played.commands} commands,"
            f" {said}; {sent} of {len(drawn)}, {len(bad)} bad"
        )
        if not storm.played.problem:
            shutil.rmtree(root, ignore_errors=True)
        processes.sweep(processes.of_run(root))


def table(played: list[Played], lost: list[Drawn], seed: int) -> str:
    """The signals by target and phase, as Markdown."""
    sent = [each for run in played for each in run.sent]
    counts, names = Counter((each.target, each.phase) for each in sent), Counter()
    names.update(each.name for each in sent)
    good = sum(not run.problem for run in played)
    late = sum(run.by_decision and not run.problem for run in played)
    rows = [
        f"| {target} | " + " | ".join(_cell(target, phase, counts) for phase in PHASES) + " |"
        for target in TARGETS
    ]
    text = ", ".join(f"{name} {names[name]}" for name in SIGNALS)
    missed = f"; {len(lost)} more did not meet their phase in {TRIES} runs" if lost else ""
    return "\n".join(
        [
            f"| signals to | {' | '.join(PHASES)} |",
            "| --- |" + " ---: |" * len(PHASES),
            *rows,
            "",
            f"{len(sent)} signals ({text}) in {len(played)} runs, seed {seed}: {good} of them ended"
            f" bit for bit as the calm run, with nothing left: {good - late} valid, {late} unknown,"
            f" where a rank ended badly after the final record{missed}.",
            "",
        ]
    )


def _cell(target: str, phase: str, counts: Counter[tuple[str, str]]) -> str:
    if all(impossible(target, phase, kind) for kind in KINDS):
        return ""
    return str(counts[target, phase])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--signals", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="where runs that are not good stay")
    parser.add_argument(
        "--write", action="store_true", help="write the table into docs/failures.md"
    )
    given = parser.parse_args()
    folder = given.dir or Path(tempfile.mkdtemp(prefix="ecrl-storm-"))
    folder.mkdir(parents=True, exist_ok=True)
    # a shell lets what it starts in the background ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    played, lost = list[Played](), list[Drawn]()
    try:
        play_all(draw(given.signals, given.seed), given.seed, folder, played, lost)
    except KeyboardInterrupt:
        say("stopped: the table is of what was sent until now")
        processes.sweep(lambda pid: str(folder).encode() in content(Path(f"/proc/{pid}/cmdline")))
    text = table(played, lost, given.seed)
    say(text)
    if given.write:
        page = PAGE.read_text()
        before, after = page.split(BEGIN)[0], page.split(BEGIN)[1].split(END, 1)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    bad = [run.problem for run in played if run.problem]
    if bad:
        say(f"{len(bad)} runs are not good; they stay in {folder}")
    elif given.dir is None:
        shutil.rmtree(folder)
    return bool(bad)


if __name__ == "__main__":
    processes.become_subreaper()
    sys.exit(main())
