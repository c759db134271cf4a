"""Every path of a run directory, a sweep folder and a study folder; no other module builds them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_ATTEMPT = re.compile(r"^attempt-([0-9]{2,9})\Z")
_RANK_LOG = re.compile(r"^rank([0-9]{1,9})\.jsonl\Z")
_SURVIVOR_REPORT = re.compile(r"^recovery_rank([0-9]{1,9})\.jsonl\Z")
_LOST_SAMPLES = re.compile(r"^ledger_rank([0-9]{1,9})\.jsonl\Z")
_SPANS = re.compile(r"^spans_rank([0-9]{1,9})\.jsonl\Z")
_UNLOADABLE = re.compile(r"^unloadable_rank([0-9]{1,9})\.json\Z")
_RESTORED = re.compile(r"^restored_rank([0-9]{1,9})\.json\Z")


# beside runs: undisturbed reference runs to compare them with; they are no arms of a comparison
REFERENCES = "references"


def is_folder(path: Path) -> bool:
    """Whether `path` is a real folder: symbolic links in a run directory are not followed."""
    return path.is_dir() and not path.is_symlink()


@dataclass(frozen=True)
class AttemptLayout:
    """The folder of one attempt's logs."""

    folder: Path

    @property
    def output(self) -> Path:
        return self.folder / "output.log"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoint_rank0.jsonl"

    @property
    def launch(self) -> Path:
        """The parameters of this attempt: see `records.messages.AttemptSpec`."""
        return self.folder / "launch.json"

    @property
    def final(self) -> Path:
        return self.folder / "final.json"

    @property
    def evaluations(self) -> Path:
        """Quality on held-out data, by rank 0: see `records.evaluations.Evaluation`."""
        return self.folder / "evaluations.jsonl"

    def rank(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.jsonl"

    def spans(self, rank: int) -> Path:
        return self.folder / f"spans_rank{rank}.jsonl"

    def stacks(self, rank: int) -> Path:
        """The stacks of all threads of the rank when the attempt was judged hung."""
        return self.folder / f"stacks_rank{rank}.txt"

    def survivor_report(self, rank: int) -> Path:
        """The rank's report on the ranks that died before it: see
        `records.survivor_records.SurvivorReport`.
        """
        return self.folder / f"recovery_rank{rank}.jsonl"

    def lost_samples(self, rank: int) -> Path:
        """Which samples lost their influence, or have too much: see
        `records.survivor_records.LostSamples`.
        """
        return self.folder / f"ledger_rank{rank}.jsonl"

    def restored(self, rank: int) -> Path:
        """The rank's state right after it was restored: see
        `records.state_digests.RestoredState`.
        """
        return self.folder / f"restored_rank{rank}.json"

    def unloadable(self, rank: int) -> Path:
        """The checkpoint that the rank could not load, and why: see
        `records.state_digests.Unloadable`.
        """
        return self.folder / f"unloadable_rank{rank}.json"

    def with_unloadable(self) -> list[int]:
        """The ranks that could not load a checkpoint, ascending."""
        return self._ranks_of(_UNLOADABLE)

    def ranks(self) -> list[int]:
        """The ranks that left a log, ascending."""
        return self._ranks_of(_RANK_LOG)

    def spanned(self) -> list[int]:
        """The ranks that left spans, ascending."""
        return self._ranks_of(_SPANS)

    def with_survivor_report(self) -> list[int]:
        """The ranks that left a survivor report, ascending."""
        return self._ranks_of(_SURVIVOR_REPORT)

    def with_lost_samples(self) -> list[int]:
        """The ranks that left a lost-sample record, ascending."""
        return self._ranks_of(_LOST_SAMPLES)

    def with_restored(self) -> list[int]:
        """The ranks that recorded their restored state, ascending."""
        return self._ranks_of(_RESTORED)

    def _ranks_of(self, name: re.Pattern[str]) -> list[int]:
        names = (
            (name.match(p.name) for p in self.folder.iterdir()) if is_folder(self.folder) else ()
        )
        return sorted(int(m[1]) for m in names if m)


@dataclass(frozen=True)
class RunLayout:
    """A run directory."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"

    @property
    def dataset(self) -> Path:
        """Size and shape of the data set, written by rank 0 of the first attempt."""
        return self.root / "dataset.json"

    @property
    def state_digests(self) -> Path:
        """After which steps the ranks log state digests, where that was measured: see
        `records.state_digests`.
        """
        return self.root / "state_digests.json"

    @property
    def failures(self) -> Path:
        return self.root / "failures.json"

    @property
    def supervisor(self) -> Path:
        return self.root / "supervisor.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.json"

    @property
    def verdict(self) -> Path:
        return self.root / "verdict.json"

    @property
    def seal(self) -> Path:
        """The digests of all records, written last when the run ends."""
        return self.root / "seal.json"

    def earlier_seal(self, step: int) -> Path:
        """The seal of the end at `step`, a target that was raised since."""
        return self.root / f"seal-{step:08d}.json"

    @property
    def divergence(self) -> Path:
        """How far the run's end differs from its reference, written by verification."""
        return self.root / "divergence.json"

    @property
    def disk(self) -> Path:
        """The disk's counters, sampled while the run was supervised, if that was enabled."""
        return self.root / "disk.jsonl"

    @property
    def scrubs(self) -> Path:
        """Findings of the scrubs that ran while the run was supervised, if that was enabled."""
        return self.root / "scrub.jsonl"

    @property
    def fired(self) -> Path:
        return self.root / "fired"

    def fired_entry(self, index: int) -> Path:
        return self.fired / f"{index:03d}.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def initial(self) -> Path:
        """A copy of the checkpoint of another run that this one begins with
        (`RunConfig.begins_from`).
        """
        return self.root / "initial"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def control(self) -> Path:
        """The supervisor's Unix socket, while the supervisor runs."""
        return self.root / ".control"

    @property
    def writer(self) -> Path:
        """The background writer's Unix socket, while the writer runs."""
        return self.root / ".writer"

    @property
    def writer_output(self) -> Path:
        """Output of the background writer; normally empty."""
        return self.logs / "writer.log"

    @property
    def hydra(self) -> Path:
        return self.root / ".hydra"

    @property
    def composed(self) -> Path:
        """Hydra's composition for the command that last began the run or went on with it."""
        return self.hydra / "config.yaml"

    @property
    def composed_next(self) -> Path:
        """The folder of what Hydra composed for a command that has begun no session yet: the one
        that lies in `hydra` is sealed with the run.
        """
        return self.hydra / "next"

    @property
    def overrides(self) -> Path:
        """The words that were typed for that command."""
        return self.hydra / "overrides.yaml"

    @property
    def outcome(self) -> Path:
        """The status or outcome of the run's job, if it ran as a job of its own."""
        return self.hydra / "outcome.json"

    @property
    def job(self) -> Path:
        """The scheduler's id of the job that the run was last submitted as."""
        return self.hydra / "job.json"

    def attempt(self, attempt: int) -> AttemptLayout:
        return AttemptLayout(self.logs / f"attempt-{attempt:02d}")

    def attempts(self) -> list[int]:
        """The attempts that left a folder, ascending."""
        names = (
            (_ATTEMPT.match(p.name) for p in self.logs.iterdir() if is_folder(p))
            if is_folder(self.logs)
            else ()
        )
        return sorted(int(m[1]) for m in names if m)

    def relative(self, path: Path) -> str:
        """`path` relative to the run directory, as written in records: a copied or moved run stays
        valid.
        """
        return path.relative_to(self.root).as_posix()

    def relative_text(self, text: str) -> str:
        """`text` without the absolute path of the run directory, as written in records."""
        for root in (self.root.absolute(), self.root.resolve()):
            text = text.replace(f"{root}/", "")
            text = re.sub(rf"{re.escape(str(root))}(?![\w.-])", "the run directory", text)
        return text


@dataclass(frozen=True)
class SweepLayout:
    """A sweep folder: one folder per run, a manifest and a report."""

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.csv"

    @property
    def report(self) -> Path:
        return self.root / "report"

    def run(self, name: str) -> RunLayout:
        return RunLayout(self.root / name)


@dataclass(frozen=True)
class StudyLayout:
    """A study's folder. `scratch`: the working space of its trials; absent when nothing runs."""

    root: Path

    @property
    def study(self) -> Path:
        """The resolved configuration, with its study_id."""
        return self.root / "study.json"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"

    @property
    def trials(self) -> Path:
        return self.root / "trials.jsonl"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def scratch(self) -> Path:
        return self.root / ".scratch"

    @property
    def report(self) -> Path:
        return self.root / "report"
