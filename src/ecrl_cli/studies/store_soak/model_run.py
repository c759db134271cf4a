"""Runs a program on the simulated machine and on the reference model up to the first disagreement,
and shrinks failing programs.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

from ecrl_cli.checkpoint.store.catalog import ResumeChoice, entry_of
from ecrl_cli.checkpoint.store.checkpoint_log import save_and_record
from ecrl_cli.errors import EcrlError, Fenced, StorageError
from ecrl_cli.linux import clock
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.storage.fault_injecting_fs import Fault, TooManyCalls
from ecrl_cli.studies.frame.store_fixture import write_mode
from ecrl_cli.studies.mutants.registry import STORE_MUTANTS
from ecrl_cli.studies.store_soak.content import Observer, content_of, image_of
from ecrl_cli.studies.store_soak.crash_machine import ROOT, Dead, Machine, SavingProcess
from ecrl_cli.studies.store_soak.model import Content, Model
from ecrl_cli.studies.store_soak.operations import JumpingClock, Op

_TRANSIENT = (
    "EMFILE",
    "ENOMEM",
)  # errors that say nothing about the file and so do not rule it out


@dataclass(frozen=True)
class SoakSetup:
    """The store's configuration. `planted`: the name of its bug, if any."""

    mode: str
    layout: str
    planted: str = ""


class Disagreement(BaseException):
    """The store did what the reference model does not allow. Not an Exception, so that the store
    cannot catch it.
    """


