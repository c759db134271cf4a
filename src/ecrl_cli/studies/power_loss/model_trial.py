"""One cell of the matrix: a workload under one write mode and one fault model, with a power loss
after every call.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.names import REJECTED_PREFIX, STAGE_PREFIX, STEP_NAME, TRASH_PREFIX
from ecrl_cli.checkpoint.store.catalog import newest_valid
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, verify_checkpoint
from ecrl_cli.checkpoint.store.synthetic import RUN_ID
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.storage.memory_fs import Link, MemoryFolder, Tree
from ecrl_cli.studies.power_loss.model_disk import MARK, Forest, ModelDisk
from ecrl_cli.studies.power_loss.model_invariants import RecoveryOracle, outcome
from ecrl_cli.studies.power_loss.workloads import ROOT, WorkloadRun

OUTCOMES = (
    "new",
    "previous",
    "lost_ack",
    "lost_all",
    "detected",
    "empty_ok",
    "silent_wrong",
    "untyped",
    "hung",
)
LOST = ("lost_ack", "lost_all")
NEVER = ("silent_wrong", "untyped", "hung")
_HARM = {"lost_ack": 1, "lost_all": 2, **dict.fromkeys(NEVER, 3)}  # all other outcomes: 0
_EXAMPLES = 3
# prefixes of names worth mentioning in the description of a state
_TELLING = ("step_", STAGE_PREFIX, TRASH_PREFIX, REJECTED_PREFIX)


def broken(mode: str, model: str, found: str) -> bool:
    """Whether `mode` promises that `found` does not happen under `model`."""
    loses = (mode, model) in (
        ("unsafe", "O"),
        ("unsafe", "X"),
        ("atomic_nodirsync", "O"),
        ("atomic_nodirsync", "X"),
    )
    return found in NEVER or found == "half" or (found in LOST and not loses)


def whole_commits(mode: str, model: str) -> bool:
    """Whether `mode` promises under `model` that a checkpoint with a whole commit record is
    whole.
    """
    return model == "P" or (model == "O" and mode != "unsafe")


@dataclass
class StateCounts:
    """Results of a cell's states. `calls`: after how many calls the power may fail; `exhausted`:
    moments with every state tried; `deepest`: the most acknowledged steps, newest first, lost in
    one state.
    """

    moments: int = 0
    exhausted: int = 0
    reachable: int = 0
    built: int = 0
    deepest: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Limits:
    """`states`: tried per moment. `second`: states from which recovery itself is interrupted."""

    states: int
    second: int


class ModelTrial:
    """A recorded workload with its disk and its oracle."""

    def __init__(
        self,
        workload_run: WorkloadRun,
        model: str,
        judge: RecoveryOracle,
        limits: Limits,
        rng: random.Random,
    ) -> None:
        self.workload_run, self.model, self.judge, self.limits, self.rng = (
            workload_run,
            model,
            judge,
            limits,
            rng,
        )
        self.forest: Forest = judge.forest
        self.counts = StateCounts()
        self.seen: dict[tuple[int, int, int], str] = {}
        self._damaged = judge.halves(self.forest.plant(workload_run.begins_with))

    def judged(self) -> Iterator[tuple[int, str]]:
        """Every state of every moment, once each: (calls made, outcome). Updates the counts."""
        disk = ModelDisk(
            self.forest, self.workload_run.start, self.model, self.limits.states, self.rng
        )
        for calls in range(len(self.workload_run.fs.log) + 1):
            if calls:
                disk.take(self.workload_run.fs.log[calls - 1])
            acked, begun = (
                newest(self.workload_run.acked, calls),
                newest(self.workload_run.begun, calls),
            )
            states = disk.states()
            self.counts.moments += 1
            self.counts.exhausted += states.whole
            self.counts.reachable += states.total
            self.counts.built += len(states.numbers)
            for state in states.numbers:
                if (key := (state, acked, begun)) not in self.seen:
                    self.seen[key] = found = self._judge(state, acked, begun)
                    self._count(calls, state, found)
                    yield calls, found

    def _judge(self, state: int, acked: int, begun: int) -> str:
        recovered = self.judge.recovered(state)
        found = outcome(recovered, acked, begun)
        if found in LOST:
            lost = {
                step for _, step in self.workload_run.acked if (recovered.step or 0) < step <= acked
            }
            self.counts.deepest = max(self.counts.deepest, len(lost))
        if (
            whole_commits(self.workload_run.mode, self.model)
            and not broken(self.workload_run.mode, self.model, found)
            and self.judge.halves(state) - self._damaged
        ):
            return "half"
        return found

    def _count(self, calls: int, state: int, found: str) -> None:
        self.counts.outcomes[found] += 1
        if (
            broken(self.workload_run.mode, self.model, found)
            and len(self.counts.examples) < _EXAMPLES
        ):
            self.counts.examples.append(f"{found} {self.moment(calls)}: {self.described(state)}")

    def moment(self, calls: int) -> str:
        return (
            f"after call {calls} of {len(self.workload_run.fs.log)}"
            f" ({shown(self.workload_run, calls - 1)})"
            if calls
            else "before the first call"
        )

    def described(self, state: int) -> str:
        """The content of checkpoints/, and recovery's verdict on it."""
        root = self.forest.child(state, ROOT.name)
        if root is None:
            return "checkpoints/ is not there"
        found = self.judge.recovered(state)
        names = [
            (name, number) for name, number in self.forest.names(root) if name.startswith(_TELLING)
        ]
        listed = (
            MARK.sub("", ", ".join(name + sizes(self.forest, number) for name, number in names))
            or "no checkpoint"
        )
        refused = "; ".join(f"{name} refused at {layer}" for name, layer in found.rejected)
        return (
            f"holds {listed}"
            + (f"; {refused}" if refused else "")
            + f"; recovered {found.name or 'nothing'}"
        )

    def second(self) -> dict[str, Any]:
        """Interrupt recovery after each of its calls, from states in which it acts differently:
        outcomes and their number.

        What the first loss has left is durable, so no mode may lose any of it now.
        """
        starts: dict[object, tuple[int, int, int]] = {}
        for state, acked, begun in self.seen:
            starts.setdefault((self._sight(state), acked, begun), (state, acked, begun))
        chosen = list(starts.values())
        if len(chosen) > self.limits.second:
            chosen = [chosen[0], *self.rng.sample(chosen[1:], self.limits.second - 1)]
        counts: Counter[str] = Counter()
        examples: list[str] = []
        for state, acked, begun in chosen:
            for calls, found, after in self._second_from(state, acked, begun):
                counts[found] += 1
                if _HARM.get(found, 0) > _HARM.get(self.seen[state, acked, begun], 0):
                    counts["worse"] += 1
                    examples.append(
                        f"{found} after call {calls} of a recovery from: {self.described(state)};"
                        f" now {self.described(after)}"
                    )
        return {
            "starts": len(starts),
            "run": len(chosen),
            "outcomes": dict(counts),
            "examples": examples[:_EXAMPLES],
        }

    def _second_from(self, state: int, acked: int, begun: int) -> Iterator[tuple[int, str, int]]:
        tree = self.forest.tree(state)
        assert isinstance(tree, dict)
        workload_run = WorkloadRun(
            self.workload_run.mode,
            self.workload_run.single,
            self.workload_run.seed,
            self.workload_run.make,
        )
        workload_run.opened(tree)
        workload_run.recover(2)
        workload_run.store.close()
        disk = ModelDisk(self.forest, workload_run.start, self.model, self.limits.states, self.rng)
        seen = {state}
        for calls, op in enumerate(workload_run.fs.log, 1):
            disk.take(op)
            for after in disk.states().numbers:
                if after not in seen:
                    seen.add(after)
                    yield calls, outcome(self.judge.recovered(after), acked, begun), after

    def _sight(self, state: int) -> object:
        """The facts that recovery's calls depend on: each checkpoint's verdict, and the names of
        everything else.
        """
        root = self.forest.child(state, ROOT.name)
        if root is None:
            return None
        refused = dict(self.judge.recovered(state).rejected)
        return tuple(
            (
                (name, refused.get(name, ""))
                if STEP_NAME.match(name)
                else (name, tuple(inner for inner, _ in self.forest.names(number)))
            )
            for name, number in self.forest.names(root)
        )

    def in_folders(self, count: int, folder: Path) -> dict[str, Any]:
        """Rebuild a sample of the states in `folder` and recover there without caches: their
        number, and those with a different result.
        """
        states = sorted({state for state, _, _ in self.seen})
        chosen = states if len(states) <= count else self.rng.sample(states, count)
        different = []
        for number, state in enumerate(chosen):
            run = folder / f"{number:06d}"
            rebuild(self.forest.tree(state), run)
            answer, model = recovered_from(run), self.judge.recovered(state)
            if answer != (model.name, model.rejected):
                different.append(f"{self.described(state)}; in a folder {answer}")
            clear(run)
        return {
            "rebuilt": len(chosen),
            "different": different[:_EXAMPLES],
            "differing": len(different),
        }


