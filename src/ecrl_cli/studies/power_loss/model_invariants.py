"""Runs the store's own recovery and integrity check on a state, and judges it by what had been
saved and acknowledged.

The check is a function of the checkpoint, and recovery one of the names and verdicts: every
distinct checkpoint is verified once, and every distinct set of names and verdicts recovered from
once. A sample is recovered from again in a real folder, without caches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.format.manifest import Components, components
from ecrl_cli.checkpoint.store.catalog import ResumeChoice, newest_valid
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, IntegrityReport, verify_checkpoint
from ecrl_cli.checkpoint.store.synthetic import RUN_ID, image_components
from ecrl_cli.errors import EcrlError
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.memory_fs import ModelFs
from ecrl_cli.studies.mutants.store import VerifyCheckpoint
from ecrl_cli.studies.power_loss.model_disk import Forest, Names
from ecrl_cli.studies.power_loss.workloads import ROOT, RUN, image_of

_CALLS = 20_000  # of one recovery; a correct one makes about a hundred
_GUARD = IntegrityConfig(run_id=RUN_ID)

Recover = Callable[[Fs], ResumeChoice]


class RecoveryHung(BaseException):
    """Raised when a recovery makes too many calls."""


class Bounded(ModelFs):
    """Limits the number of read calls."""

    calls = 0

    def read_at(self, fd: int, buffer: memoryview, offset: int) -> int:
        self._count()
        return super().read_at(fd, buffer, offset)

    def listdir(self, path: Path) -> list[str]:
        self._count()
        return super().listdir(path)

    def _count(self) -> None:
        self.calls += 1
        if self.calls > _CALLS:
            raise RecoveryHung


@dataclass(frozen=True)
class RecoveredState:
    """`step`: of the chosen checkpoint, None if none. `right`: it matches what was saved under that
    step. `trouble`: how recovery itself failed.

    `refused`: it rejected something. `name` and `rejected` ((name, layer) each, newest first) are
    compared with a real folder.
    """

    step: int | None = None
    right: bool = True
    trouble: str = ""
    name: str = ""
    rejected: tuple[tuple[str, str], ...] = ()


def outcome(found: RecoveredState, acked: int, begun: int) -> str:
    """The class of a state, by the newest acknowledged and the newest started step (0: none).

    A recovery that raises returns nothing of what had been acknowledged.
    """
    if found.trouble == "detected" and acked:
        return "lost_all"
    if found.trouble:
        return found.trouble
    if found.step is None:
        return "lost_all" if acked else "detected" if found.rejected else "empty_ok"
    if not found.right:
        return "silent_wrong"
    return "lost_ack" if found.step < acked else "new" if found.step >= begun else "previous"


class RecoveryOracle:
    """Judges the states of one disk. `verify`: the integrity check. `recover`: the store's own way
    to choose, if not the catalog's.
    """

    def __init__(
        self,
        forest: Forest,
        seed: int,
        single: bool,
        verify: VerifyCheckpoint = verify_checkpoint,
        recover: Recover | None = None,
    ) -> None:
        self.forest, self.seed, self.single = forest, seed, single
        self._verify, self._recover = verify, recover
        self._verdicts: list[JudgedCheckpoint] = []
        self._numbers: dict[object, int] = {}  # characters of a verdict's text
        self._examined: dict[tuple[str, int, int], int] = {}
        self._found: dict[object, RecoveredState] = {}
        self._saved: dict[int, SavedFiles] = {}

    @property
    def recoveries(self) -> int:
        return len(self._found)

    @property
    def examined(self) -> int:
        return len(self._examined)

    def recovered(self, state: int) -> RecoveredState:
        view: object = state if self._recover else self._view(state)
        found = self._found.get(view)
        if found is None:
            found = self._found[view] = self._try(state)
        return found

    def halves(self, state: int) -> frozenset[int]:
        """Checkpoints with a whole commit record that are rejected."""
        below = dict(self._checkpoints(state))
        reports = {
            name: self._verdicts[number].report for name, number in self._view(state) if number >= 0
        }
        return frozenset(
            below[name]
            for name, report in reports.items()
            if report.commit_sha256 and not report.ok
        )

    def _checkpoints(self, state: int) -> Names:
        """The names in checkpoints/ that recovery examines."""
        root = self.forest.child(state, ROOT.name)
        return (
            ()
            if root is None
            else tuple([pair for pair in self.forest.names(root) if pair[0].startswith("step_")])
        )

    def _view(self, state: int) -> tuple[tuple[str, int], ...]:
        """These names, each with the number of its verdict (-1: a sidecar)."""
        below = self._checkpoints(state)
        return tuple([(name, self._verdict(below, name, number)) for name, number in below])

    def _verdict(self, below: Names, name: str, number: int) -> int:
        if name.endswith(".json"):
            return -1
        beside = name.replace(".safetensors", ".json")
        key = (
            name,
            number,
            next((each for sidecar, each in below if sidecar == beside), -1) if self.single else -1,
        )
        found = self._examined.get(key)
        if found is None:
            fs = Bounded(
                RUN,
                {
                    ROOT.name: {
                        each: self.forest.tree(there)
                        for each, there in below
                        if each in (name, beside)
                    }
                },
            )
            verdict = self._asked(ROOT / name, fs, number)
            report = verdict.report
            said = (
                name,
                report.ok,
                report.layer,
                report.reason,
                report.global_step,
                report.commit_sha256,
                verdict.right,
                verdict.trouble,
            )
            found = self._examined[key] = self._numbers.setdefault(said, len(self._verdicts))
            if found == len(self._verdicts):
                self._verdicts.append(verdict)
        return found

    def _asked(self, path: Path, fs: Fs, number: int) -> JudgedCheckpoint:
        """The integrity check must never raise; if it does, so will recovery."""
        try:
            report = self._verify(path, _GUARD, fs)
        except (RecoveryHung, Exception) as trouble:
            return JudgedCheckpoint(IntegrityReport(path, ok=False), False, trouble)
        return JudgedCheckpoint(report, report.ok and self._right(number, report))

    def _try(self, state: int) -> RecoveredState:
        below = self._checkpoints(state)
        tree = (
            self.forest.tree(state)
            if self._recover
            else {ROOT.name: {name: self.forest.tree(number) for name, number in below}}
        )
        assert isinstance(tree, dict)
        fs = Bounded(RUN, tree)
        try:
            choice = (
                self._recover(fs)
                if self._recover
                else newest_valid(fs, ROOT, lambda path: self._known(below, path))
            )
        except RecoveryHung:
            return RecoveredState(trouble="hung")
        except EcrlError:
            return RecoveredState(trouble="detected")
        except Exception:
            return RecoveredState(trouble="untyped")
        rejected = tuple((Path(each.path).name, each.layer) for each in choice.rejected)
        if choice.report is None:
            return RecoveredState(rejected=rejected)
        name = choice.report.path.name
        right = self._right(dict(below)[name], choice.report) if name in dict(below) else False
        return RecoveredState(choice.report.global_step, right, "", name, rejected)

    def _known(self, below: Names, path: Path) -> IntegrityReport:
        verdict = self._verdicts[self._verdict(below, path.name, dict(below)[path.name])]
        if verdict.trouble is not None:
            raise verdict.trouble
        return verdict.report

    def _right(self, number: int, report: IntegrityReport) -> bool:
        """Whether the chosen checkpoint is what was saved: the digests in its manifest, and the
        exact bytes of its files.
        """
        step = report.global_step
        if step is None:
            return False
        if step not in self._saved:
            self._saved[step] = SavedFiles.of(image_of(self.seed, step, self.single), self.forest)
        saved = self._saved[step]
        there = {report.path.name: number} if self.single else dict(self.forest.names(number))
        same = all(there.get(name) == data for name, data in saved.files.items())
        return same and (report.manifest is None or components(report.manifest) == saved.components)


@dataclass(frozen=True)
class JudgedCheckpoint:
    """The integrity check's verdict on a checkpoint, and whether an accepted one is right.
    `trouble`: what it raised.
    """

    report: IntegrityReport
    right: bool
    trouble: BaseException | None = None


@dataclass(frozen=True)
class SavedFiles:
    """A saved checkpoint: the files by name, as numbers of the forest, and the digests."""

    files: dict[str, int]
    components: Components

    @classmethod
    def of(cls, image: CheckpointImage, forest: Forest) -> SavedFiles:
        files = {
            part.name: bytes(image.memory[part.offset : part.offset + part.nbytes])
            for part in image.parts
        }
        if len(image.parts) > 1:  # a single file has its documents in the sidecar
            files |= image.documents
        return cls(
            {name: forest.number(data) for name, data in files.items()}, image_components(image)
        )