class StoreRun:
    """A store's history from its first process on. `met`: how often each event occurred."""

    def __init__(self, cell: SoakSetup, jumping: JumpingClock) -> None:
        self.cell, self.clock, self.met = cell, jumping, Counter[str]()
        mode, planted = (
            write_mode(cell.mode),
            next((each for each in STORE_MUTANTS if each.name == cell.planted), None),
        )
        self.observer = Observer(cell.layout)
        self.machine = Machine(cell.mode, planted, random.Random(7))
        self.model = Model(durable=mode.sync_files and mode.sync_directories, atomic=mode.atomic)
        self.attempt = -1
        self.writer: SavingProcess | None = None
        self.late: list[SavingProcess] = []  # writers of older attempts that are still alive
        self.faulted = False  # a fault hit this operation

    def do(self, op: Op) -> None:
        self.met[op.do] += 1
        self.faulted = False
        {
            "save": self._save,
            "hand over": self._hand_over,
            "write": self._write,
            "restart": self._restart,
            "late": self._claim_late,
            "zombie": self._wake,
            "retire": self._retire,
            "verify": self._verify,
            "damage": self._damage,
            "clock": self._jump,
            "power": self._power,
        }[op.do](op)
        self._audit()

    def _save(self, op: Op) -> None:
        if (writer := self._writer()) is not None:
            writer.waiting.append(writer.take())
            while writer.waiting and writer is self.writer:
                last = len(writer.waiting) == 1
                self._work(writer, op if last else Op(op.do))
                self._audit()

    def _hand_over(self, op: Op) -> None:
        if (writer := self._writer()) is not None:
            writer.waiting.append(writer.take())

    def _write(self, op: Op) -> None:
        if (writer := self._writer()) is not None and writer.waiting:
            self._work(writer, op)

    def _wake(self, op: Op) -> None:
        """A writer believed dead performs its pending save."""
        if self.late:
            zombie = self.late.pop(0)
            zombie.waiting.append(zombie.take())
            self._work(zombie, op)

    def _work(self, writer: SavingProcess, op: Op) -> None:
        """Save one queued content, as the background writer or as a rank of the blocking
        strategy.
        """
        content = writer.waiting.pop(0)
        self.model.begin(content, writer.attempt)
        said = len(writer.lines)
        ended = self._befallen(
            writer,
            op,
            lambda: save_and_record(
                writer.store, image_of(content, self.cell.layout), writer.attempt, writer.log
            ),
        )
        new = [line for line in writer.lines[said:] if line.global_step == content[0]]
        if any(line.event == "failed" and "report this" in (line.reason or "") for line in new):
            raise Disagreement(f"untyped: {new[-1].reason}")
        if ended is False and not self.faulted and writer.attempt == self.attempt:
            said_why = new[-1].reason if new else "nothing was said"
            raise Disagreement(
                f"refused: step {content[0]} was not saved, and nothing stood in its way:"
                f" {said_why}"
            )
        self.met["acknowledged"] += any(line.event == "committed" for line in new)

    def _on_log_line(self, writer: SavingProcess, line: CheckpointLine) -> None:
        """Called for each line of a writer's log as it is written."""
        if line.event != "committed":
            return
        if lying := [
            each
            for each in writer.fs.faulty.injected
            if each.call in ("fsync", "fsyncdir") or (each.call == "close" and each.written)
        ]:
            raise Disagreement(
                f"acknowledged: step {line.global_step}, after a failed {lying[0].call} of"
                f" {lying[0].path.name}"
            )
        if wrong := self.model.acknowledge((line.global_step, writer.ranks), writer.attempt):
            raise Disagreement(wrong)

    def _writer(self) -> SavingProcess | None:
        """The current writer; starts a new attempt if there is none."""
        if self.writer is None:
            self._begin(Op("restart"))
        return self.writer

    def _restart(self, op: Op) -> None:
        old, self.writer = self.writer, None
        if old is not None and op.detail == "rank, drained":
            while old.waiting and not old.fs.dead:
                self._work(old, Op("write"))
                self._audit()
        if old is not None and op.detail == "rank":
            self.late.append(old)
        self._begin(op)

    def _begin(self, op: Op) -> None:
        """A supervisor's start: claim the store, choose a checkpoint, quarantine what was
        rejected.
        """
        self.attempt += 1
        new = self.machine.process(self.attempt, op.number or 2, self._on_log_line)

        def recover() -> bool:
            new.store.claim(new.attempt)
            choice = new.store.newest_valid()
            # recorded before anything is quarantined
            new.next = self._recovered(choice, new, op) + 1
            for rejected in choice.rejected:
                new.store.quarantine(ROOT.parent / rejected.path)
            return True

        if self._befallen(new, op, recover) and new.attempt == self.attempt:
            self.writer = new

    def _recovered(self, choice: ResumeChoice, new: SavingProcess, op: Op) -> int:
        """Compare recovery's choice with the reference model; returns the step."""
        found = self._content(choice)
        excused = bool(new.fs.faulty.injected) and op.trouble not in _TRANSIENT
        refused = (
            {entry_of(Path(each.path)).global_step for each in choice.rejected}
            if excused
            else set()
        )
        due = max(self.model.required(), default=0)
        if wrong := self.model.recover(found, refused, new.attempt):
            raise Disagreement(f"recovery: {wrong}")
        step = found[0] if found else 0
        what = (
            "nothing"
            if not found
            else (
                "the last acknowledged"
                if step == due
                else "a later one"
                if step > due
                else "an older one"
            )
        )
        self.met[f"recovered: {what}"] += 1
        return step

    def _content(self, choice: ResumeChoice) -> Content | None:
        if choice.report is None:
            return None
        content = content_of(choice.report, self.machine.disk, self.cell.layout)
        if content is None:
            raise Disagreement(
                f"recovery: silent_wrong: {choice.report.path.name} does not hold what was saved"
            )
        return content

    def _claim_late(self, op: Op) -> None:
        """A supervisor of an old attempt claims the store: it must be rejected."""
        if self.model.owner < 1:
            return
        process = self.machine.process(self.model.owner - 1, 1, self._on_log_line)

        def claim() -> bool:
            process.store.claim(process.attempt)
            return True

        if self._befallen(process, op, claim):
            raise Disagreement(
                f"fence: attempt {process.attempt} claims what attempt {self.model.owner} owns"
            )

    def _retire(self, op: Op) -> None:
        if (writer := self._writer()) is not None:
            self._befallen(writer, op, lambda: writer.store.retire() is not None)

    def _damage(self, op: Op) -> None:
        if (step := self.machine.damage(op.detail, op.number)) is not None:
            self.model.damage(step)

    def _jump(self, op: Op) -> None:
        self.clock.jump(op.number)

    def _power(self, op: Op) -> None:
        self._lose_power(op.detail, op.number)

    def _lose_power(self, model: str, salt: int) -> None:
        self.machine.lose_power(model, salt)
        self.model.lose_power(model)
        self.writer, self.late = None, []

    def _befallen(self, process: SavingProcess, op: Op, act: Callable[[], bool]) -> bool | None:
        """Run `process` under the fault of `op`; False if refused, None if it died. An error that
        must not occur ends the run.
        """
        fs, faulty = process.fs, process.fs.faulty
        fs.calls.clear()
        fs.armed, fs.last, fs.event = (
            True,
            op.at if op.trouble and not op.scope else -1,
            self._event(process, op),
        )
        faulty.arm(Fault(op.trouble, op.at, op.sticky, op.scope) if op.scope else None)
        try:
            return act()
        except Dead:
            self._died(process, op)
            return None
        except Fenced as error:
            if process.attempt >= self.attempt:
                raise Disagreement(f"fence: {error.line()}") from error
            return False
        except StorageError as error:
            self._refused(process, op, error)
            return False
        except (Disagreement, AssertionError):
            raise
        except (EcrlError, TooManyCalls, Exception) as error:
            raise Disagreement(f"untyped: {type(error).__name__}: {error}") from error
        finally:
            self.faulted = self.faulted or bool(faulty.injected)
            self.met[f"met {_family(op)}"] += bool(faulty.injected) or (
                op.trouble == "rival" and len(fs.calls) > op.at
            )
            left = 0 if fs.dead else len(faulty.open_files)
            faulty.arm(None)
            fs.armed, fs.dead = False, False
            faulty.open_files.clear()
            if left:
                raise Disagreement(f"leak: {left} descriptors stay open after {op}")

    def _event(self, process: SavingProcess, op: Op) -> Callable[[], None]:
        return (lambda: self._meet_rival(process)) if op.trouble == "rival" else process.fs.die

    def _meet_rival(self, process: SavingProcess) -> None:
        """A newer attempt starts while `process` is suspended between two calls; then `process`
        continues.
        """
        if self.writer is process:
            self.writer = None
        self._begin(Op("restart", number=process.ranks))

    def _died(self, process: SavingProcess, op: Op) -> None:
        self.met[f"met {op.trouble}"] += 1
        if self.writer is process:
            self.writer = None
        if op.trouble in ("O", "X"):
            self._lose_power(op.trouble, op.at)

    def _refused(self, process: SavingProcess, op: Op, error: StorageError) -> None:
        if not process.fs.faulty.injected and process.attempt >= self.attempt:
            raise Disagreement(f"refused, and nothing stood in its way: {error.line()}") from error
        if (
            op.scope
            and process.fs.faulty.injected
            and op.trouble in errno.errorcode.values()
            and error.errno == 0
        ):
            raise Disagreement(f"misnamed: {error.line()} does not name {op.trouble}") from error

    def _verify(self, op: Op) -> None:
        """Two processes examine the disk in turn: both must find the same as on a healthy disk."""
        found = [self._content(self._looked()) for _ in range(2)]
        if found[0] != found[1]:
            raise Disagreement(f"verify: finds {found[0]}, then {found[1]}")
        if lost := [step for step in self.model.required() if step > (found[0] or (0, 0))[0]]:
            raise Disagreement(f"verify: step {lost[0]} is due, {found[0]} is found")

    def _looked(self) -> ResumeChoice:
        store = self.machine.store(self.machine.disk)
        return store.newest_valid()

    def _audit(self) -> None:
        """After every operation the disk, as verified by the sound integrity check, must match the
        reference model.
        """
        visible: dict[int, Content] = {}
        named = self.machine.entries()
        for entry in named:
            seen = self.observer.inspect(self.machine.disk, entry)
            if seen.wrong:
                raise Disagreement(seen.wrong)
            if seen.content:
                visible[entry.global_step] = seen.content
            elif not self.model.may_be_half(
                entry.global_step, seen.committed, self.cell.layout == "group"
            ):
                raise Disagreement(
                    f"half: {entry.path.name} counts and is refused ({seen.refused})"
                )
        if wrong := self.model.violation(visible, {entry.global_step for entry in named}):
            raise Disagreement(wrong)


