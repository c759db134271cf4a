"""Replays the journals: what was in the checkpoint folder, line by line, and what retention was
allowed to remove.

After each acknowledged save, retention removes what is older than the newest max(2, keep) verified
checkpoints, but for one that it may spare (`held_from`). So journals and
configuration decide for every `retired` line whether it was allowed; one that was not does not
excuse a missing checkpoint.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

from ecrl_cli.config.strategies import may_hold
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.messages import held_from

_STEP = re.compile(r"step_([0-9]{8})")
# the call's name in StorageError: the files have their name, but its durability is unknown
_DIRECTORY_SYNC = "fsync of the directory"

Live = dict[int, CheckpointLine]


@dataclass(frozen=True)
class Overreach:
    """A `retired` line that retention's rule does not allow; `newer`: how many newer checkpoints
    existed. `held`: there were enough, but this one was to be spared for the rest of the run.
    """

    line: CheckpointLine
    newer: int
    held: bool = False


@dataclass
class Folder:
    """The state of the checkpoint folder after the journal lines read so far.

    `live`: by step, what is committed and neither rightly retired nor rejected. `retired`: by step,
    the line that rightly retired it. `gone`: the steps recorded as retired, rightly or not.
    `superfluous`: by step, the attempt in which retention was first allowed to remove it. A save
    that failed after its files had their name may have left a checkpoint that retention counts: it
    counts here too. `held_from`: of the attempt being read; `holds`: what is held must stay.
    """

    keep: int
    held_from: int | None = None
    holds: bool = False
    live: Live = field(default_factory=dict)
    superfluous: dict[int, int] = field(default_factory=dict)
    retired: Live = field(default_factory=dict)
    overreached: list[Overreach] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    _spared: int | None = None
    _order: list[int] = field(default_factory=list)  # the steps that retention may count, ascending

    def apply(self, line: CheckpointLine) -> None:
        step = line.global_step
        if line.event == "committed":
            self.live[step] = line
            self.gone.discard(step)
            self.superfluous.pop(step, None)
            self.retired.pop(step, None)
            self._count(step, line.attempt)
        elif (
            line.event == "failed"
            and _DIRECTORY_SYNC in (line.reason or "")
            and step not in self.live
        ):
            self._count(step, line.attempt)
        elif line.event == "retired":
            self.gone.add(step)
            newer = len(self._order) - bisect_right(self._order, step)
            held = self.holds and step == self._held()
            if newer < self.keep or held:
                self.overreached.append(Overreach(line, newer, held and newer >= self.keep))
            if newer >= self.keep:
                self.remove(step)
                self.retired[step] = line

    def remove(self, step: int) -> None:
        """Stop counting a checkpoint that was retired or quarantined."""
        self.live.pop(step, None)
        if self._has(step):
            self._order.remove(step)

    def before(self, step: int) -> str | None:
        """The commit of the newest live checkpoint that is older than `step`."""
        older = self._order[: bisect_left(self._order, step)]
        return next(
            (self.live[each].commit_sha256 for each in reversed(older) if each in self.live), None
        )

    def _count(self, step: int, attempt: int) -> None:
        if not self._has(step):
            insort(self._order, step)
        spared, self._spared = self._spared, self._held()
        if len(self._order) > self.keep:
            for older in (min(step, self._order[-self.keep - 1]), spared):
                if older is not None and older < self._order[-self.keep] and older != self._spared:
                    self.superfluous.setdefault(older, attempt)

    def _held(self) -> int | None:
        """The checkpoint that is spared now."""
        at = bisect_left(self._order, self.held_from or 0)
        return self._order[at] if self.held_from and at < len(self._order) else None

    def _has(self, step: int) -> bool:
        at = bisect_left(self._order, step)
        return at < len(self._order) and self._order[at] == step


@dataclass(frozen=True)
class CheckpointHistory:
    """By attempt: the checkpoints that it could choose from (`found`), those left after its
    rejections (`left`), and the steps recorded as retired (`gone`).

    `end`: after the last line. `predecessors`: by commit, that of the newest older checkpoint that
    was there at its first line.
    """

    found: dict[int, Live]
    left: dict[int, Live]
    gone: dict[int, frozenset[int]]
    end: Folder
    predecessors: dict[str, str | None]


def checkpoint_history(records: RunRecords) -> CheckpointHistory:
    """Replay the journals of all attempts on record, in order, with the rejections at each
    launch.
    """
    found: dict[int, Live] = {}
    left: dict[int, Live] = {}
    gone: dict[int, frozenset[int]] = {}
    predecessors: dict[str, str | None] = {}
    folder = Folder(max(2, records.stored.config.checkpoint.keep))
    config, one_session = records.stored.config, len(records.sessions) == 1
    folder.holds = config.reference == "always" and one_session
    for a in records.attempts:
        # a later command may have asked for another `reference` than an earlier one
        if may_hold(config) and (folder.holds or not one_session):
            folder.held_from = held_from(a.attempt, lambda attempt: records.logs(attempt).order)
        found[a.attempt] = dict(folder.live)
        for rejected in a.rejected:
            folder.remove(step_of(rejected.path))
        left[a.attempt], gone[a.attempt] = dict(folder.live), frozenset(folder.gone)
        for line in records.logs(a.attempt).checkpoints.events:
            if line.event == "committed" and line.commit_sha256:
                predecessors.setdefault(line.commit_sha256, folder.before(line.global_step))
            folder.apply(line)
    return CheckpointHistory(found, left, gone, folder, predecessors)


def step_of(path: str) -> int:
    """The step in the name of a checkpoint, quarantined or not; -1 if it names none."""
    match = _STEP.search(path)
    return int(match[1]) if match else -1
