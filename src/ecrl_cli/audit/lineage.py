"""The step after which each attempt resumed, proved by content: the state before its first update
is looked up among the states on record.

The job's own step numbers are not needed. The step in flight at a death may have happened or not: a
rank that died has no line for it, but any other rank's line counts, and so does the undisturbed
run's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ecrl_cli.audit.records import Arm, Process, with_steps
from ecrl_cli.audit.saving import checkpoints, reads
from ecrl_cli.audit.steps import Optimizers, OptimizerState, Step

_DIGITS = re.compile(r"\d+")
BEFORE, AFTER, SAVED = "before the next update", "after the update", "at a save"


@dataclass(frozen=True)
class RecordedState:
    """A state on record: `step`: the last step done. `who`: the optimizers that step next, where
    known.
    """

    step: int
    when: str
    optimizers: Optimizers
    who: tuple[str, ...] = ()
    rank: int = 0


@dataclass(frozen=True)
class FinishedCheckpoint:
    """A finished checkpoint: files that were written together after step `step`."""

    step: int
    paths: tuple[str, ...]

    @property
    def families(self) -> frozenset[str]:
        return frozenset(kind for path in self.paths for kind in _with_folders(path))


@dataclass(frozen=True)
class Resumed:
    """How attempt `attempt` began.

    `after`: the step whose state it had; None: that of no recorded step. `proof`: what showed it:
    content, load (a checkpoint that was read), declared (the job's own numbers), first (nothing
    came before) or nothing. `began`: by rank, the optimizers' state before its first update; `due`:
    by optimizer, what that state had to be (any of those recorded after step `after`). `after_of`:
    by rank, where the ranks make different numbers of steps, `after` in its own counting.
    """

    attempt: int
    after: int | None
    proof: str
    loaded: tuple[str, ...]
    newest_saved: int | None
    entries: Mapping[str, int] = field(default_factory=dict)
    began: Mapping[int, Optimizers] = field(default_factory=dict)
    due: Mapping[str, tuple[OptimizerState, ...]] = field(default_factory=dict)
    states: tuple[RecordedState, ...] = ()
    comparable: bool = True  # a digest of the newest checkpoint's state is on record
    saves_at_all: bool = False  # the undisturbed run has a finished checkpoint before its end
    # of the finished checkpoints that a thread wrote beside the steps, the newest: it may hold an
    # earlier step
    newest_in_background: int | None = None
    after_of: Mapping[int, int] = field(default_factory=dict)

    def after_on(self, rank: int) -> int:
        """The step of `rank` after which it went on."""
        return self.after_of.get(rank, self.after or 0)

    @property
    def early(self) -> bool:
        """Whether it went on from a later step than that of the newest finished checkpoint: from
        files of a save that had not ended.
        """
        saved = self.newest_saved
        return self.proof == "content" and saved is not None and (self.after or 0) > saved

    @property
    def elsewhere(self) -> dict[int, int]:
        """The ranks that went on from another step than the first one did, and from which."""
        if self.proof != "content" or self.after_of:
            return {}
        steps = {rank: self._whole_at(began) for rank, began in self.began.items()}
        return {
            rank: step
            for rank, step in sorted(steps.items())
            if rank != min(steps) and step is not None and step != self.after
        }

    def _whole_at(self, began: Optimizers) -> int | None:
        """The step after which all these optimizers were as they are in `began`, that of this
        attempt if it is one of several; None if there is none.
        """
        steps = {
            recorded.step
            for recorded in self.states
            if began
            and all(
                name in recorded.optimizers
                and (one.params, one.optimizer)
                == (recorded.optimizers[name].params, recorded.optimizers[name].optimizer)
                for name, one in began.items()
            )
        }
        return self.after if self.after in steps else max(steps, default=None)

    def steps_with(self, key: str, name: str, digest: str) -> list[int]:
        """The steps after which optimizer `name` had these parameters (`key` params) or this state
        (`key` optimizer).
        """
        return sorted(
            {
                recorded.step
                for recorded in self.states
                if name in recorded.optimizers and getattr(recorded.optimizers[name], key) == digest
            }
        )


@dataclass(frozen=True)
class CommittedSteps:
    """The steps that led to the end: by step and rank, the attempt and its record of the step."""

    steps: dict[int, dict[int, tuple[int, Step]]]
    # step, rank, attempt, first pass, second pass
    done_again: list[tuple[int, int, int, Step, Step]]
    resumed: list[Resumed]
    offsets: dict[int, int]
    # attempts with another number of processes than the first
    resized: frozenset[int] = frozenset()
    saves: tuple[FinishedCheckpoint, ...] = ()
    background_saves: tuple[FinishedCheckpoint, ...] = ()  # written by a thread beside the steps

    @property
    def last(self) -> int:
        return max(self.steps, default=0)

    def is_first(self, step: int, attempt: int) -> bool:
        """Whether `step` is the first one of an attempt that resumed."""
        return step == self.offsets.get(attempt, 0) + 1 and any(
            begun.attempt == attempt for begun in self.resumed
        )

    def number_of(self, step: Step, attempt: int) -> int:
        """The job's number of a step of `attempt`."""
        return step.number + (0 if step.declared else self.offsets.get(attempt, 0))

    def attempt_of(self, step: int) -> int:
        """The attempt that step `step` counts from: the first of its ranks'."""
        return min(attempt for attempt, _ in self.steps[step].values())

    @property
    def steps_done_again(self) -> int:
        """How many passes of a step, of all ranks together, another attempt had done before."""
        return len({(step, attempt) for step, _, attempt, _, _ in self.done_again})

    def states(self) -> list[RecordedState]:
        """The states before and behind every step."""
        return [
            recorded
            for number, ranks in self.steps.items()
            for rank, (_, step) in ranks.items()
            for recorded in _states_of_step(step, number, rank)
        ]

    @property
    def uneven(self) -> bool:
        """Whether the ranks make different numbers of steps."""
        last = {rank: number for number in sorted(self.steps) for rank in self.steps[number]}
        return len(set(last.values())) > 1