def _family(op: Op) -> str:
    return "a fault" if op.scope else op.trouble or "nothing"


__all__ = ["Played", "SoakSetup", "play", "shortest"]
TRIES = 600  # maximum number of programs run to shrink one

Fails = Callable[[Sequence[Op]], bool]


@dataclass
class Played:
    """`at`: the operation of the disagreement, -1 if none; `wrong`: its description. `met`: how
    often each event occurred.
    """

    at: int = -1
    wrong: str = ""
    met: Counter[str] = field(default_factory=Counter)


def play(ops: Sequence[Op], cell: SoakSetup) -> Played:
    """Run `ops` from an empty disk. Deterministic in the list."""
    jumping, numbers = JumpingClock(), itertools.count()
    with (
        patch("secrets.token_hex", lambda length: f"{next(numbers):0{2 * length}x}"),
        patch.object(clock, "time", jumping),
    ):
        game = StoreRun(cell, jumping)
        try:
            for at, op in enumerate(ops):
                try:
                    game.do(op)
                except Disagreement as wrong:
                    return Played(at, str(wrong), game.met)
        finally:
            game.machine.close()
    return Played(met=game.met)


def shortest(ops: Sequence[Op], fails: Fails, tries: int = TRIES) -> tuple[Op, ...]:
    """A failing part of `ops` from which no operation and no fault can be removed (or the best
    found within `tries`).
    """
    budget = iter(range(tries))

    def still(candidate: Sequence[Op]) -> bool:
        return next(budget, None) is not None and fails(candidate)

    return _plainest(_fewest(tuple(ops), still), still)


def _fewest(ops: tuple[Op, ...], still: Fails) -> tuple[Op, ...]:
    """Leave out halves first, single operations last; from the end, where the disagreement is, to
    the start.
    """
    size = max(1, len(ops) // 2)
    while True:
        before = ops
        for start in range((len(ops) - 1) // size * size, -1, -size):
            candidate = ops[:start] + ops[start + size :]
            if len(candidate) < len(ops) and still(candidate):
                ops = candidate
        if size == 1 and ops == before:
            return ops
        size = max(1, size // 2)


def _plainest(ops: tuple[Op, ...], still: Fails) -> tuple[Op, ...]:
    """Remove faults that are not needed, and make sticky ones occur once."""
    for place, op in enumerate(ops):
        for plainer in (Op(op.do, detail=op.detail, number=op.number), replace(op, sticky=False)):
            candidate = ops[:place] + (plainer,) + ops[place + 1 :]
            if plainer != ops[place] and still(candidate):
                ops = candidate
                break
    return ops
