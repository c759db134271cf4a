"""The recorder of one process: follows it from batch to batch and from step to step. What calls it is patched into torch (hooks.py, saves.py)."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

from ecrl import digests
from ecrl.faults import Faults, PlannedFailure
from ecrl.recording import Recording, current

DIGESTS = "ECRL_DIGESTS"  # how often, in steps, parameters and optimizer state are digested; 0: never


class StepRecorder:
    """Follows this process from batch to batch and from step to step.

    A batch belongs to the backward pass that consumes it: of the loader that was asked last (validation loaders are asked in between) the oldest one
    not yet consumed that the job still holds. Frameworks fetch one batch ahead; a job that skips batches after a restart lets go of them.
    An optimizer step ends with the outermost call of `step`; further calls before the next backward (several optimizers) amend it, and those from
    inside backward (an optimizer per parameter) are one step when backward ends.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.faults = Faults.from_environment(recording)
        self.every = int(os.environ.get(DIGESTS, "1") or 0)
        self.steps = 0
        # Weakly: a model that the recorder kept would keep its memory and its process group; and the state of an optimizer that the job has let go
        # of is no longer the job's.
        self._optimizers: List["weakref.ref[Any]"] = []
        self._models: List["weakref.ref[Any]"] = []
        self.depth = 0  # of nested optimizer.step calls
        self.height = 0  # of the call stack at the outermost of them
        self.dummy = False  # the step under way is none of the training
        self.closure = False  # the step under way computes its loss itself
        self.waiting = False  # the step under way has a closure, whose backward is still to come
        self.backward_depth = 0
        self.stepped_in_backward = False
        self.amend = False  # no backward since the last step
        self.losses: List[Any] = []
        self.backwards = 0
        self.queues: Dict[int, Deque[Any]] = {}
        self.asked: Optional[int] = None
        self.batches = 0
        self.consumed: List[int] = []
        self.began = time.monotonic()
        self.started = False
        self.scale: Optional[float] = None
        self.digested = -1  # the step after which the state was digested last
        self.saves: Dict[str, Dict[str, Any]] = {}  # finished checkpoints, by path: the step after which it was written
        self.thread = 0  # that trains

    @property
    def optimizers(self) -> List[Any]:
        """Those that have stepped and that the job still holds, in the order of their first steps."""
        return alive(self._optimizers)

    # -- batches

    def fetched(self, loader: int, ids: Optional[List[int]], value: Any) -> None:
        self.batches += 1
        leaves = list(digests.tensors_in(value))
        rows = digests.rows(leaves) if ids is None else None
        self.recording.write("batch", n=self.batches, loader=loader, ids=ids, hash=digests.of_named(leaves), rows=rows)
        self.queues.setdefault(loader, deque()).append((self.batches, [weakref.ref(leaf) for _, leaf in leaves if hasattr(leaf, "detach")]))
        self.asked = loader

    def exhausted(self, loader: int) -> None:
        self.asked = loader
        self.recording.write("epoch", loader=loader, after_step=self.steps)

    # -- backward

    def backward_begins(self, loss: Any) -> None:
        self.backward_depth += 1
        if self.backward_depth > 1:
            return
        if not self.closure:
            self.depth = 0  # a step under way failed and the job goes on: torch calls no post hook then
        self.amend = False
        self.backwards += 1
        queue = self.queues.get(self.asked) if self.asked is not None else None
        if queue:
            self.consumed.append(consumed_from(queue, on_device(loss)))
            for loader in [key for key in self.queues if key != self.asked and len(self.queues[key]) > 1]:
                del self.queues[loader]  # a validation loader: nothing of it is trained on
        self.losses.append(loss.detach() if hasattr(loss, "detach") else loss)  # the value alone: no graph is kept
        if self.waiting:
            self.waiting = False
            self.in_front(True)
        self.faults.in_backward(self.next_step(), self.optimizers)

    def backward_ends(self) -> None:
        self.backward_depth -= 1
        if self.backward_depth == 0 and self.stepped_in_backward:
            self.stepped_in_backward = False
            self.step_done()

    # -- steps

    def next_step(self) -> int:
        return self.steps + 1

    def before_step(self, optimizer: Any, closure: bool = False) -> None:
        """`closure`: forward and backward happen inside the step, as in Lightning: what is due before the update waits for them."""
        height = stack_height()
        if self.depth and height <= self.height:
            self.depth = 0  # not inside the step under way: that one failed and the job goes on
        self.depth += 1
        if self.depth > 1:
            if not self.dummy:
                self.know(optimizer)
            return
        self.height, self.closure = height, closure
        self.dummy = not closure and self.moves_nothing(optimizer)
        if self.dummy:
            return
        self.know(optimizer)
        self.waiting = closure
        if not closure:
            self.in_front(self.backward_depth == 0 and not self.amend)

    def in_front(self, faults: bool) -> None:
        """Gradients are there, or about to be; the parameters are those of the step before."""
        if not self.started:
            self.started = True
            self.start()
        if faults:
            try:
                self.faults.before_step(self.next_step())
            except PlannedFailure:
                self.depth = 0  # torch calls no post hook for a step that raised
                raise

    def know(self, optimizer: Any) -> None:
        if any(known() is optimizer for known in self._optimizers):
            return
        if self.steps:
            gc.collect()  # one that it replaces and that lies in a cycle would stay for as long as chance has it
        self._optimizers.append(weakref.ref(optimizer))

    def moves_nothing(self, optimizer: Any) -> bool:
        """A step of no backward pass at a learning rate of 0: DCP and others make an optimizer's state so, before a load."""
        return self.backwards == 0 and self.backward_depth == 0 and not self.amend and not any(rates([optimizer]))

    def after_step(self, optimizer: Any) -> None:
        self.depth = max(0, self.depth - 1)
        if self.depth or self.dummy:
            return
        if self.backward_depth:
            self.stepped_in_backward = True
            return
        if not self.amend:
            self.faults.in_optimizer(self.next_step())
        self.step_done()

    def start(self) -> None:
        """The state before the first step, and which step that is, if an earlier attempt had it."""
        optimizers = self.optimizers
        models = found_models(self.recording, optimizers)
        self._models = [weakref.ref(model) for model in models]
        params, optimizer, entries = self.state()
        self.digested = 0
        resumed = self.faults.resumed_after(params, optimizer)
        self.recording.write(
            "start",
            params=params,
            buffers=digests.buffers(models),
            optimizer=optimizer,
            entries=entries,
            settings=digests.settings(optimizers),
            lr=rates(optimizers),
            resumed_after=resumed,
            digest=digests.NAME,
            parameters=sum(1 for o in optimizers for g in o.param_groups for _ in g["params"]),
            watched=digests.watched(self.recording.watched()),
            **digests.generators(),
        )

    def state(self) -> Any:
        optimizers = self.optimizers
        optimizer, entries = digests.optimizer_state(optimizers)
        return digests.parameters(optimizers), optimizer, entries

    def step_done(self) -> None:
        """The outermost call is over: one line, or one that amends the line before."""
        fields: Dict[str, Any] = {}
        if self.amend:
            fields["amends"] = True
        else:
            self.steps += 1
            self.recording.seen = True
            self.thread = threading.get_ident()
        if self.every and (self.steps + self.faults.offset) % self.every == 0:
            fields.update(self.state_digests())
        now, optimizers = time.monotonic(), self.optimizers
        self.recording.write(
            "step",
            step=self.steps,
            batches=self.consumed,
            backwards=self.backwards,
            losses=[as_number(loss) for loss in self.losses],
            lr=rates(optimizers),
            scale=self.scale,
            settings=digests.settings(optimizers),
            seconds=now - self.began,
            **digests.generators(),
            **fields,
        )
        self.began, self.amend = now, True
        self.losses, self.consumed, self.backwards = [], [], 0

    def state_digests(self) -> Dict[str, Any]:
        """After the newest step: of parameters, optimizer state, buffers, and what the job watches by name."""
        params, optimizer, _ = self.state()
        self.digested = self.steps
        return {
            "params": params,
            "optimizer": optimizer,
            "buffers": digests.buffers(alive(self._models)),
            "watched": digests.watched(self.recording.watched()),
        }

    def save_begins(self, path: str, **more: Any) -> None:
        """With the state's digests where the step had none: a later attempt that resumes from this is known by them."""
        overlapped = self.overlapped()
        state = self.state_digests() if self.started and self.digested != self.steps and not overlapped else {}
        self.recording.write("save", path=os.path.abspath(path), done=False, after_step=self.steps, **state, **overlapped, **more)

    def overlapped(self) -> Dict[str, bool]:
        """Marks what another thread saves than the one that trains: it holds the state of an earlier step, and which is not known."""
        return {"overlapped": True} if self.steps and threading.get_ident() != self.thread else {}

    def left_out(self) -> None:
        """The scaler has finished a window: if no optimizer stepped since backward, its gradients overflowed. What it consumed is on no step's
        account, so that a restart before the next window finds that window's batches alone in its first step."""
        if self.amend or not self.backwards or self.backward_depth:
            return
        self.recording.write("skip", after_step=self.steps, batches=self.consumed, backwards=self.backwards)
        self.losses, self.consumed, self.backwards = [], [], 0

    # -- checkpoints

    def saved(self, path: str, after_step: Optional[int] = None, **details: Any) -> None:
        """A checkpoint is complete. Its path is kept: many jobs give it its name by a rename."""
        path = os.path.abspath(path)
        self.saves[path] = {"after_step": self.steps, **self.overlapped()} if after_step is None else {"after_step": after_step}
        self.recording.write("save", path=path, done=True, **self.saves[path], **details)

    def renamed(self, source: Any, target: Any) -> None:
        """What was saved under `source`, a file or a folder, is called `target` now."""
        if not self.saves:
            return
        old, new = os.path.abspath(os.fspath(source)), os.path.abspath(os.fspath(target))
        for path in [path for path in self.saves if path == old or path.startswith(old + os.sep)]:
            renamed = new + path[len(old) :]
            self.saves[renamed] = self.saves.pop(path)
            self.recording.write("save", path=renamed, done=True, renamed=path, **self.saves[renamed])

    def call(self, what: str, **details: Any) -> None:
        self.recording.write("call", what=what, after_step=self.steps, **details)


