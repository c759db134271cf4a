"""Builds over time: the same suites and arms run again and again, in the order of when they ran,
each held against the build before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ecrl_cli.errors import EcrlError, EvidenceMissing, RunDirectoryError
from ecrl_cli.metrics.statistics import Summary, summary
from ecrl_cli.records.layout import RunLayout, SweepLayout
from ecrl_cli.report.formats import listed, plural
from ecrl_cli.report.model.arms import MEASURES
from ecrl_cli.report.model.comparison import Comparison, compare
from ecrl_cli.report.model.contrast import Contrast
from ecrl_cli.report.model.inputs import RunInput, is_run, is_study, names_apart, run_inputs
from ecrl_cli.report.model.run_record import ON_FILE, Judging, Run, read_runs
from ecrl_cli.report.model.sweep_diff import EnvironmentDifference, SweepDiff, sweep_diff
from ecrl_cli.report.model.timeline_view import recorded_at
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID

UNFINISHED, MISSING = "unfinished", "missing"
WORST_FIRST = (INVALID, UNFINISHED, UNKNOWN, MISSING, VALID)
FAILING = (INVALID, UNFINISHED)
# keys of MEASURES
SHOWN = (
    "goodput",
    "stall_per_checkpoint_s",
    "durable_write_per_checkpoint_s",
    "wall_s",
    "restarts",
    "replayed_steps",
)

Key = tuple[str, str]  # suite and arm


@dataclass(frozen=True)
class Point:
    """One arm of one suite in one build. `status`: of WORST_FIRST, the worst of its runs; `why`:
    what is wrong with the worst, or empty.
    """

    runs: tuple[Run, ...]
    status: str
    why: str

    def mean(self, measure: str) -> Summary | None:
        """Over the finished runs; None if none of them has the measure."""
        values = [
            value
            for run in self.runs
            if run.counted and (value := MEASURES[measure](run.counted)) is not None
        ]
        return summary(values) if values else None


@dataclass(frozen=True)
class Build:
    """The runs of one folder. `when`: the wall time in seconds at which the first of them started;
    None if none says. `trouble`: what is wrong with its manifest, or empty.
    """

    name: str
    folder: Path
    comparison: Comparison
    when: float | None
    trouble: str = ""

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.comparison.runs

    @cached_property
    def commits(self) -> tuple[str, ...]:
        """The code that its runs were made by: the git revision, else the digest of the source, in
        twelve characters.
        """
        return _distinct([_commit(run) for run in self.runs])

    @cached_property
    def machines(self) -> tuple[str, ...]:
        return _distinct([_machine(run) for run in self.runs])

    @cached_property
    def points(self) -> dict[Key, Point]:
        members: dict[Key, list[Run]] = {}
        for run in self.runs:
            members.setdefault((run.suite, self.comparison.label(run)), []).append(run)
        return {key: _point(runs) for key, runs in members.items()}

    def count(self, status: str) -> int:
        """How many of its runs have this status."""
        return sum(_status(run)[0] == status for run in self.runs)


@dataclass(frozen=True)
class Track:
    """One arm of one suite over the builds; None where a build has no run of it."""

    suite: str
    arm: str
    points: tuple[Point | None, ...]

    @property
    def key(self) -> Key:
        return self.suite, self.arm

    @property
    def now(self) -> Point | None:
        """In the newest build."""
        return self.points[-1]

    @property
    def last(self) -> int | None:
        """The number of the newest build before the newest that has it; None if there is none."""
        return next((at for at in reversed(range(len(self.points) - 1)) if self.points[at]), None)

    @property
    def before(self) -> Point | None:
        return None if self.last is None else self.points[self.last]

    @property
    def since(self) -> int:
        """The number of the build from which on, without a break, it has the status of now; builds
        without it break nothing.
        """
        at = len(self.points) - 1
        for number in reversed(range(len(self.points))):
            point = self.points[number]
            if point and self.now and point.status != self.now.status:
                break
            at = number if point else at
        return at

    @property
    def rank(self) -> tuple[int, int, str, str]:
        """The order of a page that opens on what matters: what fails, what is not proven, what is
        no longer run, the rest; new failures first.
        """
        if self.now is None:
            return WORST_FIRST.index(VALID), -len(self.points), self.suite, self.arm
        return WORST_FIRST.index(self.now.status), -self.since, self.suite, self.arm


@dataclass(frozen=True)
class History:
    """`builds`: oldest first. `tracks`: failing ones first. `notes`: sentences on what was left
    out.
    """

    builds: tuple[Build, ...]
    notes: tuple[str, ...] = ()

    @property
    def newest(self) -> Build:
        return self.builds[-1]

    @cached_property
    def tracks(self) -> tuple[Track, ...]:
        keys = dict.fromkeys(key for build in reversed(self.builds) for key in build.points)
        tracks = [
            Track(*key, tuple(build.points.get(key) for build in self.builds)) for key in keys
        ]
        return tuple(sorted(tracks, key=lambda track: track.rank))

    @property
    def failing(self) -> tuple[Track, ...]:
        return tuple(track for track in self.tracks if track.now and track.now.status in FAILING)

    @cached_property
    def _diffs(self) -> dict[tuple[int, int], SweepDiff]:
        return {}

    def diff(self, newer: int, older: int) -> SweepDiff:
        """Two builds, run by run."""
        if (newer, older) not in self._diffs:
            a, b = self.builds[newer], self.builds[older]
            self._diffs[newer, older] = sweep_diff(a.comparison, b.comparison, a.name, b.name)
        return self._diffs[newer, older]

    def change(self, track: Track, measure: str, at: int | None = None) -> Contrast | None:
        """The arm in build `at` (None: the newest) against the newest build before that has it,
        pair by pair; None without a pair, and where either suite failed a gate.
        """
        newer = len(self.builds) - 1 if at is None else at
        older = next((number for number in reversed(range(newer)) if track.points[number]), None)
        if older is None or track.points[newer] is None:
            return None
        return self.diff(newer, older).contrast(track.arm, measure, track.suite, [track.suite])

    def around(self, at: int) -> list[EnvironmentDifference]:
        """Differences between the environments of build `at` and of the one before. The digest of
        the source is left out where commits are known.
        """
        if at == 0:
            return []
        found = self.diff(at, at - 1).differences
        named = any(difference.key == "git_revision" for difference in found)
        return [
            difference for difference in found if not (named and difference.key == "source_sha256")
        ]


def read_history(dirs: Sequence[Path], judging: Judging = ON_FILE) -> History:
    """The builds in `dirs`, each a run, a sweep, or a folder of those.

    RunDirectoryError for a folder with none; EvidenceMissing if no build has a run. A run that
    cannot be read is kept with the reason.
    """
    found = [_build(folder, judging) for folder in build_folders(dirs)]
    if not any(build.runs for build in found):
        raise EvidenceMissing(
            "report",
            f"no run in {plural(len(found), 'folder')}",
            "name folders that ecrl train wrote",
        )
    return History(*_without_copies(_in_time(_named_apart(found))))


def build_folders(dirs: Sequence[Path]) -> list[Path]:
    """The folders of the builds that `dirs` name, each once: a run or a sweep is a build, any other
    folder holds builds.
    """
    found = [build for folder in dirs for build in _in(folder)]
    return list({build.resolve(): build for build in found}.values())


def _in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise RunDirectoryError(
            str(folder), "is no folder", "name run directories, sweeps or a folder of them"
        )
    if _is_build(folder):
        return [folder]
    inside = [item for item in sorted(folder.iterdir()) if item.is_dir() and _is_build(item)]
    if not inside:
        what = (
            "is a study: a history is of runs"
            if is_study(folder)
            else "holds neither runs nor sweeps"
        )
        raise RunDirectoryError(str(folder), what, "name folders that ecrl train wrote")
    return inside


def _is_build(folder: Path) -> bool:
    if is_study(folder):
        return False
    return (
        is_run(folder)
        or SweepLayout(folder).manifest.exists()
        or any(item.is_dir() and is_run(item) for item in folder.iterdir())
    )


def _build(folder: Path, judging: Judging) -> Build:
    trouble = ""
    try:
        places = run_inputs([folder])
    except EcrlError as error:  # a damaged manifest
        trouble = error.line()
        places = [
            RunInput(RunLayout(item), item.name, {})
            for item in sorted(folder.iterdir())
            if item.is_dir() and is_run(item)
        ]
    comparison = compare(read_runs(places, judging))
    times = [
        at
        for run in comparison.runs
        if run.supervisor and (at := recorded_at(run.supervisor.sessions))
    ]
    return Build(
        folder.resolve().name, folder.resolve(), comparison, min(times, default=None), trouble
    )


def _in_time(builds: Sequence[Build]) -> list[Build]:
    """By when they started; one that says no time stays after the one that was named before it."""
    known, keys = float("-inf"), {}
    for number, build in enumerate(builds):
        known = known if build.when is None else build.when
        keys[build.folder] = (known, number)
    return sorted(builds, key=lambda build: keys[build.folder])


def _named_apart(builds: Sequence[Build]) -> list[Build]:
    names = names_apart([(build.name, build.folder) for build in builds])
    return [replace(build, name=name) for build, name in zip(builds, names, strict=True)]


def _without_copies(builds: Sequence[Build]) -> tuple[tuple[Build, ...], tuple[str, ...]]:
    """Leaves out the builds all of whose recordings stand in an earlier one."""
    kept: list[Build] = []
    notes = [f"{build.name}: {build.trouble}." for build in builds if build.trouble]
    notes += [
        f"{build.name} has no time on record: it stands where it was named."
        for build in builds
        if build.when is None
    ]
    for build in builds:
        own = {(run.recording.run_id, run.recording.start) for run in build.runs if run.recording}
        first = next((other for other in kept if own and own <= _recordings(other)), None)
        notes += (
            [f"{build.name} holds copies of the runs of {first.name}: left out."] if first else []
        )
        kept += [] if first else [build]
    return tuple(kept), tuple(notes)


def _recordings(build: Build) -> set[tuple[str, tuple[str, float, float]]]:
    return {(run.recording.run_id, run.recording.start) for run in build.runs if run.recording}


def _point(runs: Sequence[Run]) -> Point:
    status, why = min((_status(run) for run in runs), key=lambda found: WORST_FIRST.index(found[0]))
    return Point(tuple(runs), status, why)


def _status(run: Run) -> tuple[str, str]:
    """Status of WORST_FIRST, and why it is not valid."""
    if run.verdict.status == INVALID or not run.reason:
        worst = next(
            (
                f"{found.promise}: {found.message}"
                for found in run.verdict.findings
                if found.status == run.verdict.status
            ),
            "",
        )
        return run.verdict.status, (
            "" if run.verdict.status == VALID else worst or run.verdict.why or "not verified"
        )
    return UNFINISHED, run.reason


def _commit(run: Run) -> str:
    revision, source = (
        str(run.environment.get("git_revision") or ""),
        str(run.environment.get("source_sha256") or ""),
    )
    number, _, dirty = revision.partition("-")
    return number[:12] + (f"-{dirty[:12]}" if dirty else "") or (
        f"source {source[:12]}" if source else ""
    )


def _machine(run: Run) -> str:
    """Processor, cores, GPUs: records name no host."""
    cpu, gpus = run.environment.get("cpu"), run.environment.get("gpus")
    cores = (
        f"{cpu.get('model', '?')}, {cpu.get('logical', '?')} cores" if isinstance(cpu, dict) else ""
    )
    cards = (
        [str(gpu.get("name", "?")) for gpu in gpus if isinstance(gpu, dict)]
        if isinstance(gpus, list)
        else []
    )
    return " + ".join([part for part in (cores, listed(cards) if cards else "") if part])


def _distinct(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if value))
