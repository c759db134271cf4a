"""Planned failures inside the job: at one step, of one rank, in one attempt, at one moment; each at
most once.
"""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ecrl.recording import Recording

PLAN = "ECRL_STRIKES"
MOMENTS = ("before", "backward", "optimizer", "save")
# of one file of a save: before it is opened or named, emptied, half written, written
POINTS = ("before", "empty", "torn", "after")
EXIT_CODE = 66


class PlannedFailure(Exception):
    """Carries the exception that the job is to see."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def _raise_error() -> None:
    raise PlannedFailure(RuntimeError("planned by ecrl audit"))


def _run_out_of_memory() -> None:
    import torch

    error = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    raise PlannedFailure(error("CUDA out of memory. (planned by ecrl audit)"))


# By kind, what is done to this process.
ACTS: Dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "exit": lambda: os._exit(EXIT_CODE),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": _raise_error,
    "oom": _run_out_of_memory,
}


class Faults:
    """`entries`: {kind, step, moment, rank, index, point}. Steps are of the whole job: an attempt
    that goes on after step s begins with s + 1.

    `point` (of the moment save): FILE:HOW, where in a save. FILE is a path below the arm's folder,
    or its last part; * stands for anything, # for digits. HOW is one of POINTS. Such a failure
    happens in the first save from `step` on that has the file.
    """

    def __init__(self, recording: Recording, entries: List[Dict[str, Any]]) -> None:
        self._recording, self._entries = recording, entries
        self.offset = 0  # the step after which this attempt goes on
        # whether files that were opened for writing are closed; set where there are any
        self.look: Optional[Callable[[], None]] = None

    @classmethod
    def from_environment(cls, recording: Recording) -> "Faults":
        try:
            entries = json.loads(os.environ.get(PLAN, "") or "[]")
        except ValueError:
            entries = []
        due = [entry for entry in entries if entry.get("attempt", 0) <= recording.attempt]
        # A job that restarts itself may lose an attempt to something else: what did not happen in
        # it happens in the next one.
        late = any(entry.get("attempt", 0) < recording.attempt for entry in due)
        carried_out = _carried_out(recording) if late else set()
        return cls(recording, [entry for entry in due if entry.get("index", 0) not in carried_out])

    def resumed_after(self, state: Dict[str, Dict[str, str]]) -> Optional[int]:
        """The step of an earlier attempt after which the optimizers' parameters and states were
        these; None where none has them on record, or this is the first. Of several the one that has
        most of them, and of those the last.
        """
        if self._recording.attempt == 0:
            return None
        found: List[Tuple[int, int]] = []
        for step, earlier in self._earlier():
            alike = sum(
                parts[key] == earlier.get(name, {}).get(key)
                for name, parts in state.items()
                for key in ("params", "optimizer")
            )
            if any(
                parts["params"] == earlier.get(name, {}).get("params")
                for name, parts in state.items()
            ):
                found.append((alike, step))
        if not found:
            return None
        self.offset = max(found)[1]
        return self.offset

    def _earlier(self) -> List[Tuple[int, Dict[str, Dict[str, str]]]]:
        """(step of the job, state by optimizer) of every step that earlier attempts recorded, of
        any rank, and the undisturbed run: a killed attempt may not have lived to record what it
        left.
        """
        seen: List[Tuple[int, Dict[str, Dict[str, str]]]] = []
        for path in _earlier_files(self._recording) + _undisturbed_files(self._recording):
            seen += _steps_of(path)
        return seen

    def before_step(self, step: int) -> None:
        if self.look is not None:
            self.look()
        self._inject("before", step)

    def in_backward(self, step: int, optimizers: List[Any]) -> None:
        """When half of the gradients are there. A job whose optimizer is not known yet fails before
        backward.
        """
        entry = self._due("backward", step)
        if entry is None:
            return
        parameters = [
            p for o in optimizers for g in o.param_groups for p in g["params"] if p.requires_grad
        ]
        if not parameters:
            self._carry_out(entry, step)
            return
        handle: List[Any] = []

        def inject(gradient: Any) -> None:
            handle[0].remove()
            try:
                self._carry_out(entry, step)
            except PlannedFailure as planned:
                raise planned.error from None

        handle.append(parameters[len(parameters) // 2].register_hook(inject))

    def in_optimizer(self, step: int) -> None:
        """The parameters are updated, nothing of it is recorded or known to the job yet."""
        self._inject("optimizer", step)

    def in_save(self, steps: int, aside: bool = False) -> Optional[Dict[str, Any]]:
        """The failure that is due in the save after `steps`, at no point that is named: its file
        will be torn. `aside`: another thread saves, and training may have gone on since.
        """
        entry = self._due("save", steps)
        while entry is None and aside and steps > 0:
            steps -= 1
            entry = self._due("save", steps)
        return {**entry, "how": "torn"} if entry is not None else None

    def at_file(
        self,
        path: str,
        points: Tuple[str, ...],
        steps: int,
        named: bool = False,
        star: bool = True,
    ) -> Optional[Dict[str, Any]]:
        """The failure that is due at one of `points` of the file `path` (relative to the arm's
        folder), with its `how`; it is no longer due then. `named`: only one that calls the file by
        its name, without wildcards. `star`: also one for a name that is all random, `*`.
        """
        if not self._entries:
            return None
        rank = self._recording.rank
        for entry in self._entries:
            pattern, _, how = entry.get("point", "").rpartition(":")
            if (
                how in points
                and entry["step"] <= steps + self.offset
                and entry["rank"] == rank
                and matches(path, pattern)
                and not (named and set("*#") & set(pattern.rsplit("/", 1)[-1]))
                and (star or pattern.rsplit("/", 1)[-1] != "*")
            ):
                self._entries.remove(entry)
                return {**entry, "how": how}
        return None

    def carry_out_inside(self, entry: Dict[str, Any], steps: int, path: str) -> None:
        """The file `path` is as planned."""
        self._carry_out(entry, steps, path=path, how=entry["how"])

    def at_save(self, steps: int) -> None:
        """Before a save whose files are not known by name."""
        self._inject("save", steps)

    def _inject(self, moment: str, step: int) -> None:
        entry = self._due(moment, step)
        if entry is not None:
            self._carry_out(entry, step)

    def _due(self, moment: str, step: int) -> Optional[Dict[str, Any]]:
        if not self._entries:
            return None
        rank = self._recording.rank
        for entry in self._entries:
            if (
                entry["moment"] == moment
                and entry["step"] == step + self.offset
                and entry["rank"] == rank
                and not entry.get("point")
            ):
                self._entries.remove(entry)
                return entry
        return None

    def _carry_out(self, entry: Dict[str, Any], step: int, **more: Any) -> None:
        known = {
            "index": entry.get("index", 0),
            "kind": entry["kind"],
            "moment": entry["moment"],
            "step": step + self.offset,
        }
        self._recording.write("strike", **known, **more)
        act = ACTS.get(entry["kind"])
        if act is not None:
            act()


def matches(path: str, pattern: str) -> bool:
    """Whether `path`, or its last part, is what `pattern` says: * stands for anything, # for
    digits.
    """
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\#", r"\d+").replace("#", r"\d+")
    return bool(re.fullmatch(expression, path) or re.fullmatch(expression, path.rsplit("/", 1)[-1]))


def _carried_out(recording: Recording) -> Set[int]:
    """The failures, by index, that earlier attempts have on record."""
    found: Set[int] = set()
    for path in _earlier_files(recording):
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if '"type":"strike"' in line:
                    found.add(int(json.loads(line)["index"]))
    return found


def _earlier_files(recording: Recording) -> List[str]:
    """The records of all earlier attempts, of any rank."""
    found: List[str] = []
    for attempt in range(recording.attempt):
        folder = os.path.join(recording.folder, "attempt-%02d" % attempt)
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        found += [os.path.join(folder, name) for name in names if name.endswith(".jsonl")]
    return found


def _undisturbed_files(recording: Recording) -> List[str]:
    """The records of the undisturbed run, which lies beside the arm."""
    folder = os.path.join(os.path.dirname(os.path.abspath(recording.folder)), "ref", "attempt-00")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names if name.endswith(".jsonl")]


def _steps_of(path: str) -> List[Tuple[int, Dict[str, Dict[str, str]]]]:
    steps: List[Tuple[int, Dict[str, Dict[str, str]]]] = []
    offset, told = 0, {}  # type: int, Dict[str, Dict[str, str]]
    with open(path, encoding="utf-8", errors="replace") as lines:
        for text in lines:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # torn by a death
            kind = line.get("type")
            if kind == "start":
                offset = line.get("resumed_after") or 0
                steps.append((offset, line.get("objects", {})))
            elif kind == "step":
                before = line.get("before") or {}
                told = {**told, **before.get("objects", {})}
                number = line["step"] + (0 if line.get("declared") else offset)
                if "objects" in before and not line.get("declared"):
                    steps.append((number - 1, told))
                told = line.get("objects") or told
                if line.get("objects"):
                    steps.append((number, told))
            elif kind == "save" and line.get("objects"):
                steps.append((line["after_step"] + offset, line["objects"]))
    return steps