def resume_kinds(arms: Iterable[Arm]) -> frozenset[str]:
    """The kinds of files that every attempt read which read any part of a checkpoint and trained:
    without them there is none to go on from (a best model that was saved before is none). What is
    made before the first step is no part of a checkpoint. Empty if no attempt did.
    """
    needed: frozenset[str] | None = None
    for arm in arms:
        saves = [FinishedCheckpoint(one.step, one.paths) for one in checkpoints(arm) if one.step]
        read = reads(arm)
        for number, made in arm.attempts.items():
            trained = any(process.steps for process in made)
            loaded = (one.path for one in read if one.attempt == number)
            if trained and (kinds := _kinds_of(loaded, saves)):
                needed = kinds if needed is None else needed & kinds
    return needed or frozenset()


def path_of(
    arm: Arm, undisturbed: CommittedSteps | None = None, needed: frozenset[str] = frozenset()
) -> CommittedSteps:
    """Follow the attempts of `arm`; a later attempt overwrites the steps that it repeats.
    `undisturbed`: the path of the reference, whose states count too: a killed attempt may not have
    lived to record the one it left behind. `needed`: as `resume_kinds` gives them.
    """
    steps: dict[int, dict[int, tuple[int, Step]]] = {}
    again: list[tuple[int, int, int, Step, Step]] = []
    resumed: list[Resumed] = []
    offsets: dict[int, int] = {}
    states = undisturbed.states() if undisturbed is not None else []
    saves: list[FinishedCheckpoint] = []
    sizes = {
        number: max((process.world_size for process in processes), default=0)
        for number, processes in arm.attempts.items()
    }
    first = next((sizes[number] for number in sorted(sizes) if sizes[number]), 0)
    resized = frozenset(number for number, size in sizes.items() if size not in (0, first))
    saved, read = checkpoints(arm), reads(arm)
    in_background: list[FinishedCheckpoint] = []
    # kinds of files that an attempt went on from the newest by; what all attempts read, and nothing
    # that one did without
    enough = [needed]
    saves_at_all = undisturbed is not None and any(
        save.step < undisturbed.last for save in (*undisturbed.saves, *undisturbed.background_saves)
    )
    for number in sorted(arm.attempts):
        processes = arm.attempts[number]
        loaded = tuple(dict.fromkeys(one.path for one in read if one.attempt == number))
        begun = (
            _resumed((number, processes), loaded, states, (saves, enough, needed))
            if offsets
            else Resumed(number, 0, "first", (), None)
        )
        begun = replace(
            begun,
            saves_at_all=saves_at_all,
            newest_in_background=max((save.step for save in in_background), default=None),
        )
        if offsets and undisturbed is not None and undisturbed.uneven:
            begun = replace(begun, after_of=_by_rank(begun, processes))
        if offsets:
            resumed.append(begun)
        if begun.proof == "content" and begun.after and begun.after == begun.newest_saved:
            enough.append(_kinds_of(loaded, saves))
        offset = offsets[number] = begun.after or 0
        _overwrite(steps, again, processes, (number, sizes), begun)
        for process in processes:
            states += _states_of_process(
                process, begun.after_on(process.rank), resumed=bool(resumed)
            )
        for one in saved:
            if one.attempt == number and one.finished and offset + one.step:
                (in_background if one.overlapped else saves).append(
                    FinishedCheckpoint(offset + one.step, one.paths)
                )
    return CommittedSteps(
        steps, again, resumed, offsets, resized, tuple(saves), tuple(in_background)
    )