def stack_height() -> int:
    """How many calls are under way in this thread."""
    frame, height = sys._getframe(), 0
    while frame is not None:
        frame, height = frame.f_back, height + 1  # type: ignore[assignment]
    return height


def consumed_from(queue: Deque[Any], moved: bool) -> int:
    """Which batch a backward pass consumed; it and those before it leave the queue. `moved`: batches are copied to a device, so that the job lets
    go of the tensors that came out of the loader: of two, the first is then the one."""
    held = [number for number, references in queue if any(reference() is not None for reference in references)]
    if moved and len(queue) <= 2:
        chosen = queue[0][0]
    else:
        chosen = held[0] if held else queue[-1][0]
    while queue and queue[0][0] <= chosen:
        queue.popleft()
    return int(chosen)


def alive(references: List["weakref.ref[Any]"]) -> List[Any]:
    """What the references still lead to, in their order."""
    return [thing for thing in (reference() for reference in references) if thing is not None]


def on_device(loss: Any) -> bool:
    return getattr(getattr(loss, "device", None), "type", "cpu") != "cpu"


def as_number(loss: Any) -> Any:
    """A loss as a number; one that has several elements, or none, is left out. On a GPU this is read after the step, when it is there anyway."""
    try:
        return float(loss.item()) if hasattr(loss, "item") else float(loss)
    except (ValueError, TypeError, RuntimeError):
        return None


