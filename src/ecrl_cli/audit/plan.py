"""The faults of an audit: those given on the command line, or some derived from the undisturbed
run.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from dataclasses import dataclass

from ecrl.faults import matches
from ecrl.files import looks_binary
from ecrl_cli.audit.components import SHOWN, Judged
from ecrl_cli.audit.progress import TYPED
from ecrl_cli.audit.saving import SaveEvents, checkpoints, kind_of, save_events, state_files
from ecrl_cli.config.audit import AuditConfig, step_and_moment
from ecrl_cli.errors import ConfigError, plural, shown

_NUMBERS = re.compile(r"(\d+)")
MOST_SAVES = 3  # that are struck by the drawn failures, each with all its points
MOST_FILES = 3  # of one save that are torn: which of them a restart reads is not known yet


@dataclass(frozen=True)
class PlannedFault:
    """One fault of one arm: in attempt `attempt`, of `rank`, at `moment` of `step`. `point`: of the
    moment save, FILE:HOW (ecrl/faults.py).
    """

    index: int
    attempt: int
    kind: str
    rank: int
    step: int
    moment: str
    point: str = ""

    def __str__(self) -> str:
        file, _, how = self.point.rpartition(":")
        where = (
            f"{self.moment}: {'a temporary file' if file == '*' else file} {how}"
            if file
            else self.moment
        )
        return f"{self.kind} of rank {self.rank} at step {self.step} ({where})"


@dataclass(frozen=True)
class PlannedArm:
    name: str
    why: str
    faults: tuple[PlannedFault, ...]
    elastic: bool = False  # its later attempts are started by `audit.elastic`


def planned_arms(config: AuditConfig, reference: Judged) -> tuple[PlannedArm, ...]:
    """The arms with faults; ConfigError if a fault given by the user cannot happen in this job."""
    last, processes = reference.path.last, reference.arm.processes
    if config.failure.steps:
        return _chosen((_typed(config, reference),), config.audit.only)
    saved = [step for step in _saved(reference) if 0 < step < last]
    epochs = sorted({step for process in processes for step in process.epochs if 0 < step < last})
    rank = max(process.rank for process in processes)
    drawn = [
        _off_boundary(saved, last, rank),
        _twice(saved, epochs, last, rank),
        _second_epoch(saved, epochs, last, rank),
        _inside_save(reference, saved),
        _sigterm(reference, saved),
    ]
    if not saved and _leaves_files(reference):
        drawn = _unseen_saves(epochs, last, rank)
    found = [arm for arm in drawn if arm is not None]
    if config.audit.elastic and found:
        resized = PlannedArm("resized", "started again by audit.elastic", found[0].faults, True)
        return _chosen((*found[: config.audit.failures], resized), config.audit.only)
    return _chosen(tuple(found[: config.audit.failures]), config.audit.only)


def _chosen(arms: tuple[PlannedArm, ...], names: tuple[str, ...]) -> tuple[PlannedArm, ...]:
    """The arms of these names, or all without any; ConfigError for a name that none has."""
    there = [arm.name for arm in arms]
    for name in names if arms else ():
        if name not in there:
            raise ConfigError(
                "audit.only",
                f"no arm {shown(name)} is drawn for this job",
                f"there are {', '.join(there)}",
            )
    return tuple(arm for arm in arms if not names or arm.name in names)


def _leaves_files(reference: Judged) -> bool:
    """Whether the undisturbed run has left anything in its folder: it may save in a way that is not
    seen (a database, a library in C).
    """
    work = reference.arm.folder / "work"
    return work.is_dir() and any(path.is_file() for path in work.rglob("*"))


def _unseen_saves(epochs: list[int], last: int, rank: int) -> list[PlannedArm | None]:
    """Arms for a job of which nobody knows when it saves."""
    if last < 3:
        return []
    third = max(2, last // 3)
    faults = (
        PlannedFault(0, 0, "kill", rank, third, "before"),
        PlannedFault(1, 1, "kill", rank, max(third + 1, 2 * last // 3), "before"),
    )
    later = (
        _kill(
            "later-epoch",
            f"in an epoch after the first, which ended at step {epochs[0]}",
            min(last, epochs[0] + 2),
            rank,
        )
        if epochs
        else None
    )
    why = "when it saves is not on record"
    return [
        _kill("mid-run", why, max(2, last // 2), rank),
        PlannedArm("twice", f"after a third and after two thirds: {why}", faults),
        later,
    ]


def too_few_steps(reference: Judged) -> ConfigError:
    """The error for a job in which nothing can be planned, with what was seen of it."""
    processes = reference.arm.processes
    steps = [
        step for process in processes if process.rank == processes[0].rank for step in process.steps
    ]
    batches = sum(len(step.batches) for step in steps)
    epochs = max((len(process.epochs) for process in processes), default=0)
    seen = (
        f"{plural(reference.path.last, 'optimizer step')} in {plural(batches, 'batch', 'batches')},"
        f" {plural(len(checkpoints(reference.arm)), 'save')} and {plural(epochs, 'whole epoch')}"
    )
    way = (
        "let it do at least three steps, and save in between (fewer batches to a step, smaller"
        " epochs)"
    )
    said = f"has too few steps for a failure in between: {seen} were seen"
    troubles = [trouble for process in processes for trouble in process.troubles]
    if troubles:
        said += f", and the recorder could not see everything: {troubles[0]}"
    return ConfigError("COMMAND", said, way)


def _saved(reference: Judged) -> list[int]:
    """The steps after which the undisturbed run finished a save. What it saves less than half as
    often as another file, and meanwhile, is no checkpoint (a best model, a member of an ensemble).
    """
    steps: dict[str, set[int]] = defaultdict(set)  # by kind of file
    for checkpoint in checkpoints(reference.arm):
        for path in checkpoint.paths if checkpoint.finished else ():
            steps[kind_of(path)].add(checkpoint.step)
    kinds = set(steps)
    for process in reference.arm.processes:
        for save in process.saves:
            kind = kind_of(str(save.get("path", "")))
            if save.get("done") and not any(kind.endswith(name) for name in kinds):
                steps[kind].add(save["after_step"])
    main = max(steps.values(), key=len, default=set())
    return sorted(
        {
            step
            for some in steps.values()
            if 2 * len(some) >= len(main) or max(some) < min(main) or min(some) > max(main)
            for step in some
        }
    )


def _typed(config: AuditConfig, reference: Judged) -> PlannedArm:
    failure, last, faults = config.failure, reference.path.last, []
    saved: dict[int, set[int]] = {process.rank: set() for process in reference.arm.processes}
    for process in reference.arm.processes:
        saved[process.rank].update(save["after_step"] for save in process.saves)
    for checkpoint in checkpoints(reference.arm):
        for rank in checkpoint.ranks:
            saved.setdefault(rank, set()).add(checkpoint.step)
    if failure.rank not in saved:
        raise ConfigError(
            "failure.rank",
            f"rank {failure.rank} does not exist, the job has {len(saved)}",
            f"use 0 to {max(saved)}",
        )
    for index, text in enumerate(failure.steps):
        step, moment, point = step_and_moment(text)
        if step > last:
            raise ConfigError(
                "failure.steps", f"step {step} is beyond the job's last step {last}", "lower it"
            )
        if moment == "save" and step not in saved[failure.rank]:
            said = (
                f"{text}: rank {failure.rank} saves nothing after step {step} in the"
                " undisturbed run"
            )
            raise ConfigError(
                "failure.steps",
                said,
                "it saves after"
                f" {', '.join(map(str, sorted(saved[failure.rank])[:SHOWN])) or 'none'}",
            )
        if moment == "save" and not point:
            point = _torn_in(save_events(reference.arm), failure.rank, step)
        elif point:
            _check_point(
                text,
                point,
                [
                    save
                    for save in save_events(reference.arm)
                    if save.rank == failure.rank and save.step >= step
                ],
            )
        faults.append(PlannedFault(index, index, failure.kind, failure.rank, step, moment, point))
    return PlannedArm(TYPED, "as typed", tuple(faults), bool(config.audit.elastic))


def _torn_in(saves: list[SaveEvents], rank: int, step: int) -> str:
    """The point at which the main file of the save after `step` is torn; empty where its files are
    not on record.
    """
    there = [save for save in saves if save.rank == rank and save.step == step]
    # what another thread writes is larger than what is written beside it
    for save in sorted(there, key=lambda save: not save.overlapped):
        if files := state_files(save.events):
            return f"{_pattern(save.events[files[0]][1], None)}:torn"
    return ""


def _check_point(text: str, point: str, saves: list[SaveEvents]) -> None:
    pattern = point.rpartition(":")[0]
    paths = list(dict.fromkeys(path for save in saves for _, path in save.events))
    if not any(matches(path, pattern) for path in paths):
        said = f"{text}: no file of that name is written in the undisturbed run's save"
        raise ConfigError("failure.steps", said, f"there are {', '.join(paths[:SHOWN]) or 'none'}")


def _kill(name: str, why: str, step: int, rank: int) -> PlannedArm:
    return PlannedArm(name, why, (PlannedFault(0, 0, "kill", rank, step, "before"),))


def _off_boundary(saved: list[int], last: int, rank: int) -> PlannedArm | None:
    """Between two checkpoints: the steps after the first are repeated, and must agree."""
    if not saved:
        why = "no finished checkpoint before the job's end is on record"
        return _kill("no-checkpoint", why, max(2, last // 2), rank) if last > 1 else None
    ends = [*saved, last]
    gaps = [
        (after - before, before) for before, after in itertools.pairwise(ends) if after - before > 1
    ]
    if not gaps:
        return None
    size, before = max(gaps)
    return _kill(
        "off-boundary",
        f"between the checkpoints of step {before} and {before + size}",
        before + size // 2 + 1,
        rank,
    )


def _twice(saved: list[int], epochs: list[int], last: int, rank: int) -> PlannedArm | None:
    """Right after a checkpoint, where no step is repeated; and once more after the next one, which
    a resumed attempt has written. If an epoch ends at one of the two, whoever counts its place in
    an epoch from the restart is right: then after a third one too, of the second's epoch.
    """
    if not saved:
        return None
    # Where a step's number gets one more digit: a checkpoint that is chosen by the order of letters
    # is an older one there.
    longer = [
        place
        for place, (older, step) in enumerate(itertools.pairwise(saved), start=1)
        if len(str(older)) < len(str(step))
    ]
    place = longer[0] if longer and len(saved) > longer[0] + 1 else 0
    begun = saved[place]
    first = PlannedFault(0, 0, "kill", rank, begun + 1, "before")
    if len(saved) < 2:
        return PlannedArm("on-boundary", f"right after the checkpoint of step {begun}", (first,))
    following, third, after = [*saved[place + 1 :], last, last][:3]

    def later(number: int, step: int, until: int) -> PlannedFault:
        behind = step + max(1, (until - step) // 2 + 1)
        return PlannedFault(number, number, "kill", rank, min(last, behind), "before")

    second = later(1, following, third)
    why = (
        f"right after the checkpoint of step {begun}, and in step {second.step} of the next"
        f" attempt, after the checkpoint of step {following}"
    )

    def apart(one: int, other: int) -> bool:
        return any(one <= end <= other for end in epochs)

    if third < last and apart(begun, following) and not apart(following, third):
        faults = (first, second, later(2, third, after))
        return PlannedArm("twice", f"{why}, and again after that of step {third}", faults)
    return PlannedArm("twice", why, (first, second))


def _inside_save(reference: Judged, saved: list[int]) -> PlannedArm | None:
    """One death after the other inside a save, at points named by file."""
    saves = save_events(reference.arm)
    if not saves:
        return _inside_unseen_save(reference, saved)
    faults: list[PlannedFault] = []
    whole, rare = _steps_of_saves(saves), _last_of_rare(saves)
    steps = sorted({*whole, *rare})
    for step in steps:
        if step not in whole:
            save, point = rare[step]
            faults.append(
                PlannedFault(len(faults), len(faults), "kill", save.rank, step, "save", point)
            )
            continue
        ranks = sorted({save.rank for save in saves if save.step == step})
        for rank in dict.fromkeys((ranks[0], ranks[-1])):
            # those of one rank are all due at once: whichever the job comes to first happens, one
            # an attempt
            attempt = len(faults)
            # by each of its threads
            for save in (save for save in saves if save.step == step and save.rank == rank):
                others = [
                    other
                    for other in saves
                    if other.rank == rank and other.step != step and other.kinds == save.kinds
                ]
                for point in points(save, others[0] if others else None, whole=rank == ranks[0]):
                    faults.append(
                        PlannedFault(len(faults), attempt, "kill", rank, step, "save", point)
                    )
    where = " and ".join(f"the save of step {step}" for step in steps)
    return PlannedArm(
        "inside-save",
        f"{plural(len(faults), 'death')}, one an attempt, inside {where} and those after"
        f" {'it' if len(steps) == 1 else 'them'}",
        tuple(faults),
    )


def _steps_of_saves(saves: list[SaveEvents]) -> list[int]:
    """The steps whose saves are struck: of each kind of file the second one where there are two, so
    that an older one exists. Files that are saved apart (a best model, say) are struck apart: which
    of them a restart reads is not known yet. What is written before the first step is a data set,
    say, and struck only where there is nothing else.
    """
    saves = [save for save in saves if save.step > 0] or saves
    kinds: dict[int, set[str]] = {}
    for save in saves:
        kinds.setdefault(save.step, set()).update(
            kind_of(path) for _, path in save.events if looks_binary(path)
        )
    chosen, covered = set[int](), set[str]()
    for step in sorted(kinds):
        new = kinds[step] - covered
        if (new or not chosen) and len(chosen) < MOST_SAVES:
            among = [other for other in sorted(kinds) if kinds[other] & new] or sorted(kinds)
            pick = among[1] if len(among) > 1 else among[0]
            chosen.add(pick)
            covered |= kinds[step] | kinds[pick]
    return sorted(chosen)


def _last_of_rare(saves: list[SaveEvents]) -> dict[int, tuple[SaveEvents, str]]:
    """By step, the last save of a kind of file that is in some saves only (a best model, say), and
    the point before it is written: nothing that comes after puts right what is lost there.
    """
    last: dict[str, list[SaveEvents]] = {}
    for save in (save for save in saves if save.step > 0 and save.rank == saves[0].rank):
        written = [path for op, path in save.events if op != "mkdir" and looks_binary(path)]
        for kind in {*map(kind_of, written)}:
            last.setdefault(kind, []).append(save)
    most = max(map(len, last.values()), default=0)
    rare: dict[int, tuple[SaveEvents, str]] = {}
    for kind, some in last.items():
        if 2 < len(some) < most and len(rare) < MOST_SAVES:
            paths = [path for _, path in some[-1].events if kind_of(path) == kind]
            older = [path for _, path in some[-2].events if kind_of(path) == kind]
            point = f"{_pattern(paths[0], older[0])}:before"
            rare.setdefault(some[-1].step, (some[-1], point))
    return rare


def _inside_unseen_save(reference: Judged, saved: list[int]) -> PlannedArm | None:
    """Before a save whose files are not on record: it goes elsewhere, or is written in C."""
    ranks = sorted(
        {
            process.rank
            for process in reference.arm.processes
            for save in process.saves
            if save["after_step"] in saved
        }
    )
    if not ranks:
        return None
    step = saved[1] if len(saved) > 1 else saved[0]
    return PlannedArm(
        "inside-save",
        f"in the save of step {step}",
        (PlannedFault(0, 0, "kill", ranks[0], step, "save"),),
    )


def points(save: SaveEvents, other: SaveEvents | None, whole: bool = True) -> list[str]:
    """Where to strike in `save`, as FILE:HOW: before its first event, at its main file, in further
    files that hold state, and at its last one. `other`: a save of the same files, by which the
    numbers that change from save to save are told. `whole` False: only before and in the main file,
    for a further rank.
    """
    names = [
        _pattern(path, other.events[place][1] if other is not None else None)
        for place, (_, path) in enumerate(save.events)
    ]
    files = state_files(save.events)
    main = files[0] if files else None
    found = [f"{names[0]}:before"]
    if main is not None:
        found += [f"{names[main]}:empty", f"{names[main]}:torn"]
    if whole:
        found += [f"{names[place]}:torn" for place in files[1:MOST_FILES]]
    start = main if main is not None else 0
    later = [
        place
        for place in range(start + 1, len(names))
        if save.events[place][0] in ("write", "rename", "link")
    ]
    after = [place for place in later if names[place] != names[start]]
    if whole and after:
        if len(after) > 1 and main is not None:
            found.append(f"{names[main]}:after")
        found.append(f"{names[after[-1]]}:before")
        if save.events[after[-1]][0] == "write":
            found.append(f"{names[after[-1]]}:torn")
    return list(
        dict.fromkeys(
            found if whole else found[:1] + [point for point in found if point.endswith(":torn")]
        )
    )


def _pattern(path: str, other: str | None) -> str:
    """`path` with # for the numbers that are others in `other`, the same file of another save, and
    * for random parts.
    """
    kind = kind_of(path)
    if other is None:
        return kind if "*" in kind else path
    mine, theirs = _NUMBERS.split(path), _NUMBERS.split(other)
    if "*" in kind or len(mine) != len(theirs):
        return kind
    return "".join(
        "#" if place % 2 and part != theirs[place] else part for place, part in enumerate(mine)
    )


def _sigterm(reference: Judged, saved: list[int]) -> PlannedArm | None:
    """SIGTERM to every rank, between two checkpoints, where a training process has a handler."""
    processes, last = reference.arm.processes, reference.path.last
    handled = any(
        call.get("what") == "signal.signal" and call.get("signal") == 15
        for process in processes
        for call in process.calls
    )
    if not handled or last < 2:
        return None
    between = _off_boundary(saved, last, 0)
    step = between.faults[0].step if between is not None else max(2, last // 2)
    ranks = sorted({process.rank for process in processes})
    faults = tuple(
        PlannedFault(index, 0, "term", rank, step, "before") for index, rank in enumerate(ranks)
    )
    return PlannedArm("sigterm", "the job has a handler of SIGTERM", faults)


def _second_epoch(saved: list[int], epochs: list[int], last: int, rank: int) -> PlannedArm | None:
    """In the second epoch or later, after a checkpoint taken in it if there is one."""
    if not epochs or not saved:
        return None
    inside = [step for step in saved if step > epochs[0]]
    step = min(last, (inside[0] if inside else epochs[0]) + 2)
    return _kill(
        "later-epoch", f"in an epoch after the first, which ended at step {epochs[0]}", step, rank
    )