def without_trial_steps(arm: Arm, undisturbed: CommittedSteps) -> Arm:
    """`arm` without what a restarted process does before it trains: the undisturbed run began with
    steps of optimizers that it never used again (on a copy of the model, say), and an attempt that
    begins with the same goes on from a state on record after them.
    """
    first = [
        undisturbed.steps[number][min(undisturbed.steps[number])][1].who
        for number in sorted(undisturbed.steps)
    ]
    trial = next(
        (
            count
            for count in range(1, len(first))
            if not {*first[count - 1]} & {name for who in first[count:] for name in who}
        ),
        0,
    )
    if not trial or not all(first[:trial]):
        return arm
    states, resumed = undisturbed.states(), sorted(arm.attempts)[1:]

    def trained(process: Process) -> Process:
        alike = [step.who for step in process.steps[:trial]] == first[:trial] and len(
            process.steps
        ) > trial
        begun = process.steps[trial].optimizers_before if alike else {}
        mine = {
            name: state
            for name, state in begun.items()
            if alike and name in process.steps[trial].who
        }
        after = _matching(mine, process.steps[trial].who, states, None) if mine else None
        return _shortened(process, trial) if after is not None and after > trial else process

    return replace(
        arm,
        attempts={
            number: [trained(one) if number in resumed else one for one in arm.attempts[number]]
            for number in arm.attempts
        },
    )


def with_due_samples(
    arm: Arm, path: CommittedSteps, undisturbed: CommittedSteps, everywhere: bool
) -> tuple[Arm, CommittedSteps]:
    """`arm` and its path with the due names of samples wherever a step's batches hold the due
    tensors, or `everywhere`: a data set that a restart makes of what is left numbers rows anew.
    """
    due: dict[int, Step] = {}  # by the id of a step
    for attempt, processes in arm.attempts.items():
        for process in processes:
            for step in process.steps:
                ranks = undisturbed.steps.get(path.number_of(step, attempt), {})
                _, other = ranks.get(process.rank, (0, step))
                same = bool(step.inputs) and step.inputs == other.inputs
                if everywhere or (same and step.samples != other.samples):
                    due[id(step)] = replace(step, batches=other.batches)

    def named(step: Step) -> Step:
        return due.get(id(step), step)

    if not due:
        return arm, path
    steps = {
        number: {rank: (attempt, named(step)) for rank, (attempt, step) in ranks.items()}
        for number, ranks in path.steps.items()
    }
    again = [(n, rank, a, named(one), named(other)) for n, rank, a, one, other in path.done_again]
    return with_steps(arm, named), replace(path, steps=steps, done_again=again)


def _shortened(process: Process, trial: int) -> Process:
    """`process` without its first `trial` steps, and without the optimizers that did them."""
    gone = {name for step in process.steps[:trial] for name in step.who}

    def left(optimizers: Optimizers) -> Optimizers:
        return {name: state for name, state in optimizers.items() if name not in gone}

    def later(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**event, "after_step": max(0, event["after_step"] - trial)} for event in events]

    def trained(step: Step) -> Step:
        number = step.number if step.declared else step.number - trial
        return replace(
            step,
            number=number,
            optimizers=left(step.optimizers),
            optimizers_before=left(step.optimizers_before),
        )

    steps, epochs = (
        [trained(step) for step in process.steps[trial:]],
        [max(0, end - trial) for end in process.epochs],
    )
    return replace(
        process, steps=steps, saves=later(process.saves), files=later(process.files), epochs=epochs
    )