def rates(optimizers: List[Any]) -> List[float]:
    return [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups if "lr" in group]


def found_models(recording: Recording, optimizers: List[Any]) -> List[Any]:
    """The outermost modules that own the parameters: those that the job named, else those that are found in memory."""
    import torch

    named = [value for key, value in sorted(recording.watched().items()) if isinstance(value, torch.nn.Module)]
    if named:
        return named
    owned = {id(parameter) for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]}
    candidates = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    holders = [module for module in candidates if any(id(parameter) in owned for parameter in module.parameters())]
    inner = {id(child) for module in holders for child in module.modules() if child is not module}
    return sorted((module for module in holders if id(module) not in inner), key=lambda module: type(module).__name__)


existing: Optional[StepRecorder] = None
own = threading.local()  # what this thread is inside of, for hooks that are called within one another


def recorder() -> Optional[StepRecorder]:
    """This process's; None where nothing is recorded. A forked child has its own."""
    global existing
    recording = current()
    if recording is None:
        return None
    if existing is None or existing.recording is not recording:
        existing = StepRecorder(recording)
    return existing


def quietly(what: str, work: Callable[[StepRecorder], Any], found: Optional[StepRecorder] = None) -> Any:
    """Do `work` for the record: what fails there is recorded as trouble, and the job goes on. `found`: the recorder, where it is known."""
    found = found or recorder()
    if found is None:
        return None
    try:
        return work(found)
    except Exception as error:
        found.recording.trouble(what, error)
        return None


def with_planned_failures(what: str, work: Callable[[StepRecorder], Any], found: Optional[StepRecorder] = None) -> None:
    """As `quietly`, but a planned failure that is an exception goes through to the job."""
    found = found or recorder()
    if found is None:
        return
    try:
        work(found)
    except PlannedFailure as planned:
        raise planned.error from None
    except Exception as error:
        found.recording.trouble(what, error)