def newest(noted: list[tuple[int, int]], calls: int) -> int:
    return max((step for at, step in noted if at <= calls), default=0)


def recovered_from(run: Path) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The checkpoint that the store's recovery with the real integrity check chooses in a real
    folder, and those that it rejects.
    """
    fs, config = PosixFs(), IntegrityConfig(run_id=RUN_ID)
    choice = newest_valid(fs, run / ROOT.name, lambda path: verify_checkpoint(path, config, fs))
    rejected = tuple((Path(each.path).name, each.layer) for each in choice.rejected)
    return choice.report.path.name if choice.report else "", rejected


def rebuild(tree: Tree, path: Path) -> None:
    if isinstance(tree, bytes):
        path.write_bytes(tree)
    elif isinstance(tree, Link):
        path.symlink_to(tree.target)
    else:
        path.mkdir()
        for name, below in tree.items():
            rebuild(below, path / name)


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for below in path.iterdir():
            clear(below)
        path.rmdir()
    else:
        path.unlink()


def sizes(forest: Forest, number: int) -> str:
    """Sizes of a folder's files, or of the file."""
    thing = forest[number]
    if isinstance(thing, bytes):
        return f" {len(thing)}{' zeros' if thing and not any(thing) else ''}"
    return (
        ""
        if isinstance(thing, Link)
        else "/{" + ", ".join(name + sizes(forest, below) for name, below in thing) + "}"
    )


def shown(workload_run: WorkloadRun, place: int) -> str:
    """A call, with the name that its node had then, without the random suffix."""
    log = workload_run.fs.log
    op = log[place]
    names = {
        number: name
        for node in workload_run.start.values()
        if isinstance(node, MemoryFolder)
        for name, number in node.names.items()
    }
    for earlier in log[: place + 1]:
        if earlier.kind in ("mkdir", "create", "symlink", "rename"):
            names[earlier.node] = earlier.target[1] or earlier.name
    text = (
        f"rename {op.name} to {op.target[1]}"
        if op.kind == "rename"
        else f"{op.kind} {names.get(op.node, 'the run directory')}"
    )
    return MARK.sub("", text)