def _overwrite(
    steps: Any,
    again: Any,
    processes: list[Process],
    made: tuple[int, dict[int, int]],
    begun: Resumed,
) -> None:
    """Let an attempt replace earlier passes of its steps and record those in `again`. Steps after
    its last one are dropped, since their state was lost. `made`: the attempt, and how many
    processes each has; passes by another number are not compared.
    """
    attempt, sizes = made
    offset = begun.after or 0
    done: dict[int, dict[int, tuple[int, Step]]] = {}
    for process in processes:
        for step in process.steps:
            number = step.number + (0 if step.declared else begun.after_on(process.rank))
            done.setdefault(number, {})[process.rank] = (attempt, step)
    for number, ranks in done.items():
        for rank, (_, step) in ranks.items():
            before = steps.get(number, {}).get(rank)
            if before is not None and sizes[before[0]] == sizes[attempt]:
                again.append((number, rank, attempt, before[1], step))
    if done:
        for number in [
            number
            for number in steps
            if number > offset and number not in done and number > max(done)
        ]:
            del steps[number]
    for number, ranks in done.items():
        kept = {
            rank: entry
            for rank, entry in steps.get(number, {}).items()
            if number <= begun.after_on(rank)
        }
        steps[number] = {**kept, **ranks}


def _states_of_process(process: Process, offset: int, resumed: bool) -> list[RecordedState]:
    """The states that a process has on record; steps are those of the job. `resumed`: what it began
    with is to be proved, and proves nothing.
    """
    found = (
        []
        if process.start is None or resumed
        else [RecordedState(offset, BEFORE, process.start["optimizers"], rank=process.rank)]
    )
    for place, step in enumerate(process.steps):
        number = step.number + (0 if step.declared else offset)
        states = _states_of_step(step, number, process.rank)
        found += [
            recorded for recorded in states if place or not resumed or recorded.when != BEFORE
        ]
    for save in process.saves:
        if save.get("optimizers"):
            after = offset + save["after_step"]
            found.append(RecordedState(after, SAVED, save["optimizers"], rank=process.rank))
    return found


def _states_of_step(step: Step, number: int, rank: int) -> Iterator[RecordedState]:
    if any(state.params for state in step.optimizers_before.values()):
        yield RecordedState(number - 1, BEFORE, step.optimizers_before, step.who, rank)
    if any(state.params for state in step.optimizers.values()):
        yield RecordedState(number, AFTER, step.optimizers, rank=rank)


def _by_rank(begun: Resumed, processes: list[Process]) -> dict[int, int]:
    """By rank, the step in its own counting whose state it began with, where that is on record."""
    who = {process.rank: process.steps[0].who for process in processes if process.steps}
    after = {
        rank: _matching(
            state,
            who.get(rank, ()),
            [recorded for recorded in begun.states if recorded.rank == rank],
            None,
        )
        for rank, state in begun.began.items()
    }
    return {rank: step for rank, step in after.items() if step is not None}


def _resumed(
    made: tuple[int, list[Process]],
    loaded: tuple[str, ...],
    states: list[RecordedState],
    saved: tuple[list[FinishedCheckpoint], list[frozenset[str]], frozenset[str]],
) -> Resumed:
    """How the attempt `made` (number, processes) began, which read the files `loaded`. `saved`: as
    `_newest` takes it.
    """
    attempt, processes = made
    newest = _newest(*saved, loaded)
    # files that are never saved together: a cache is filled at moments of its own
    newest_of = _kinds_of(loaded, saved[0]) if newest is None else frozenset()
    began = {process.rank: state for process in processes if (state := _began(process))}
    declared = [
        process.steps[0].number - 1
        for process in processes
        if process.steps and process.steps[0].declared
    ]
    base = Resumed(attempt, None, "nothing", loaded, newest, began=began, states=tuple(states))
    if not began:
        return _at(base, min(declared) if declared else None, "declared" if declared else "nothing")
    base = replace(base, entries=_entries(processes))
    leader = next(process for process in processes if process.rank == min(began))
    who = leader.steps[0].who if leader.steps else ()
    after = _matching(began[leader.rank], who, states, newest)
    if after is not None:
        alone = any(_last_with(frozenset({kind}), saved[0]) == after for kind in newest_of)
        return _at(replace(base, newest_saved=after if alone else newest), after, "content")
    base = replace(base, comparable=any(recorded.step == newest for recorded in states))
    read = [_last_with(frozenset({kind}), saved[0]) or 0 for kind in newest_of]
    if loaded and (newest is not None or any(read)):
        return _at(base, max(read) if newest is None else newest, "load")
    return base


def _newest(
    saves: list[FinishedCheckpoint],
    enough: list[frozenset[str]],
    needed: frozenset[str],
    loaded: tuple[str, ...],
) -> int | None:
    """The step of the newest finished checkpoint, of those that hold all kinds of files that were
    read: a file that the job writes more often, or beside its checkpoints (the best model), is
    none. Of the kinds that were `enough` for an earlier attempt, any further one is beside the
    checkpoint (an earlier phase's). Those that every attempt `needed` count, read or not.
    """
    kinds = _kinds_of(loaded, saves) | needed
    newest = _last_with(kinds, saves)
    others = [_last_with(few, saves) or 0 for few in enough if few and few < kinds]
    return max(newest or 0, min(others)) if others else newest


def _kinds_of(loaded: Iterable[str], saves: list[FinishedCheckpoint]) -> frozenset[str]:
    """The kinds of the files `loaded` that are parts of `saves`."""
    return frozenset(family(path) for path in loaded) & frozenset(
        kind for save in saves for kind in save.families
    )


def _last_with(kinds: frozenset[str], saves: list[FinishedCheckpoint]) -> int | None:
    return max((save.step for save in saves if save.families >= kinds), default=None)


def _began(process: Process) -> Optimizers:
    """The state before the first update that counts; of a process that did none, that of its
    start.
    """
    if process.steps and any(state.params for state in process.steps[0].optimizers_before.values()):
        return process.steps[0].optimizers_before
    return process.start["optimizers"] if process.start is not None else {}


def _entries(processes: Iterable[Process]) -> dict[str, int]:
    """By optimizer, for how many parameters it had any state when the attempt began."""
    start = next((process.start for process in processes if process.start is not None), None) or {}
    if start.get("entries_of"):
        return dict(start["entries_of"])
    return {} if start.get("entries") is None else {"": start["entries"]}


def _at(resumed: Resumed, after: int | None, proof: str) -> Resumed:
    """`resumed` after step `after`, with what each optimizer's state had to be then."""
    due: dict[str, tuple[OptimizerState, ...]] = {}
    there = [recorded for recorded in resumed.states if recorded.step == after]
    # a save may hold other weights than those that are trained (an average)
    trained = {name for one in there if one.when == BEFORE for name in one.optimizers}
    for recorded in there:
        if recorded.when != SAVED or not trained & recorded.optimizers.keys():
            for name, state in recorded.optimizers.items():
                due[name] = (*due.get(name, ()), state)
    return replace(resumed, after=after, proof=proof, due=due)


def _matching(
    began: Optimizers, who: tuple[str, ...], states: list[RecordedState], expected: int | None
) -> int | None:
    """The step whose state `began` is; None if no optimizer's parameters are those of any step.

    That of a later step than the newest checkpoint's if every optimizer is as it was then: a save
    may be whole before its last file is. Else that of the newest checkpoint if the optimizers that
    step first are as they were then: what the others hold may be dead (written anew before their
    turn). Else the step with most in common; then that which the same optimizers follow; then the
    last. An optimizer whose parameters never change says nothing.
    """
    seen: dict[str, set[str]] = {}
    for recorded in states:
        for name, state in recorded.optimizers.items():
            seen.setdefault(name, set()).add(state.params)
    telling = {name for name in began if len(seen.get(name, ())) > 1} or set(began)
    live = {name for name in who if name in began and began[name].params} & telling
    best: tuple[bool, bool, int, int, bool, bool, bool, int] | None = None
    for recorded in states:
        shared = [
            (state, recorded.optimizers[name], name)
            for name, state in began.items()
            if name in recorded.optimizers and state.params
        ]
        alike = sum(one.params == other.params for one, other, name in shared if name in telling)
        if not alike:
            continue
        same_states = sum(one.optimizer == other.optimizer for one, other, _ in shared)
        whole = {
            name
            for one, other, name in shared
            if (one.params, one.optimizer) == (other.params, other.optimizer)
        }
        later = expected is not None and recorded.step > expected
        rank = (
            later and {name for name in began if began[name].params} <= whole,
            recorded.step == expected and bool(live) and live <= whole,
            alike,
            same_states,
            bool(who) and recorded.who == who,
            recorded.step == expected,
            recorded.when == BEFORE,
            recorded.step,
        )
        best = rank if best is None or rank > best else best
    return None if best is None else best[-1]


def _with_folders(path: str) -> list[str]:
    """The kinds of a file and of the folders that it lies in: DCP reads a folder."""
    parts = family(path).split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1) if any(parts[:count])]


def family(path: str) -> str:
    """The kind of a checkpoint: its path without numbers and without the suffixes of an unfinished
    write.
    """
    name = path.removesuffix(".tmp").removesuffix(".part").removesuffix(".partial")
    return _DIGITS.sub("#", name.replace(".tmp", ""))
